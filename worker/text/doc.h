/* doc.h - walking tokenizer.json: the same few questions that every section asks.
 *
 *     TRY(doc_object(j, "decoder", e));
 *     while ((more = doc_key(j, e)) > 0) {
 *         if (json_is(j, "type")) TRY(doc_text(j, "decoder.type", type, sizeof type, e));
 *         else TRY(json_skip(j, e));
 *     }
 *
 * where names the place for the sentence of -EBADMSG when something else stands there.
 */
#ifndef TEXT_DOC_H
#define TEXT_DOC_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

/* The event just read opens an object, an array. */
int doc_object(const struct json *j, const char *where, struct err *e) MUST_USE;
int doc_array(const struct json *j, const char *where, struct err *e) MUST_USE;

/* Inside an object: 1 with the next key read, 0 behind its end. */
int doc_key(struct json *j, struct err *e) MUST_USE;
/* Inside an array: 1 with the first event of its next element read, 0 behind its end. */
int doc_element(struct json *j, struct err *e) MUST_USE;

/* Read the next event as what it should be. doc_text() takes null for "" and writes n - 1 bytes at
 * most, never a zero byte within; -EMSGSIZE (with a sentence) beyond. doc_bool() takes null for false. */
int doc_text(struct json *j, const char *where, char *buf, size_t n, struct err *e) MUST_USE;
int doc_bool(struct json *j, const char *where, bool *ret, struct err *e) MUST_USE;
int doc_id(struct json *j, const char *where, token_id *ret, struct err *e) MUST_USE;

/* A whole file, which the caller frees; *n may be less than it was, should it have shrunk. -ENOENT, -EBADMSG ... */
int doc_file(const char *path, char **text, size_t *n, struct err *e) MUST_USE;
void doc_free(char **text); /* for CLEAN() */

#endif
