/* json_section.h - walking tokenizer.json: the same few questions that every section asks.
 *
 *     TRY(json_section_object(j, "decoder", e));
 *     while ((more = json_section_key(j, e)) > 0) {
 *         if (json_is(j, "type")) TRY(json_section_text(j, "decoder.type", type, sizeof type, e));
 *         else TRY(json_skip(j, e));
 *     }
 *
 * where names the place for the sentence of -EBADMSG when something else stands there.
 */
#ifndef TEXT_JSON_SECTION_H
#define TEXT_JSON_SECTION_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

/* The event just read opens an object, an array. */
int json_section_object(const struct json *j, const char *where, struct err *e) MUST_USE;
int json_section_array(const struct json *j, const char *where, struct err *e) MUST_USE;

/* Inside an object: 1 with the next key read, 0 behind its end. */
int json_section_key(struct json *j, struct err *e) MUST_USE;
/* Inside an array: 1 with the first event of its next element read, 0 behind its end. */
int json_section_element(struct json *j, struct err *e) MUST_USE;

/* Read the next event as what it should be. json_section_text() takes null for "" and writes n - 1 bytes at
 * most, never a zero byte within; -EMSGSIZE (with a sentence) beyond. json_section_bool() takes null for false. */
int json_section_text(struct json *j, const char *where, char *buf, size_t n,
                      struct err *e) MUST_USE;
int json_section_bool(struct json *j, const char *where, bool *ret, struct err *e) MUST_USE;
int json_section_id(struct json *j, const char *where, token_id *ret, struct err *e) MUST_USE;

/* A whole file, which the caller frees; *n may be less than it was, should it have shrunk. -ENOENT, -EBADMSG ... */
int json_section_file(const char *path, char **text, size_t *n, struct err *e) MUST_USE;
void json_section_free(char **text); /* for CLEAN() */

#endif
