/* similar.h - finds the word to suggest for a name that is unknown. */
#pragma once
#include "base/base.h"

/* The most similar word so far. Start with all fields 0; call similar_compare() for each word.
 * word NULL: no word is similar enough for a suggestion. */
struct similar {
    const char *word;
    uint32_t edits; /* bytes to insert, delete and replace between the name and the word */
};
void similar_compare(struct similar *best, const char *name, size_t len, const char *word);
