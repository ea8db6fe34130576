/* msg.h - client frames as structs: decode with bounds, encode; MessagePack for ZeroMQ only.
 *
 * msg_check() is one bounded, iterative pass over the bytes that holds every limit of lagan_wire.h
 * (depth, nodes, keys, strings, duplicate keys, no ext, no NaN, no trailing bytes) before MessagePack-C
 * may unpack. msg_decode() = check + envelope. What a decoded struct points to lies in the frame; it
 * is valid as long as the frame's bytes are.
 */
#ifndef IPC_MSG_H
#define IPC_MSG_H

#include "base/base.h"
#include "base/err.h"
#include "include/lagan_wire.h"

#include <msgpack.h>

struct msg { /* an envelope */
    uint32_t version, type;
    uint64_t rid;
    msgpack_object map; /* type MAP; in the zone */
    msgpack_zone *zone; /* msg_done() */
};

/* -EBADMSG: not MessagePack, a limit broken (which, where), not [version, type, rid, {map}].
 * -EPROTO: another protocol version. The frame must outlive *ret. */
int msg_decode(struct msg *ret, const void *frame, size_t n, struct err *e) MUST_USE;
void msg_done(struct msg *m);
int msg_check(const void *frame, size_t n, struct err *e) MUST_USE; /* the bounded pass alone */

struct msg_span {
    const char *p;
    uint32_t n;
};
struct msg_ids {             /* token ids: a bin of i32 LE, or an array of integers */
    const msgpack_object *o; /* NULL: key absent */
    uint32_t n;
};
token_id msg_id(const struct msg_ids *ids, uint32_t i);

/* SUBMIT: every key of CONTRACT 3, checked for type and range; what is absent has its default. */
struct msg_request {
    struct msg_ids ids, decoder_ids, eos_ids, stop_ids;
    struct msg_span text, model, key;
    bool has_text, has_seed, has_max_tokens, ignore_eos, resume, has_eos;
    uint32_t n_stop;
    struct msg_span stop[LAGAN_MAX_STOPS];
    uint32_t max_tokens, min_tokens, top_k, logprobs, prompt_logprobs, win;
    bool want_logprobs, want_prompt_logprobs; /* the key was given (0 is a value) */
    double temperature, top_p, min_p, repetition_penalty, priority;
    uint64_t seed;
    int32_t forced_bos, forced_eos; /* -1 off, -2 the model's */
    uint64_t deadline_ms;           /* 0: none */
    /* accepted by name, refused by lagand for now unless at their default: */
    uint32_t beams, n, no_repeat_ngram, early_stopping;
    double length_penalty;
    char refused[32]; /* a key of CONTRACT 3 that is not served yet; "" none */
};
/* -EINVAL: the sentence names key, value and what would be right. */
int msg_request(struct msg_request *ret, const struct msg *m, struct err *e) MUST_USE;

/* Read one key of a map. -ENOENT absent, -EINVAL wrong type. */
int msg_u64(const msgpack_object *map, const char *key, uint64_t *ret);
int msg_i64(const msgpack_object *map, const char *key, int64_t *ret);
int msg_f64(const msgpack_object *map, const char *key, double *ret);
int msg_str(const msgpack_object *map, const char *key, struct msg_span *ret); /* str or bin */
const msgpack_object *msg_get(const msgpack_object *map, const char *key);

/* Encode: begin an envelope with n map entries, then the caller packs them with MessagePack-C. */
void msg_begin(msgpack_packer *p, uint32_t type, uint64_t rid, uint32_t n_keys);
void msg_key(msgpack_packer *p, const char *key);
void msg_text(msgpack_packer *p, const char *s);            /* NUL-ended string value */
void msg_bytes(msgpack_packer *p, const char *s, size_t n); /* str value of n bytes */

/* Words of the closed lists: "eos", "too_long"; NULL: unknown. retry: may be NULL. */
const char *msg_reason(uint32_t reason, bool *retry);
const char *msg_reason_sentence(uint32_t reason);

#endif
