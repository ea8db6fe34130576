/* json.h - reads JSON text in memory as a sequence of events (a strict pull scanner).
 *
 * For files that are too large for a tree (tokenizer.json, safetensors headers); small documents
 * use jansson. Each json_next() yields one event. The scanner allocates and copies nothing: strings
 * are spans of the input, and json_unescape() decodes them.
 *
 * Strict RFC 8259: valid UTF-8, no lone surrogates, no NaN, no comments, no trailing commas, no
 * byte order mark, at most JSON_MAX_DEPTH levels. Error sentences carry line and column. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { JSON_MAX_DEPTH = 64 };

enum json_kind {
    JSON_END, /* end of the document */
    JSON_OBJECT,
    JSON_OBJECT_END,
    JSON_ARRAY,
    JSON_ARRAY_END,
    JSON_KEY, /* text: the key as written */
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
    enum json_kind kind;           /* of the last event */
    /* KEY, STRING: the text between the quotes; NUMBER: the number as written */
    const char *text;
    size_t text_len;
    bool escaped; /* the text contains backslashes: use json_unescape() */
};

void json_open(struct json *j, const char *text, size_t n);
/* Reads the next event into *j. Returns 0, or -EBADMSG with "line 3, column 7: ...". */
int json_next(struct json *j, struct err *e) MUST_USE;
/* Skips the rest of an object or array that was entered; after a KEY, its whole value. */
int json_skip(struct json *j, struct err *e) MUST_USE;
/* Decodes the escapes of the current KEY or STRING into buf[n] and adds a NUL. Returns the length,
 * or -EMSGSIZE if n is too small. */
int json_unescape(const struct json *j, char *buf, size_t n) MUST_USE;
bool json_is(const struct json *j, const char *s); /* true: decoded KEY or STRING is s */
/* Convert the current NUMBER. -ERANGE: the type cannot hold it (for u64 a negative number; for f64
 * also one with more than 511 characters). -EINVAL, only u64: not an integer ("1.0", "1e3"). */
int json_u64(const struct json *j, uint64_t *ret) MUST_USE;
int json_f64(const struct json *j, double *ret) MUST_USE;
