/* ref_json.h - jansson as the reference of fuzz_body.c, apart because base/json.h has equal
 * names. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Returns 1: body[n] is JSON in which no object has a key twice; 0: it is not; -1: jansson cannot
 * say, because of a limit of its own. */
int ref_is_json(const char *body, size_t n);
/* Calls add() with the index and the text of each choice of a response. Returns -1 if it is not
 * such a JSON object. A text without malformed characters is what add() gets. */
int ref_choices(const char *json, size_t n,
                void (*add)(uint64_t index, const char *text, size_t n));
