/* msg.h - client frames as structs: bounded decoding, encoding; MessagePack in ZeroMQ frames.
 *
 * msg_check() is one bounded, iterative pass that enforces every limit of lagan_wire.h (depth,
 * nodes, keys, strings, duplicate keys, no ext, no NaN, no trailing bytes) before MessagePack-C may
 * unpack. msg_decode() is msg_check() plus the envelope. Decoded structs point into the frame and
 * are valid as long as the frame. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "include/lagan_wire.h"
#include "wire/msg_reason.h"

#include <msgpack.h>

struct msg { /* an envelope */
    uint32_t version, type;
    uint64_t rid;
    msgpack_object map; /* type MAP; in the zone */
    msgpack_zone *zone; /* freed by msg_done() */
};

/* -EBADMSG: not MessagePack, a limit is exceeded (the sentence says which and where), or not
 * [version, type, rid, {map}]. -EPROTO: another protocol version. After a failure ret->type and
 * ret->rid hold the values that could be read (else 0), so that the ERROR can name the request. The
 * frame must outlive *ret. */
int msg_decode(struct msg *ret, const void *frame, size_t n, struct err *e) MUST_USE;
void msg_done(struct msg *m);
/* only the bounded pass */
int msg_check(const void *frame, size_t n, struct err *e) MUST_USE;
/* As above with another limit of nodes, because a client may receive longer messages than it may
 * send. */
int msg_decode_long(struct msg *ret, const void *frame, size_t n, uint32_t max_nodes,
                    struct err *e) MUST_USE;
int msg_check_long(const void *frame, size_t n, uint32_t max_nodes, struct err *e) MUST_USE;
bool msg_utf8(const void *s, size_t n); /* RFC 3629: no overlong forms, no surrogates */

struct msg_span {
    const char *p;
    uint32_t n;
};
struct msg_ids {             /* token ids: a bin of i32 LE, or an array of integers */
    const msgpack_object *o; /* NULL: key absent */
    uint32_t n;
};
token_id msg_id(const struct msg_ids *ids, uint32_t i);
/* The rid of a frame that was not checked; 0: none. */
uint64_t msg_rid(const void *frame, size_t n);
void msg_ids_copy(const struct msg_ids *ids, void *to); /* copies all ids: i32[ids->n] */

struct msg_bias {
    token_id id;
    float add;
};

/* The C field of each kind of LAGAN_FIELDS. */
#define MSG_FIELD_IDS(name) struct msg_ids name;
#define MSG_FIELD_STR(name) struct msg_span name;
#define MSG_FIELD_U32(name) uint32_t name;
#define MSG_FIELD_I32(name) int32_t name;
#define MSG_FIELD_U64(name) uint64_t name;
#define MSG_FIELD_F64(name) double name;
#define MSG_FIELD_OVER(name) double name;
#define MSG_FIELD_BOOL(name) bool name;
#define MSG_FIELD_EARLY(name) uint32_t name; /* 0 false, 1 true, 2 never */
#define MSG_FIELD_ANY(name) bool name;       /* the key is present */
#define MSG_FIELD_STOPS(name) \
    struct msg_span name[LAGAN_MAX_STOPS]; \
    uint32_t n_##name;
#define MSG_FIELD_BIAS(name) \
    struct msg_bias name[LAGAN_MAX_BIAS]; \
    uint32_t n_##name; /* sorted by id, ids are unique */

/* SUBMIT: every key of LAGAN_FIELDS, validated for type and range; absent keys have their default.
 */
struct msg_request {
#define X(kind, name, least, most, preset, record, fallback, sentence) MSG_FIELD_##kind(name)
    LAGAN_FIELDS(X)
#undef X
    bool has_text, has_seed, has_max_tokens, has_eos; /* the key is present */
    bool want_logprobs, want_prompt_logprobs;         /* the key is present; 0 is a valid value */
    /* with model_defaults: ABSENT_ bits (ipc/records.h) of the absent keys */
    uint32_t absent;
};
/* -EINVAL: the sentence names key, value and valid range. *ret is written on success only. */
int msg_request(struct msg_request *ret, const struct msg *m, struct err *e) MUST_USE;
/* Values that limit each other; a flag is true if the request has the key. */
struct msg_combination {
    uint32_t n, beams;
    double temperature;
    bool logprobs, prompt_logprobs, stop, return_logits;
};
/* -EINVAL: the sentence names both keys. msg_request() calls it if no value is a default of the
 * model, else lagand does when the defaults are known. */
int msg_combine(const struct msg_combination *c, struct err *e) MUST_USE;

/* RESUME: three lists of n unsigned integers. -EINVAL: a list is missing, has another length or
 * other elements. */
struct msg_resume {
    uint32_t n;
    const msgpack_object *rid, *n_tokens, *text_bytes;
};
int msg_resume(struct msg_resume *ret, const struct msg *m, struct err *e) MUST_USE;

/* Read one key of a map. -ENOENT: absent. -EINVAL: wrong type. */
int msg_u64(const msgpack_object *map, const char *key, uint64_t *ret);
int msg_i64(const msgpack_object *map, const char *key, int64_t *ret);
int msg_f64(const msgpack_object *map, const char *key, double *ret);
int msg_str(const msgpack_object *map, const char *key, struct msg_span *ret); /* str or bin */
int msg_bool(const msgpack_object *map, const char *key, bool *ret);
const msgpack_object *msg_get(const msgpack_object *map, const char *key); /* NULL: absent */
/* Reads a list of token ids: a bin of i32 LE or an array. On -ENOENT *ret is as for an absent key.
 */
int msg_ids(const msgpack_object *map, const char *key, struct msg_ids *ret, struct err *e);
/* -EINVAL: an unknown key begins with '!' and must be understood. For every message type. */
int msg_understood(const msgpack_object *map, struct err *e) MUST_USE;

/* Encoding: msg_begin() writes an envelope with n_keys map entries; the caller packs the entries
 * with MessagePack-C. */
void msg_begin(msgpack_packer *p, uint32_t type, uint64_t rid, uint32_t n_keys);
void msg_key(msgpack_packer *p, const char *key);
void msg_text(msgpack_packer *p, const char *s);            /* NUL-terminated string value */
void msg_bytes(msgpack_packer *p, const char *s, size_t n); /* str value of n bytes */
void msg_bin(msgpack_packer *p, const void *b, size_t n);   /* bin value of n bytes */
