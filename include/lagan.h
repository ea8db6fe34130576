/* lagan.h - client library of lagand: connect, submit requests, read events, cancel, call commands.
 *
 *     struct lagan *c;
 *     struct lagan_event ev = { .size = sizeof ev };
 *     if (lagan_open(&c, NULL, 1000) < 0) ...
 *     struct lagan_request *r = lagan_request_new();
 *     lagan_set_str(r, "text", "12 = ", 5);
 *     lagan_set_int(r, "max_tokens", 32);
 *     uint64_t id;
 *     lagan_submit(c, r, &id);
 *     while (lagan_next(c, &ev, -1) > 0 && ev.kind == LAGAN_EVENT_TOKENS)
 *         fwrite(ev.text, 1, ev.text_len, stdout);
 *
 * Threads: a struct lagan is one connection and is used by one thread at a time. A program with
 * several threads opens one connection for each. The library starts no callbacks and installs no
 * signal handlers. The caller owns requests (struct lagan_request), which are independent of
 * connections.
 *
 * Blocking: only lagan_open() and lagan_open_keys() with a timeout, lagan_next() with a timeout and
 * lagan_call() block. An event loop polls lagan_fd() for readability and then calls lagan_next()
 * with timeout 0 until lagan_next() returns 0; it uses lagan_start_call() instead of lagan_call().
 *
 * Keep-alive: a program calls lagan_next() at least every 5 s, or polls lagan_fd(), which becomes
 * readable when a keep-alive message is due. lagand closes a connection that is silent for
 * api.idle_timeout.
 *
 * Lost connections: the library reconnects and resumes the open requests, also after a restart of
 * lagand. Every token is delivered exactly once. After a restart of lagand the score of an output
 * covers only the tokens since the restart. A request ends with LAGAN_EVENT_ERROR if it cannot be
 * resumed: its key `resume` is false; or it has several outputs, some tokens were delivered and
 * lagand has lost its state; or no lagand answered within lagan_set_reconnect_timeout().
 *
 * Errors: functions return 0 or a positive number on success, a negative errno value on failure.
 * lagan_errmsg() returns the sentence. Every function that allocates may return -ENOMEM. The
 * numbers of the errors of requests (LAGAN_E_...) and the limits (LAGAN_MAX_...) are in
 * lagan_wire.h.
 *
 * Text, in both directions, is UTF-8.
 *
 * Compatibility: within one soname, functions, event kinds and fields are only added. struct
 * lagan_event grows at its end; the caller sets the size that it was compiled with. Callers ignore
 * unknown event kinds. */
#ifndef LAGAN_H
#define LAGAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LAGAN_API_VERSION 1
#define LAGAN_EXPORT __attribute__((visibility("default")))

struct lagan;         /* a connection */
struct lagan_request; /* the keys of a request */

/* The events of a request arrive in this order: PROMPT, then TOKENS and TENSOR, one OUTPUT for each
 * output, DONE. ERROR may come at any point and is then the last event of the request. */
enum lagan_event_kind {
    LAGAN_EVENT_TOKENS = 1,   /* new tokens and text of one output */
    LAGAN_EVENT_PROMPT,       /* log-probabilities of prompt tokens, before the first TOKENS */
    LAGAN_EVENT_OUTPUT,       /* one output has ended; no further TOKENS of that output */
    LAGAN_EVENT_DONE,         /* the request has ended: its last event */
    LAGAN_EVENT_ERROR,        /* the request has failed: its last event */
    LAGAN_EVENT_DISCONNECTED, /* reconnect timeout passed; follows the ERROR events of requests */
    LAGAN_EVENT_TENSOR, /* rows of a requested tensor, before the tokens that they belong to */
    LAGAN_EVENT_REPLY   /* the result of lagan_start_call(): its last event */
};

struct lagan_top_logprob {
    int32_t id;    /* token id */
    float logprob; /* natural logarithm */
};

/* Pointers are valid until the next call with the same connection. A field whose comment does not
 * name the kind of the event is 0 or NULL. */
struct lagan_event {
    size_t size; /* set by the caller: sizeof(struct lagan_event) */
    enum lagan_event_kind kind;
    uint64_t id;     /* of lagan_submit() or lagan_start_call(); 0 for DISCONNECTED */
    uint32_t output; /* TOKENS, OUTPUT: index of the output, 0 .. n - 1 */
    uint32_t first;  /* TOKENS: index of ids[0] among the generated tokens; PROMPT: in the prompt */
    uint32_t n_ids;  /* TOKENS, PROMPT: number of tokens; may be 0 if there is only text */
    const int32_t *ids; /* [n_ids]; PROMPT: NULL unless lagand sent them */
    /* TOKENS: whole UTF-8 characters, not NUL-terminated; REPLY: the result as JSON, with a NUL */
    const char *text;
    size_t text_len;      /* bytes */
    const float *logprob; /* TOKENS, PROMPT: [n_ids], natural logarithm; NULL if not requested */
    uint32_t n_top;       /* TOKENS, PROMPT: alternatives of each token */
    const struct lagan_top_logprob *top; /* [n_ids][n_top], most likely first */
    uint32_t reason;         /* OUTPUT, ERROR, DISCONNECTED: enum lagan_reason of lagan_wire.h */
    const char *reason_name; /* name of reason: "eos", "length", ..., "too_long", ... */
    const char *message;     /* ERROR, DISCONNECTED: a sentence */
    int retryable;           /* ERROR, DISCONNECTED: 1 if the same request may succeed later */
    float score;             /* OUTPUT: the beam score, else the sum of the log-probabilities */
    uint64_t seed;           /* OUTPUT: the seed that was used */
    /* OUTPUT: n_tokens generated tokens; cached: prompt tokens whose KV was taken from the prefix
     * cache; resumed: workers that were lost on the way; adopted, recomputed: tokens whose KV the
     * replacement worker adopted or computed again. ERROR: n_tokens that were delivered before. */
    uint32_t n_tokens, cached, resumed, adopted, recomputed;
    /* TENSOR: values[0] is element first_value of the tensor in row-major order; a row has cols
     * elements. The logits of several outputs follow each other, those of output 0 first. */
    const float *values; /* [n_values] */
    size_t n_values;
    uint64_t first_value;
    uint32_t cols;
    const char *tensor_name; /* TENSOR: "encoder_output" or "logits" */
    /* OUTPUT, ERROR too_long: tokens of the prompt, of an encoder-decoder model those of the
     * encoder input; 0: unknown */
    uint32_t n_prompt_tokens;
    /* OUTPUT: KV blocks that were allocated; of these, never used before; prompt blocks found in
     * the prefix cache; prompt blocks computed */
    uint32_t blocks_allocated, blocks_allocated_new, blocks_reused, blocks_missed;
    /* All kinds but DISCONNECTED and REPLY: UNIX time in seconds at which lagand first accepted the
     * request, the same after a resume; 0: lagand refused it or did not say. */
    uint64_t accepted_at;
    /* OUTPUT with reason stop: the string of the key `stop` that ended the output, not
     * NUL-terminated; NULL if a token id of `stop_ids` did, which is then in stop_id. stop_id of
     * other OUTPUT events is -1. */
    const char *stop;
    size_t stop_len; /* bytes */
    int32_t stop_id;
    uint32_t max_len; /* ERROR too_long: the model's maximum length in tokens; 0: unknown */
};

/* ---- connections */

/* Connects to lagand. endpoint: "ipc://PATH"; NULL is ipc:///run/lagan/api.sock. timeout_ms: 0
 * returns at once and connects during later calls; above 0 waits that long for WELCOME;
 * below 0 waits without limit. On success *ret is owned by the caller until lagan_close(); on
 * failure *ret is unchanged and lagan_errmsg(NULL) has the sentence.
 * -ETIMEDOUT: no WELCOME in time. -EPROTO: lagand has no protocol version in common. -EINVAL: a tcp
 * endpoint, which needs lagan_open_keys(). -EPROTONOSUPPORT: the endpoint has another form than
 * ipc://PATH and tcp://HOST:PORT. -ENAMETOOLONG. */
LAGAN_EXPORT int lagan_open(struct lagan **ret, const char *endpoint, int timeout_ms);

/* lagan_open() for "tcp://HOST:PORT", which is always encrypted. keys: path of a file with the
 * lines `secret KEY` (the client's) and `server KEY` (lagand's public key); `laganctl keygen`
 * writes the keys. The file must be readable by its owner only.
 * Also -EACCES: other users may read the file, lagand does not know the key, or the encryption
 * handshake failed, in most cases because `server` is not lagand's key. -EHOSTUNREACH: the host
 * name cannot be resolved. -ECONNREFUSED and other errors of connect(). -ENOENT; -EINVAL: the file
 * has wrong or missing lines. -ENOTSUP: libzmq was built without CURVE. */
LAGAN_EXPORT int lagan_open_keys(struct lagan **ret, const char *endpoint, const char *keys,
                                 int timeout_ms);

/* Cancels the open requests, closes the connection (within 200 ms) and frees c. NULL is allowed. */
LAGAN_EXPORT void lagan_close(struct lagan *c);

/* Sets how long the library tries to reconnect before every open request ends with ERROR, and how
 * long it resubmits requests for whose model lagand has no worker. ms: milliseconds; below 0:
 * without limit; default 30,000. */
LAGAN_EXPORT void lagan_set_reconnect_timeout(struct lagan *c, int ms);

/* Returns a descriptor that is readable when lagan_next() has something to do. It belongs to c and
 * stays the same until lagan_close(). The caller only polls it. */
LAGAN_EXPORT int lagan_fd(const struct lagan *c);

/* Returns the sentence of the last failure of c, or "" if there was none. NULL: of this thread's
 * last lagan_open(), lagan_open_keys() or lagan_set_*(). The text belongs to the library and
 * changes with the next failure. */
LAGAN_EXPORT const char *lagan_errmsg(const struct lagan *c);

/* Returns 1 if lagand's last WELCOME has this name in `features` (LAGAN_FEATURES in lagan_wire.h),
 * else 0. -ENOTCONN: there was no WELCOME yet. */
LAGAN_EXPORT int lagan_has_feature(const struct lagan *c, const char *name);

/* Returns 1 if there is a connection on which lagand has sent WELCOME, else 0: requests then wait
 * for the next connection. Current as of the last lagan_next(). */
LAGAN_EXPORT int lagan_connected(const struct lagan *c);

/* Returns the version of the library, "MAJOR.MINOR.PATCH". */
LAGAN_EXPORT const char *lagan_version(void);

/* ---- requests */

/* Returns an empty request, or NULL if memory is exhausted. The caller frees it with
 * lagan_request_free() and may submit it any number of times. */
LAGAN_EXPORT struct lagan_request *lagan_request_new(void);
LAGAN_EXPORT void lagan_request_free(struct lagan_request *r); /* NULL is allowed */

/* Set one key. Names and meaning of the keys: table LAGAN_FIELDS in lagan_wire.h, REQUESTS in
 * lagan-protocol(7). A second value replaces the first. Values are copied. After a failure other
 * than -ENOMEM the request is unchanged; lagan_errmsg(NULL) has the sentence. lagand checks ranges
 * and combinations; a wrong one ends the request with LAGAN_E_INVALID_REQUEST, and other requests
 * of the connection continue.
 * -ENOENT: no request has this key; the sentence names a similar one. -EINVAL: the key takes
 * another kind of value (an integer is a number, too), or a number is not finite. -E2BIG: n exceeds
 * LAGAN_MAX_IDS, LAGAN_MAX_BIAS or LAGAN_MAX_STOPS. */
LAGAN_EXPORT int lagan_set_int(struct lagan_request *r, const char *key, int64_t v);
LAGAN_EXPORT int lagan_set_float(struct lagan_request *r, const char *key, double v);
LAGAN_EXPORT int lagan_set_bool(struct lagan_request *r, const char *key, int v);
/* s: n bytes of UTF-8; a terminating NUL is not needed. -EILSEQ: s is not UTF-8. -EMSGSIZE: n
 * exceeds LAGAN_MAX_STR. lagand ends a request whose text cannot fit into the model with
 * LAGAN_E_TOO_LONG. */
LAGAN_EXPORT int lagan_set_str(struct lagan_request *r, const char *key, const char *s, size_t n);
/* ids: n token ids, at most LAGAN_MAX_IDS. */
LAGAN_EXPORT int lagan_set_ids(struct lagan_request *r, const char *key, const int32_t *ids,
                               size_t n);
/* For logit_bias: bias[i] is added to the logit of token ids[i]. n: at most LAGAN_MAX_BIAS. */
LAGAN_EXPORT int lagan_set_bias(struct lagan_request *r, const char *key, const int32_t *ids,
                                const float *bias, size_t n);
/* s: n NUL-terminated strings. -EILSEQ, -EMSGSIZE: as lagan_set_str(). */
LAGAN_EXPORT int lagan_set_strs(struct lagan_request *r, const char *key, const char *const *s,
                                size_t n);

/* Submits a copy of r. *id is the number of the request in events, never 0 and never used twice by
 * one connection. Without a connection the request is sent after the next connect. On failure there
 * will be no event. -EMSGSIZE: longer than LAGAN_MAX_FRAME. -EAGAIN: too many messages wait to be
 * sent; call lagan_next() first. */
LAGAN_EXPORT int lagan_submit(struct lagan *c, const struct lagan_request *r, uint64_t *id);

/* Asks lagand to cancel a request. Events in flight still arrive; the last one is ERROR with
 * LAGAN_E_CANCELLED, or DONE if the request ended before. -ENOENT: the request is not open.
 * -EAGAIN: as for lagan_submit(). */
LAGAN_EXPORT int lagan_cancel(struct lagan *c, uint64_t id);

/* hold 1: the library acknowledges no further tokens of a request, until a call with hold 0. Events
 * arrive for the rest of the request's ack_window; then lagand keeps further tokens and suspends
 * the request. A caller that holds a request for longer than lagand's
 * api.ack_timeout loses it to the error LAGAN_E_SLOW_READER. -ENOENT: the request is not open. */
LAGAN_EXPORT int lagan_ack_hold(struct lagan *c, uint64_t id, int hold);

/* Reads the next event of any request. timeout_ms: 0 does not wait, below 0 waits without limit.
 * Returns 1 with *ev filled, or 0 if no event arrived in time. A lost connection is not a failure
 * (see the top of this file). -EINTR: a signal arrived. -EINVAL: ev->size is not set. */
LAGAN_EXPORT int lagan_next(struct lagan *c, struct lagan_event *ev, int timeout_ms);

/* ---- commands */

/* Calls a verb of LAGAN_VERBS in lagan_wire.h and waits for its result; events of requests that
 * arrive meanwhile are kept for lagan_next(). args: a JSON object, or NULL for none. *reply: the
 * result as JSON text; the caller passes it to free(). timeout_ms: below 0 waits without limit.
 * code may be NULL. -EREMOTEIO: lagand answered with an error; *code is its number (enum
 * lagan_reason) and lagan_errmsg() its message. -ETIMEDOUT. -ECONNRESET: the connection was lost;
 * whether lagand executed the verb is unknown. -EINTR: a signal arrived. -EINVAL: args is not JSON.
 * -EMSGSIZE, -EAGAIN as for lagan_submit(). */
LAGAN_EXPORT int lagan_call(struct lagan *c, const char *verb, const char *args, char **reply,
                            uint32_t *code, int timeout_ms);

/* Starts lagan_call() and returns at once: *id is the number of the call in events, where the
 * result arrives as REPLY, or ERROR. A call is sent once: if the connection is lost, it ends with
 * ERROR, and it is unknown whether lagand executed the verb. On failure there will be no event.
 * -EINVAL, -EMSGSIZE, -EAGAIN as for lagan_call(). */
LAGAN_EXPORT int lagan_start_call(struct lagan *c, const char *verb, const char *args,
                                  uint64_t *id);

#ifdef __cplusplus
}
#endif

#endif
