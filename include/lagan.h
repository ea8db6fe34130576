/* lagan.h - talk to lagand: open, submit, next event, cancel, close.
 *
 * One struct lagan is one connection and one thread's; open several for several threads. Nothing here
 * blocks but lagan_next() with a timeout and lagan_call(). lagan_fd() is for event loops: when it is
 * readable, call lagan_next() with timeout 0 until it returns 0.
 *
 *     struct lagan *c;
 *     struct lagan_event ev = { .size = sizeof ev };
 *     if (lagan_open(&c, NULL, 1000) < 0) ...
 *     struct lagan_request *r = lagan_request_new();
 *     lagan_set_str(r, "text", "12 = ", 5); lagan_set_int(r, "max_tokens", 32);
 *     uint64_t id; lagan_submit(c, r, &id);
 *     while (lagan_next(c, &ev, -1) > 0 && ev.kind == LAGAN_EVENT_TOKENS) fwrite(ev.text, 1, ev.text_len, stdout);
 *
 * Call lagan_next() at least every few seconds (or watch lagan_fd(), which also wakes for that): it
 * answers for the connection's life. A connection that is lost is made again behind the scenes, and its
 * requests go on, also when lagand itself was started anew: then they are submitted again with the
 * tokens that came, and no token comes twice or is left out. Of this a caller notices a pause, and the
 * score, which then is that of the tokens since. Only what cannot go on ends with an ERROR: a request
 * whose key `resume` is false, one with several outputs of which some came and that no lagand knows any more, and any when there is no lagand for longer than lagan_patience().
 *
 * Errors are negative errno values; lagan_why() has the sentence, for lagan_open() as lagan_why(NULL). Compatibility: additions only within
 * one soname; structs that the library fills carry their size in lagan_event.size and grow at the end.
 */
#ifndef LAGAN_H
#define LAGAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LAGAN_API_VERSION 1
#define LAGAN_EXPORT __attribute__((visibility("default")))

struct lagan;
struct lagan_request;

enum lagan_event_kind {
    LAGAN_EVENT_TOKENS = 1, /* new tokens and text of one output */
    LAGAN_EVENT_PROMPT,     /* prompt log-probabilities, before the first tokens */
    LAGAN_EVENT_OUTPUT,     /* one output is finished */
    LAGAN_EVENT_DONE,       /* the request is over: its last event */
    LAGAN_EVENT_ERROR,      /* the request is over, with code and message: its last event */
    LAGAN_EVENT_LOST,  /* no lagand for too long: every open request gets one ERROR before it */
    LAGAN_EVENT_TENSOR /* a piece of what was asked for beside tokens, before those it belongs to */
};

struct lagan_top {
    int32_t id;
    float logprob;
};

struct lagan_event { /* pointers are valid until the next call on the connection */
    size_t size;
    enum lagan_event_kind kind;
    uint64_t id;     /* as lagan_submit() gave it */
    uint32_t output; /* 0 .. n - 1 */
    uint32_t first;  /* position of ids[0] among the generated (TOKENS) or the prompt's (PROMPT) */
    uint32_t n_ids;
    const int32_t *ids; /* PROMPT: may be NULL */
    const char *text;   /* whole characters, not NUL-ended */
    size_t text_len;
    const float *logprob;        /* [n_ids], or NULL */
    uint32_t n_top;              /* tops of each token */
    const struct lagan_top *top; /* [n_ids][n_top], best first */
    uint32_t reason;             /* OUTPUT, ERROR: enum lagan_reason of lagan_wire.h */
    const char *word;            /* OUTPUT: "eos", "length", ...; ERROR: "too_long", ... */
    const char *message;
    int retryable;
    float score;
    uint64_t seed;
    uint32_t n_tokens, cached, resumed, adopted, recomputed;
    /* TENSOR: word names it, "encoder_output" or "logits"; values first_value .. + n_values of its rows of cols */
    const float *values;
    size_t n_values;
    uint64_t first_value;
    uint32_t cols;
};

/* endpoint NULL: ipc:///run/lagan/api.sock. Returns at once when timeout_ms is 0 (the connection is
 * made behind the scenes), else waits for WELCOME: -ETIMEDOUT. */
LAGAN_EXPORT int lagan_open(struct lagan **ret, const char *endpoint, int timeout_ms);
/* The same for tcp://HOST:PORT, with a file of keys: lines `secret KEY`, ours, and `server KEY`, lagand's
 * public one; laganctl keygen makes them. The file's mode is 0600. -EACCES: it is not, or lagand does not
 * know the key. */
LAGAN_EXPORT int lagan_open_keys(struct lagan **ret, const char *endpoint, const char *keys,
                                 int timeout_ms);
LAGAN_EXPORT void lagan_close(struct lagan *c); /* NULL is nothing; open requests are cancelled */
/* How long requests wait for a connection that broke to be made again, and then for a worker of their model where that
 * lagand has none; -1 for ever. 30,000 at first. */
LAGAN_EXPORT void lagan_patience(struct lagan *c, int ms);
LAGAN_EXPORT int lagan_fd(const struct lagan *c);
LAGAN_EXPORT const char *lagan_why(const struct lagan *c); /* NULL: this thread's lagan_open() */
LAGAN_EXPORT const char *lagan_version(void);

/* A request is a set of keys, named as in the manual: text, ids, max_tokens, temperature ... A key set
 * twice keeps the last. -EINVAL: the key is too long. Lists are copied. */
LAGAN_EXPORT struct lagan_request *lagan_request_new(void);
LAGAN_EXPORT void lagan_request_free(struct lagan_request *r);
LAGAN_EXPORT int lagan_set_int(struct lagan_request *r, const char *key, int64_t v);
LAGAN_EXPORT int lagan_set_float(struct lagan_request *r, const char *key, double v);
LAGAN_EXPORT int lagan_set_bool(struct lagan_request *r, const char *key, int v);
LAGAN_EXPORT int lagan_set_str(struct lagan_request *r, const char *key, const char *s, size_t n);
LAGAN_EXPORT int lagan_set_ids(struct lagan_request *r, const char *key, const int32_t *ids,
                               size_t n);
/* logit_bias: what is added to the logits of these tokens. */
LAGAN_EXPORT int lagan_set_bias(struct lagan_request *r, const char *key, const int32_t *ids,
                                const float *bias, size_t n);
LAGAN_EXPORT int lagan_set_strs(struct lagan_request *r, const char *key, const char *const *s,
                                size_t n);

LAGAN_EXPORT int lagan_submit(struct lagan *c, const struct lagan_request *r, uint64_t *id);
LAGAN_EXPORT int lagan_cancel(struct lagan *c, uint64_t id); /* its ERROR event still comes */
/* 1 and *ev (size set by the caller), 0 nothing within timeout_ms (-1: for ever). -EINTR: a signal came;
 * -ENOMEM; -EINVAL: no size. A connection that breaks is no failure here but an event. */
LAGAN_EXPORT int lagan_next(struct lagan *c, struct lagan_event *ev, int timeout_ms);

/* Everything but generate: verb and arguments as a JSON object (or NULL), the answer as JSON text in
 * *reply (free() it; lists of ids are lists of numbers). -ETIMEDOUT; -EINTR: a signal came; -ECONNRESET: the connection was
 * lost; an ERROR answer is -EREMOTEIO with its code in *code, words in lagan_why(). */
LAGAN_EXPORT int lagan_call(struct lagan *c, const char *verb, const char *args, char **reply,
                            uint32_t *code, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
