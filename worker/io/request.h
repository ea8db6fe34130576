/* request.h - the worker's memory for requests: a fixed number of slots, each with its own buffer.
 * A slot here is one struct worker_request, not a sequence slot of the device tables.
 *
 * The buffer of a slot (ids, prompt text, stop strings) is a part of one large mapping. Its pages
 * are resident only after use and are returned to the system when a long request ends. So the
 * tokens of any request are one contiguous array, and serving allocates no memory.
 *
 * A request with beams or several outputs has a slot for each of them, chained from the first
 * (outputs.h). The text thread owns a slot in state REQUEST_TEXT, else the engine thread. */
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
    _Alignas(CACHE_LINE) struct seq seq; /* for the scheduler; seq.owner is this struct */
    struct sampling sampling; /* passed to exec_set_sampling() at the first chunk of the sequence */
    struct detok detok;
    enum request_state state;
    enum request_kind kind;
    uint32_t slot, ledger_index, gen; /* its ledger entry and generation in lagand */
    uint32_t skip; /* free slots only: the next free slot is slot + 1 + skip, modulo 2^32 */
    uint16_t output;
    struct worker_request *first; /* first slot of a request with several; NULL: it has one slot */
    struct worker_request *next;  /* next slot of the same request */
    uint32_t n_outputs; /* first slot: outputs to report; further slots are beams without output */

    token_id *ids;     /* [max_ids] encoder input first, then the decoder's tokens */
    char *text;        /* prompt text, or the text of a text call */
    char *stops;       /* [REQUEST_STOPS_BYTES] storage of the stop strings */
    char *rows;        /* kept logit rows (search_rows.h); NULL: the pool has none */
    size_t rows_bytes; /* of rows, the first that are in use */
    uint32_t n_ids, n_text;
    bool bare; /* text call: tokenize adds no template tokens, detokenize keeps special ones */
    bool chat; /* text is a conversation (JSON messages), not plain text */
    uint16_t reason; /* why the text thread failed, enum lagan_reason; why[]: its sentence */
    char why[200];
    uint16_t cancelled; /* reason with which it must end, applied by the engine thread; 0: none */

    bool has_text;  /* STEP records carry text, made by detok */
    bool finished;  /* FINISH has been queued */
    bool suspended; /* the client does not read: the scheduler must not run it */
    bool want_logprobs;
    uint32_t max_tokens;             /* most generated tokens, delivered ones included */
    uint32_t max_length, min_length; /* the model's default lengths, prompt included; 0: none */
    uint32_t n_source, n_decoder;    /* tokens of encoder input and decoder in ids, once known */
    uint32_t n_prompt_tokens;        /* tokens of the encoder input or prompt, once known */
    nsec scheduled;                  /* launch of the first step of the request; 0: none yet */
    /* Generated tokens and text bytes sent to lagand, by this worker or a previous one. */
    uint32_t n_sent, n_text_sent;
    float score;                           /* sum of log-probabilities of the generated tokens */
    struct beam beam;                      /* the beam search; used in its first slot only */
    struct logit_bias bias[EXEC_MAX_BIAS]; /* storage of sampling.bias */
    struct kv_keep keep;                   /* storage of seq.keep: cache_priority */
    uint32_t adopted, recomputed;          /* tokens whose KV was adopted; is computed again */
};

/* The pool of request slots. */
struct requests {
    struct worker_request *slot;    /* [n] */
    uint32_t n, n_used, first_free; /* first_free: index of the first free slot; n: none is free */
    uint32_t max_ids, max_text_bytes;
    size_t buffer_bytes;
    char *buffers;    /* [n] buffer_bytes each */
    size_t row_bytes; /* 0: none */
    char *rows;       /* [n] row_bytes each; NULL: none */
};

enum { REQUEST_STOPS_BYTES = 16 * 260 };

/* Maps n slots. ids: tokens of a slot, encoder and decoder; text: bytes of prompt text. -ENOMEM. */
int requests_open(struct requests *q, uint32_t n, uint32_t ids, uint32_t text,
                  struct err *e) MUST_USE;
/* Maps this many bytes of each slot for kept logit rows. Without memory for all there are none. */
void requests_open_rows(struct requests *q, size_t bytes);
void requests_close(struct requests *q);
struct worker_request *request_take(struct requests *q); /* NULL: no slot is free */
void request_give(struct requests *q, struct worker_request *r);
/* Returns the first slot of request (ledger_index, gen); NULL: unknown. Walks all slots. */
struct worker_request *request_find(struct requests *q, uint32_t ledger_index, uint32_t gen);
/* Returns the finish reason of a resumed request whose delivered tokens are complete: its worker
 * died between the last token and FINISH. 0: not complete. last: its last token. */
uint16_t request_had_ended(const struct worker_request *r, token_id last, uint32_t max_len);
