/* request.h - struct request, one entry of the ledger; private to daemon/ledger and daemon/request.
 *
 * Other folders call request_info() of ledger.h. ledger.c and ledger_load.c fill a new request.
 * Afterwards only one file changes each part of the struct:
 *
 *     part         changed by               content
 *     (top level)  ledger/ledger.c          names, state, queue position, terms of the SUBMIT
 *     outputs      ledger/outputs.c         generated tokens and text that may still be sent
 *     suspicion    ledger/quarantine.c      faults that the request may have caused
 *     log          ledger/ledger_save.c     whether the ledger log has the request
 *     accounting   request/accounting.c     its share of its user's and lagand's limits
 *     delivery     request/deliver.c        how much of it its client has received
 *     dispatch     request/dispatch.c       the worker that has it
 *     notify       request/worker_notify.c  CANCEL and SUSPEND notices not yet sent to the worker
 *     latency      request/latency.c        times of its tokens
 *     result       request/lifecycle.c      the reason of its end and the counters of DONE */
#pragma once
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/outputs.h"

struct request_outputs {
    uint32_t n_received, n_text_received; /* tokens and bytes of text that workers have sent */
    bool text_start_unknown;    /* no worker has reported the length of the generated_ids' text */
    uint32_t n_prompt_received; /* prompt positions whose log-probabilities a worker has sent */
    struct bytes token;         /* i32: all tokens; delivered ones are kept for a resume */
    struct bytes text;          /* all text; delivered text is kept for a resume */
    uint32_t first_logprob;     /* logprob and top start at this token; earlier ones are dropped */
    struct bytes logprob, top;  /* for each token: f32; {i32, f32}[logprobs] */
    struct bytes prompt_id, prompt_logprob, prompt_top; /* of prompt positions not delivered yet */
    struct output_tensor tensor[LAGAN_N_TENSORS];       /* index: enum lagan_tensor minus 1 */
    float score;

    /* Several outputs: the client has spans [0, span_at), then span_n tokens, span_text bytes. */
    struct request_output *each; /* [submit->n]; NULL: the request has one output */
    struct bytes span;           /* struct stored_span[] */
    uint32_t span_at, span_n, span_text;
};

struct request_suspicion {
    uint32_t n_stuck;         /* faults of its workers since its last new token */
    uint32_t n_tokens_before; /* tokens it had at its worker's last fault */
    uint8_t n_faults;         /* faults with a step of this request in flight */
    bool cleared;             /* it ran alone past fault_at; it cannot be cleared again */
    uint32_t fault_at;        /* tokens it had at the last fault counted in n_faults */
};

struct request_log {
    bool logged; /* the ledger log has the request; later changes are written too */
};

struct request_accounting {
    uint64_t n_tokens; /* prompt tokens (estimated for text) plus the most that can be generated */
    bool charged;      /* n_tokens count for its user and in the fair queue */
    uint32_t user;
    uint64_t bytes; /* reserved against api.memory; 0: released */
};

struct request_delivery {
    uint32_t n_tokens, n_text, n_prompt; /* delivered: tokens, bytes of text, prompt positions */
    uint32_t ack_window, n_chunks, n_acked;
    /* When the client acknowledges chunk mark_chunk, log-probabilities before token mark_token can
     * be freed, and the client has read mark_sent bytes of its connection. chunk_sent: bytes sent
     * on the connection up to the last chunk. */
    uint32_t mark_chunk, mark_token;
    uint64_t mark_sent, chunk_sent;
    uint64_t last_resume; /* number (d->n_resumes) of the last RESUME message that listed it */
    nsec stalled_since;   /* since when credit is 0 or send_blocked is true; 0: neither */
    nsec client_left_at;  /* when its connection ended; used while it is not attached */
    bool send_blocked;    /* the connection has too many unread bytes; next try at d->retry_at */
};

struct request_dispatch {
    bool held;        /* a worker may still send records of it */
    uint32_t worker;  /* index of the worker that has it, or had it last */
    uint32_t home;    /* 1 + index of the worker whose arena may still have its KV; 0: none */
    nsec home_until;  /* until this time it is queued for worker `home` only */
    uint32_t resumed; /* how often it continued after the end of a worker or of lagand */
    uint64_t load;    /* its tokens in worker_requests.tokens, without those found in the cache */
};

struct request_notify {
    bool suspended;    /* its client does not read: the worker must not schedule it */
    bool suspend_sent; /* the value of `suspended` that was sent to the worker last */
    bool suspend_due;  /* SUSPEND did not fit into the request ring and is sent later */
    bool cancel_due;   /* CANCEL did not fit into the request ring and is sent later */
    uint16_t cancel_reason;
};

struct request_latency {
    nsec first_token; /* when lagand received its first token; 0: none yet */
    nsec token_at;    /* its last token; if it has several outputs: request_output.token_at */
};

struct request_result {
    uint16_t reason; /* enum lagan_reason, once the state is REQUEST_ENDED */
    uint16_t stop;   /* as request_output.stop */
    nsec ended_at;
    uint32_t cached, adopted, recomputed; /* tokens whose KV was reused, adopted, recomputed */
    uint32_t n_prompt_tokens;             /* counted by the worker; 0: unknown */
    struct rec_kv_blocks kv_blocks;
    char message[200];
};

struct request {
    enum request_state state;
    uint32_t index, gen;
    uint32_t next, prev;   /* links in the queue, the retained requests or the free list */
    uint32_t next_pending; /* link in the list of requests with a message to deliver */
    bool pending;          /* it is in the pending list */
    bool attached;         /* `client` is connected and has not received DONE or ERROR */
    bool named;            /* it is found by (session, rid) and (session, key) */
    bool retained;         /* ended and delivered; kept until it expires, for a repeated SUBMIT */
    req_id id;
    uint64_t rid; /* the request id that the client chose */
    struct session_id session;
    uint8_t n_key; /* 0: no idempotency key */
    char key[LAGAN_MAX_KEY];
    uint32_t client;
    uint64_t fair_tag; /* order among requests of equal priority: base/fair_queue.h */
    struct request_terms terms;
    uint64_t n_prompt_tokens; /* an estimate if the prompt is text */

    struct rec_submit *submit; /* record and tails; n_done is 0: generated tokens are in outputs */
    uint32_t submit_bytes;

    struct request_outputs outputs;
    struct request_suspicion suspicion;
    struct request_log log;
    struct request_accounting accounting;
    struct request_delivery delivery;
    struct request_dispatch dispatch;
    struct request_notify notify;
    struct request_latency latency;
    struct request_result result;
};
