/* request.h - the worker's memory for requests: a fixed number of slots, each with its own buffer.
 *
 * A slot's buffer (ids, prompt text, stop strings) is a part of one large mapping. Its pages are
 * resident only after use and are returned to the system when a long request ends. So a request of
 * any legal length is one contiguous array, and serving allocates nothing.
 *
 * A request with beams or several outputs has a slot for each of them, chained from the first
 * (outputs.h). While state is REQUEST_TEXT the text thread owns the slot, otherwise the engine
 * thread.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/exec/exec.h"
#include "worker/sched/seq.h"
#include "worker/text/detok.h"

enum request_state {
    REQUEST_FREE,
    REQUEST_TEXT, /* owned by the text thread */
    REQUEST_LIVE  /* owned by the scheduler */
};
enum request_kind { REQUEST_GENERATE, REQUEST_TOKENIZE, REQUEST_DETOKENIZE };

struct worker_request {
    _Alignas(CACHE_LINE) struct seq seq; /* seq.owner is this struct */
    struct sampling sampling; /* passed to exec_set_sampling() when the sequence gets its slot */
    struct detok detok;
    enum request_state state;
    enum request_kind kind;
    uint32_t slot, ledger_index, gen; /* its ledger entry and generation in lagand */
    uint32_t skip; /* free slots only: the next free slot is slot + 1 + skip, modulo 2^32 */
    uint16_t output;
    struct worker_request *first; /* of several outputs: the first slot; NULL: one output */
    struct worker_request *next;
    uint32_t n_outputs; /* first slot: outputs to report; further slots are beams only */

    token_id *ids; /* [max_ids] encoder input first, then the decoder's tokens */
    char *text;    /* prompt text, or the text of a call */
    char *stops;
    uint32_t n_ids, n_text;
    bool bare;       /* calls: no template tokens; detokenize: keep special tokens */
    bool chat;       /* text is a conversation */
    uint16_t reason; /* set by the text thread on failure: enum lagan_reason */
    char why[200];
    uint16_t cancelled; /* reason to end with, applied when the engine owns the slot; 0: none */

    bool has_text;  /* detok is in use: records carry text */
    bool finished;  /* FINISH has been queued */
    bool suspended; /* its client does not read */
    bool want_logprobs;
    uint32_t max_tokens;             /* requested, delivered tokens included */
    uint32_t max_length, min_length; /* the model's defaults, prompt included; 0: none */
    uint32_t n_source, n_decoder;    /* tokens in ids, once known */
    uint32_t n_prompt_tokens;        /* of the encoder input or the prompt, once known */
    /* Generated tokens and text bytes reported, delivered ones included. */
    uint32_t n_sent, n_text_sent;
    float score;                           /* sum of log-probabilities */
    struct beam beam;                      /* first slot of a search */
    struct logit_bias bias[EXEC_MAX_BIAS]; /* storage of sampling.bias */
    uint32_t adopted, recomputed; /* KV positions of the previous worker: adopted; computed again */
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

/* ids: tokens of a slot, source and decoder together; text: bytes of its prompt text. -ENOMEM. */
int requests_open(struct requests *q, uint32_t n, uint32_t ids, uint32_t text,
                  struct err *e) MUST_USE;
void requests_close(struct requests *q);
struct worker_request *request_take(struct requests *q); /* NULL: none free */
void request_give(struct requests *q, struct worker_request *r);
/* Returns the slot of (ledger_index, gen), or NULL. Linear in slots: for rare records only. */
struct worker_request *request_find(struct requests *q, uint32_t ledger_index, uint32_t gen);
/* Returns why a resumed request had already ended, or 0. Its worker may have died after reporting
 * the last token and before FINISH. last: its last token. */
uint16_t request_had_ended(const struct worker_request *r, token_id last, uint32_t max_len);
