/* msg.h - decodes and encodes the messages of clients: MessagePack in ZeroMQ frames.
 *
 * A message is an envelope [version, type, rid, {map}]; rid is the client's request id. msg_check()
 * is one bounded, iterative pass that enforces every limit of lagan_wire.h (depth, nodes, keys,
 * strings, duplicate keys, no ext, no NaN, no trailing bytes) before MessagePack-C unpacks the
 * frame. A node is one MessagePack value. msg_decode() calls msg_check() and reads the envelope.
 * Decoded structs point into the frame and are valid while it is. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "include/lagan_wire.h"
#include "wire/msg_reason.h"

#include <msgpack.h>

struct msg { /* a decoded envelope */
    uint32_t version, type;
    uint64_t rid;
    msgpack_object map; /* of type MSGPACK_OBJECT_MAP; its memory is in zone */
    msgpack_zone *zone; /* freed by msg_done() */
};

/* Decodes a client's frame of n bytes, which must outlive *ret. -EBADMSG: the frame is not
 * MessagePack, exceeds a limit (e says which and where), or is not an envelope. -EPROTO: another
 * protocol version. -ENOMEM. After a failure ret->type and ret->rid hold what msg_head() reads, so
 * that the ERROR can name the request. */
int msg_decode(struct msg *ret, const void *frame, size_t n, struct err *e) MUST_USE;
void msg_done(struct msg *m);
/* msg_decode() with max_nodes instead of LAGAN_MAX_NODES: for liblagan, because a client may
 * receive longer messages than it may send. */
int msg_decode_long(struct msg *ret, const void *frame, size_t n, uint32_t max_nodes,
                    struct err *e) MUST_USE;
/* Checks a frame without unpacking it. max_nodes: most nodes, except integers in arrays;
 * LAGAN_MAX_NODES for a client's message. -EBADMSG: as msg_decode(). */
int msg_check(const void *frame, size_t n, uint32_t max_nodes, struct err *e) MUST_USE;
bool msg_utf8(const void *s, size_t n); /* true: UTF-8 without overlong forms and surrogates */

struct msg_span {
    const char *p;
    uint32_t n;
};
struct msg_ids {             /* token ids: a bin of i32 LE, or an array of integers */
    const msgpack_object *o; /* NULL: key absent */
    uint32_t n;
};
token_id msg_id(const struct msg_ids *ids, uint32_t i);
/* Reads version, type and rid of a frame that msg_check() has not checked: they stand before the
 * map, so an ERROR can name the request even if the rest is invalid. 0: not readable. */
struct msg_head {
    uint64_t version, type, rid;
};
struct msg_head msg_head(const void *frame, size_t n);
void msg_ids_copy(const struct msg_ids *ids, void *to); /* copies all ids as i32[ids->n] */

struct msg_bias {
    token_id id;
    float add;
};

/* MSG_FIELD_<kind>(name) declares the field of struct msg_request for a key of this kind. */
#define MSG_FIELD_IDS(name) struct msg_ids name;
#define MSG_FIELD_STR(name) struct msg_span name;
#define MSG_FIELD_U32(name) uint32_t name;
#define MSG_FIELD_I32(name) int32_t name;
#define MSG_FIELD_U64(name) uint64_t name;
#define MSG_FIELD_F64(name) double name;
#define MSG_FIELD_OVER(name) double name;
#define MSG_FIELD_BOOL(name) bool name;
#define MSG_FIELD_EARLY(name) uint32_t name; /* 0: false, 1: true, 2: "never" */
#define MSG_FIELD_ANY(name) bool name;       /* true: the key is present, with any value */
#define MSG_FIELD_STOPS(name) \
    struct msg_span name[LAGAN_MAX_STOPS]; \
    uint32_t n_##name;
#define MSG_FIELD_BIAS(name) \
    struct msg_bias name[LAGAN_MAX_BIAS]; \
    uint32_t n_##name; /* number of pairs, which are sorted by id; each id occurs once */

/* A decoded SUBMIT: a field for every key of LAGAN_FIELDS, with a valid type and range; the field
 * of an absent key has the default of LAGAN_FIELDS. */
struct msg_request {
#define X(kind, name, least, most, preset, record, fallback, sentence) MSG_FIELD_##kind(name)
    LAGAN_FIELDS(X)
#undef X
    bool has_text, has_seed, has_max_tokens, has_eos; /* true: the key is present */
    bool want_logprobs, want_prompt_logprobs; /* true: the key is present, even if it is 0 */
    /* If model_defaults is true: ABSENT_ bits (ipc/records.h) of the keys that are absent. */
    uint32_t absent;
};
/* Decodes the SUBMIT m; writes *ret on success only. -EINVAL: e names key, value and range, or a
 * key that no request has. */
int msg_request(struct msg_request *ret, const struct msg *m, struct err *e) MUST_USE;
/* The values of a SUBMIT that exclude each other; a bool is true if the request has the key. */
struct msg_combination {
    uint32_t n, beams;
    double temperature;
    bool return_logits;
};
/* Returns 0 if the values can be combined. -EINVAL: e names both keys. msg_request() calls it if no
 * value is a default of the model; otherwise lagand calls it when the defaults are known. */
int msg_combine(const struct msg_combination *c, struct err *e) MUST_USE;

/* A decoded RESUME: the rids of n requests, and the tokens and bytes of text that the client has.
 * -EINVAL: a list is missing, has another length, or an element is not an unsigned integer. */
struct msg_resume {
    uint32_t n;
    const msgpack_object *rid, *n_tokens, *text_bytes;
};
int msg_resume(struct msg_resume *ret, const struct msg *m, struct err *e) MUST_USE;

/* Read the value of one key of a map. -ENOENT: the key is absent. -EINVAL: another type. */
int msg_u64(const msgpack_object *map, const char *key, uint64_t *ret);
int msg_i64(const msgpack_object *map, const char *key, int64_t *ret);
int msg_f64(const msgpack_object *map, const char *key, double *ret);
int msg_number(const msgpack_object *o, double *ret); /* -EINVAL: neither integer nor float */
int msg_str(const msgpack_object *map, const char *key, struct msg_span *ret); /* str or bin */
int msg_bool(const msgpack_object *map, const char *key, bool *ret);
const msgpack_object *msg_get(const msgpack_object *map, const char *key); /* NULL: absent */
/* Reads a list of token ids, a bin of i32 LE or an array. -ENOENT: no such key; ret->o is NULL. */
int msg_ids(const msgpack_object *map, const char *key, struct msg_ids *ret, struct err *e);
/* Refuses (-EINVAL) a map with a key that starts with '!': a client marks with it a key of a later
 * protocol that lagand must not ignore. For every message type. */
int msg_understood(const msgpack_object *map, struct err *e) MUST_USE;

/* Writes an envelope whose map has n_keys entries; the caller packs them afterwards. */
void msg_begin(msgpack_packer *p, uint32_t type, uint64_t rid, uint32_t n_keys);
void msg_key(msgpack_packer *p, const char *key);
void msg_key_u64(msgpack_packer *p, const char *key, uint64_t v); /* key and value */
void msg_text(msgpack_packer *p, const char *s);                  /* NUL-terminated string value */
/* As msg_text(), of bytes from outside (paths, output of a process): not UTF-8 is replaced. */
void msg_any_text(msgpack_packer *p, const char *s);
void msg_bytes(msgpack_packer *p, const char *s, size_t n); /* str value of n bytes */
void msg_bin(msgpack_packer *p, const void *b, size_t n);   /* bin value of n bytes */
