/* json_section.h - helpers to read tokenizer.json.
 *
 *     TRY(json_section_object(j, "decoder", e));
 *     while ((more = json_section_key(j, e)) > 0) {
 *         if (json_is(j, "type")) TRY(json_section_text(j, "decoder.type", type, sizeof type, e));
 *         else TRY(json_skip(j, e));
 *     }
 *
 * where: the position named in the sentence of -EBADMSG. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

/* Check that the last event opens an object or an array. */
int json_section_object(const struct json *j, const char *where, struct err *e) MUST_USE;
int json_section_array(const struct json *j, const char *where, struct err *e) MUST_USE;

/* Inside an object: reads the next key and returns 1, or returns 0 at its end. */
int json_section_key(struct json *j, struct err *e) MUST_USE;
/* Inside an array: reads the first event of the next element and returns 1, or returns 0 at its
 * end. */
int json_section_element(struct json *j, struct err *e) MUST_USE;

/* Read the next event as a value of this type. json_section_text() accepts null as "" and writes at
 * most n - 1 bytes without a NUL inside; -EMSGSIZE (with a sentence) if longer. json_section_bool()
 * accepts null as false. */
int json_section_text(struct json *j, const char *where, char *buf, size_t n,
                      struct err *e) MUST_USE;
int json_section_bool(struct json *j, const char *where, bool *ret, struct err *e) MUST_USE;
int json_section_id(struct json *j, const char *where, token_id *ret, struct err *e) MUST_USE;

/* Reads a whole file, which the caller frees. *n is smaller than the file was if it shrank
 * meanwhile. -ENOENT, -EBADMSG, ... */
int json_section_file(const char *path, char **text, size_t *n, struct err *e) MUST_USE;
void json_section_free(char **text); /* for CLEAN() */
