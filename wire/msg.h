/* msg.h - client frames as structs: decode with bounds, encode; MessagePack for ZeroMQ only.
 *
 * msg_check() is one bounded, iterative pass over the bytes that holds every limit of lagan_wire.h
 * (depth, nodes, keys, strings, duplicate keys, no ext, no NaN, no trailing bytes) before
 * MessagePack-C may unpack. msg_decode() = check + envelope. What a decoded struct points to lies
 * in the frame; it is valid as long as the frame's bytes are.
 */
#ifndef WIRE_MSG_H
#define WIRE_MSG_H

#include "base/base.h"
#include "base/err.h"
#include "include/lagan_wire.h"
#include "wire/msg_reason.h"

#include <msgpack.h>

struct msg { /* an envelope */
    uint32_t version, type;
    uint64_t rid;
    msgpack_object map; /* type MAP; in the zone */
    msgpack_zone *zone; /* msg_done() */
};

/* -EBADMSG: not MessagePack, a limit broken (which, where), not [version, type, rid, {map}].
 * -EPROTO: another protocol version. After a failure ret->type and ret->rid hold what could be read
 * (else 0), so that the answer can name the request. The frame must outlive *ret. */
int msg_decode(struct msg *ret, const void *frame, size_t n, struct err *e) MUST_USE;
void msg_done(struct msg *m);
int msg_check(const void *frame, size_t n, struct err *e) MUST_USE; /* the bounded pass alone */
/* The same with another budget of nodes: a client takes longer answers than it may send
 * requests. */
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
/* The rid of a frame that nobody has looked at; 0: it has none. */
uint64_t msg_rid(const void *frame, size_t n);
void msg_ids_copy(const struct msg_ids *ids, void *to); /* all of them: i32[ids->n] */

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
#define MSG_FIELD_ANY(name) bool name;       /* the key was given */
#define MSG_FIELD_STOPS(name) \
    struct msg_span name[LAGAN_MAX_STOPS]; \
    uint32_t n_##name;
#define MSG_FIELD_BIAS(name) \
    struct msg_bias name[LAGAN_MAX_BIAS]; \
    uint32_t n_##name; /* by id, no id twice */

/* SUBMIT: every key of LAGAN_FIELDS, checked for type and range; an absent key has its default. */
struct msg_request {
#define X(kind, name, least, most, preset, record, fallback, sentence) MSG_FIELD_##kind(name)
    LAGAN_FIELDS(X)
#undef X
    bool has_text, has_seed, has_max_tokens, has_eos; /* the key was given */
    bool want_logprobs, want_prompt_logprobs;         /* the key was given; 0 is a value */
    uint32_t absent; /* with model_defaults: ABSENT_ bits (ipc/records.h) of keys not given */
};
/* -EINVAL: the sentence names key, value and what would be right. *ret is written on success
 * only. */
int msg_request(struct msg_request *ret, const struct msg *m, struct err *e) MUST_USE;
/* Checks that keys do not contradict each other: beams, n, temperature, logprobs, stop. Part of
 * msg_request(); called again when the model's defaults are known. -EINVAL: the sentence names both
 * keys. */
int msg_request_agrees(const struct msg_request *q, struct err *e) MUST_USE;

/* RESUME: three lists of n unsigned integers. -EINVAL: a list is missing, shorter, or of something
 * else. */
struct msg_resume {
    uint32_t n;
    const msgpack_object *rid, *n_tokens, *text_bytes;
};
int msg_resume(struct msg_resume *ret, const struct msg *m, struct err *e) MUST_USE;

/* Read one key of a map. -ENOENT absent, -EINVAL wrong type. */
int msg_u64(const msgpack_object *map, const char *key, uint64_t *ret);
int msg_i64(const msgpack_object *map, const char *key, int64_t *ret);
int msg_f64(const msgpack_object *map, const char *key, double *ret);
int msg_str(const msgpack_object *map, const char *key, struct msg_span *ret); /* str or bin */
int msg_bool(const msgpack_object *map, const char *key, bool *ret);
const msgpack_object *msg_get(const msgpack_object *map, const char *key); /* NULL: absent */
/* A list of token ids under key: a bin of i32 LE or an array. *ret as for an absent key on
 * -ENOENT. */
int msg_ids(const msgpack_object *map, const char *key, struct msg_ids *ret, struct err *e);
/* -EINVAL: a key begins with '!' (must be understood) and is none of ours. For every message
 * type. */
int msg_understood(const msgpack_object *map, struct err *e) MUST_USE;

/* Encode: begin an envelope with n map entries, then the caller packs them with MessagePack-C. */
void msg_begin(msgpack_packer *p, uint32_t type, uint64_t rid, uint32_t n_keys);
void msg_key(msgpack_packer *p, const char *key);
void msg_text(msgpack_packer *p, const char *s);            /* NUL-ended string value */
void msg_bytes(msgpack_packer *p, const char *s, size_t n); /* str value of n bytes */
void msg_bin(msgpack_packer *p, const void *b, size_t n);   /* bin value of n bytes */

#endif
