/* request.h - the worker's memory for requests: a fixed number of slots, each with room of its own.
 *
 * A slot's room (ids, prompt text, stop strings) is a part of one large mapping that costs nothing
 * until it is touched and is given back to the system when a long request ends. So a request of any
 * legal length is one contiguous array, and serving allocates nothing.
 *
 * A request with beams or several outputs has a slot for each of them, chained from the first
 * (outputs.h).
 *
 * While state is REQUEST_TEXT the slot belongs to the text thread; else to the engine.
 */
#ifndef WORKER_IO_REQUEST_H
#define WORKER_IO_REQUEST_H

#include "base/base.h"
#include "base/err.h"
#include "worker/exec/exec.h"
#include "worker/sched/seq.h"
#include "worker/text/detok.h"

enum request_state {
    REQUEST_FREE,
    REQUEST_TEXT, /* with the text thread */
    REQUEST_LIVE  /* with the scheduler */
};
enum request_kind { REQUEST_GENERATE, REQUEST_TOKENIZE, REQUEST_DETOKENIZE };

struct worker_request {
    _Alignas(CACHE_LINE) struct seq seq; /* seq.owner is this struct */
    struct sampling sampling; /* what exec_set_sampling() gets when the sequence gets its slot */
    struct detok detok;
    enum request_state state;
    enum request_kind kind;
    uint32_t slot, ledger_index, gen; /* its ledger entry and generation in lagand */
    /* Of a free one: the next free is the one behind it and so many more, modulo 2^32. */
    uint32_t skip;
    uint16_t output;
    struct worker_request *first,
        *next;          /* of several: the first slot, in each; NULL: it is alone */
    uint32_t n_outputs; /* the first's: to be told; slots behind them are beams only */

    token_id *ids; /* room.ids of them: source first, then the decoder's tokens */
    char *text;    /* prompt text, or what a call is about */
    char *stops;
    uint32_t n_ids, n_text;
    bool bare;       /* calls: no template tokens; detokenize: keep special ones */
    bool chat;       /* text is a conversation */
    uint16_t reason; /* set by the text thread on failure: enum lagan_reason */
    char why[200];
    uint16_t cancelled; /* reason to end with as soon as it is ours again; 0: go on */

    bool has_text;  /* detok is in use: text goes out with the tokens */
    bool finished;  /* its FINISH has been sent */
    bool suspended; /* its client does not read */
    bool want_logprobs;
    uint32_t max_tokens;             /* asked for, delivered ones included */
    uint32_t max_length, min_length; /* the model's defaults, prompt included; 0: none */
    uint32_t n_source, n_decoder;    /* of ids, once known */
    uint32_t n_sent,
        n_text_sent;  /* generated tokens and text bytes sent, delivered ones included */
    float score;      /* sum of log-probabilities */
    struct beam beam; /* the first's, of a search */
    struct logit_bias bias[EXEC_MAX_BIAS]; /* of sampling */
    uint32_t adopted, recomputed; /* positions a predecessor left: taken over, and computed again */
};

/* The fixed pool of requests. */
struct requests {
    struct worker_request *slot; /* [n] */
    uint32_t n, n_used, first_free;
    uint32_t max_ids, max_text_bytes;
    size_t buffer_bytes;
    char *buffers; /* [n] buffer_bytes each */
};

enum { REQUEST_STOPS_BYTES = 16 * 260 };

/* ids: a slot's tokens, source and decoder together; text: bytes of its prompt text. */
int requests_open(struct requests *q, uint32_t n, uint32_t ids, uint32_t text,
                  struct err *e) MUST_USE;
void requests_close(struct requests *q);
struct worker_request *request_take(struct requests *q); /* NULL: none free */
void request_give(struct requests *q, struct worker_request *r);
/* The slot of (ledger_index, gen), or NULL. Linear in slots: for cancels, which are rare. */
struct worker_request *request_find(struct requests *q, uint32_t ledger_index, uint32_t gen);
/* One that goes on may have nothing left to do: its worker died between its last token and the
 * word that it was the last. Why it ended, or 0. */
uint16_t request_had_ended(const struct worker_request *r, token_id last, uint32_t max_len);

#endif
