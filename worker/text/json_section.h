/* json_section.h - reads objects and arrays of tokenizer.json into structs, by tables of keys.
 *
 *     static const struct section_field fields[] = {
 *         SECTION(TEXT, config, "type", type),
 *         SECTION(BOOL, config, "invert", invert),
 *         { NULL },
 *     };
 *     TRY(json_section_read(j, "the decoder", fields, &config, e));
 *
 * j is a scanner (base/json.h), which reads one event at a time: the beginning or end of an object
 * or array, a key, a value. what, or a field's key: the value's name in the message of -EBADMSG. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

/* One key of an object and the field of a struct that gets its value. */
struct section_field {
    const char *key; /* NULL ends the table */
    enum {
        SECTION_TEXT,  /* char[size]; null is "" */
        SECTION_BOOL,  /* bool; null is false */
        SECTION_SIGN,  /* int8_t: 1 true, -1 false, 0 null */
        SECTION_ID,    /* token_id */
        SECTION_VALUE, /* struct json: a scanner at the first event of the value */
        SECTION_READ   /* read() reads the next event and the rest of the value */
    } kind;
    size_t at, size;
    int (*read)(void *field, struct json *j, struct err *e);
};
#define SECTION(kind, s, key, field) \
    { \
        key, SECTION_##kind, offsetof(struct s, field), sizeof(((struct s *)0)->field), NULL \
    }

/* Reads the object that the last event opened into the struct *to. Keys that `fields` does not have
 * are skipped; absent keys leave their fields unchanged. */
int json_section_read(struct json *j, const char *what, const struct section_field *fields,
                      void *to, struct err *e) MUST_USE;

/* Calls read() for each element of a Sequence, a list of steps that may be Sequences themselves.
 * list: a scanner whose last event opened the array; list.p NULL: the array is absent. depth: how
 * many Sequences are around this one; read() gets depth + 1. -ENOTSUP: more than 4 are nested. */
int json_section_sequence(struct json list, int depth,
                          int (*read)(void *arg, struct json *j, int depth, struct err *e),
                          void *arg, struct err *e) MUST_USE;

/* Check that the last event opens an object or an array; -EBADMSG if not. */
int json_section_object(const struct json *j, const char *what, struct err *e) MUST_USE;
int json_section_array(const struct json *j, const char *what, struct err *e) MUST_USE;

/* Inside an object: reads the next key and returns 1, or returns 0 at its end. */
int json_section_key(struct json *j, struct err *e) MUST_USE;
/* Inside an array: reads the next element's first event and returns 1, or 0 at the array's end. */
int json_section_element(struct json *j, struct err *e) MUST_USE;

/* Reads a string without zero bytes, or null as "". -EMSGSIZE: it has more than n - 1 bytes. */
int json_section_text(struct json *j, const char *what, char *buf, size_t n,
                      struct err *e) MUST_USE;
/* Reads the next event as a string of any bytes. Returns its length, or -1 without a message. */
int json_section_piece(struct json *j, char *buf, size_t n) MUST_USE;
/* Reads the next event as a token id. */
int json_section_id(struct json *j, const char *what, token_id *ret, struct err *e) MUST_USE;

enum { SECTION_FILE_MAX = 256 << 20 }; /* bytes; the largest published files are under 40 MB */
