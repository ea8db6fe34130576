/* similar.h - finds the word to suggest for a name that is unknown. */
#pragma once
#include "base/base.h"

/* The most similar name so far. Start with all fields 0; call similar_compare() for each known one.
 * name NULL: none is similar enough for a suggestion. */
struct similar {
    const char *name;
    uint32_t edits; /* bytes to insert, delete and replace in the unknown name */
};
void similar_compare(struct similar *best, const char *unknown, size_t len, const char *name);
