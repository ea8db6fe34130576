/* json.h - a strict pull scanner over JSON text in memory, for files too large for a tree
 * (tokenizer.json, safetensors headers). Small documents use jansson.
 *
 * The caller walks: json_next() yields one event at a time. Nothing is allocated or copied; strings
 * are spans of the input and are unescaped by json_unescape(). Strict: RFC 8259, no NaN, no comments,
 * no trailing commas, no byte order mark, valid UTF-8, no lone surrogates, depth at most JSON_MAX_DEPTH.
 * Errors carry line and column.
 * Accepted beyond the RFC: nothing.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "base/base.h"
#include "base/err.h"

enum { JSON_MAX_DEPTH = 32 };

enum json_kind {
    JSON_END, /* of the document */
    JSON_OBJECT,
    JSON_OBJECT_END,
    JSON_ARRAY,
    JSON_ARRAY_END,
    JSON_KEY, /* text: the key's raw span */
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
};

struct json {
    const char *p, *end, *start;
    uint32_t depth, expect;        /* private */
    uint8_t stack[JSON_MAX_DEPTH]; /* private */
    enum json_kind kind;           /* of the event just read */
    const char *text;              /* KEY, STRING: between the quotes; NUMBER: its digits */
    size_t text_len;
    bool escaped; /* the span has backslashes: use json_unescape() */
};

void json_open(struct json *j, const char *text, size_t n);
/* The next event in *j. 0, or -EBADMSG with "line 3, column 7: ...". */
int json_next(struct json *j, struct err *e) MUST_USE;
/* Skip the value whose first event was just read (a scalar: nothing), or after a KEY its value. */
int json_skip(struct json *j, struct err *e) MUST_USE;
/* Unescape the present KEY or STRING into buf, NUL-ended. Length, or -EMSGSIZE when n is too small. */
int json_unescape(const struct json *j, char *buf, size_t n) MUST_USE;
bool json_is(const struct json *j, const char *s); /* KEY or STRING, unescaped, equals s */
/* The present NUMBER. -ERANGE: no such value of the type (negative, too large, for a double also
 * over 511 characters). -EINVAL: not an integer as written ("1.0", "1e3"). */
int json_u64(const struct json *j, uint64_t *ret) MUST_USE;
int json_f64(const struct json *j, double *ret) MUST_USE;

#endif
