/* body.h - reads the body of a request: one JSON object, in parts of limited length.
 *
 * body_read() first walks the whole text: it is valid JSON, no object has a key twice, no key is
 * longer than BODY_KEY bytes, and there are at most BODY_KEYS keys. Then it reads the members of
 * the object by the table of fields. Both stop after `most` bytes, so that a long body does not
 * keep the thread of the event loop busy; the caller calls again in the next loop iteration. */
#pragma once
#include "base/json.h"
#include "gateway/api/fields.h"

enum { BODY_KEY = 16384, BODY_KEYS = 1 << 17, BODY_MEMBERS = 128, BODY_IGNORED = 512 };

struct body_member {
    struct http_text name, value; /* name: without quotes, as written */
};

struct body {
    struct http_text text; /* the whole body, of the HTTP server */
    struct value v[N_FIELDS];
    char ignored[BODY_IGNORED]; /* names of fields without effect, separated by ", " */
    /* private */
    bool walked;
    struct json j;
    uint64_t *seen; /* hashes of the keys: open addressing, n_slots entries, 0 is free */
    uint32_t n_slots, n_seen, n_objects, object[JSON_MAX_DEPTH + 1];
    struct body_member member[BODY_MEMBERS];
    uint32_t n_members, next_member;
    void *blocks; /* of body_memory() */
};

void body_open(struct body *b, struct http_text text);
void body_free(struct body *b);
/* Reads at most about `most` bytes. Returns 0: all fields are read; 1: call again; -EINVAL with *f;
 * -ENOMEM. strict: fields without a row are an error. */
int body_read(struct body *b, unsigned route, size_t most, bool strict, struct fault *f) MUST_USE;
/* Returns n bytes that live as long as the body; NULL: no memory. */
void *body_memory(struct body *b, size_t n);
/* Returns the decoded text of the string that j has just read, with a NUL behind it. It is part of
 * the body where it has no escapes and nul is false. p NULL: no memory. */
struct http_text body_string(struct body *b, const struct json *j, bool nul);
/* Adds a name to `ignored`, once; characters other than letters, digits, '_', '-', '.', '[' and ']'
 * become '?'. */
void body_ignore(struct body *b, const char *name, size_t n);
