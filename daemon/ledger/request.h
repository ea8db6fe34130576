/* request.h - struct request, private to daemon/ledger and daemon/request.
 *
 * Other files use request_info() of ledger.h. ledger.c and ledger_load.c fill a new request.
 * Afterwards each part is changed by one file:
 *
 *     part         changed by               content
 *     (top level)  ledger/ledger.c          names, state, queue position, terms of the SUBMIT
 *     outputs      ledger/outputs.c         generated tokens and text that may still be sent
 *     suspicion    ledger/quarantine.c      faults that the request may have caused
 *     log          ledger/ledger_save.c     whether the ledger log has the request
 *     accounting   request/accounting.c     its share of its user's and lagand's limits
 *     delivery     request/deliver.c        how much its client has received it
 *     dispatch     request/dispatch.c       the worker that has it
 *     notify       request/worker_notify.c  notices that the worker has not got yet
 *     result       request/lifecycle.c      reason and figures of the end
 */
#pragma once

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/outputs.h"

struct request_outputs {
    uint32_t n_received, n_text_received; /* tokens and bytes of text that workers have sent */
    bool text_start_unknown;    /* began with generated_ids: a worker will report their text */
    uint32_t n_prompt_received; /* prompt positions with log-probabilities */
    struct bytes token;         /* i32: all tokens, delivered or not; a resume needs them */
    struct bytes text;          /* the same */
    uint32_t first_logprob;     /* log-probabilities before this token are dropped */
    struct bytes logprob, top;  /* f32, {i32, f32}[logprobs]: of the tokens from there on */
    struct bytes prompt_id, prompt_logprob, prompt_top; /* of prompt positions not delivered yet */
    struct output_tensor tensor[LAGAN_N_TENSORS];       /* by enum lagan_tensor, less 1 */
    float score;

    /* With several outputs. The client has all before span_at, and that much of the span. */
    struct request_output *each; /* [submit->n]; NULL: one output */
    struct bytes span;           /* struct stored_span[] */
    uint32_t span_at, span_n, span_text;
};

struct request_suspicion {
    uint32_t n_stuck;         /* faults since its last new token */
    uint32_t n_tokens_before; /* tokens it had at the last fault */
    uint8_t n_faults;         /* faults that its own step may have caused */
    bool cleared;             /* it ran alone past fault_at; at most once */
    uint32_t fault_at;        /* tokens it had at the last such fault */
};

struct request_log {
    bool logged;
};

struct request_accounting {
    uint64_t n_tokens; /* prompt and all that may be generated, an estimate for text */
    bool charged;      /* to its user and in the fair queue, until it ends */
    uint32_t user;
    uint64_t bytes; /* reserved against api.memory; 0: released */
};

struct request_delivery {
    uint32_t n_tokens, n_text, n_prompt; /* delivered: tokens, bytes of text, prompt positions */
    uint32_t ack_window, n_chunks, n_acked;
    /* When chunk mark_chunk is acked, tokens before mark_token are not needed again, and the client
     * has read mark_sent bytes. chunk_sent: bytes sent to the client up to the last chunk. */
    uint32_t mark_chunk, mark_token;
    uint64_t mark_sent, chunk_sent;
    uint64_t last_resume; /* number of the RESUME that named it last */
    nsec stalled_since;   /* no credit, or send_blocked; 0: neither */
    nsec client_left_at;  /* while not attached */
    bool send_blocked;    /* too many unread bytes; tried again at d->retry_at */
};

struct request_dispatch {
    bool held;        /* a worker may still send records of it */
    uint32_t worker;  /* that has it, or had it last */
    uint32_t home;    /* 1 + the worker that had it last, if its KV may be there; 0: none */
    nsec home_until;  /* until then it waits for that worker */
    uint32_t resumed; /* ends of workers and lagands so far */
};

struct request_notify {
    bool suspended;    /* its client does not read: the worker must not schedule it */
    bool suspend_sent; /* `suspended` as the worker knows it */
    bool suspend_due;  /* the request ring was full: SUSPEND is sent later */
    bool cancel_due;   /* the same for CANCEL */
    uint16_t cancel_reason;
};

struct request_result {
    uint16_t reason; /* enum lagan_reason, from REQUEST_ENDED on */
    nsec ended_at;
    uint32_t cached, adopted, recomputed; /* tokens */
    uint32_t n_prompt_tokens;             /* exact; 0: unknown */
    char message[200];
};

struct request {
    enum request_state state;
    uint32_t index, gen;
    uint32_t next, prev;   /* queue, retained requests, or free list */
    uint32_t next_pending; /* list of requests with something to deliver */
    bool pending;          /* in that list */
    bool attached;         /* `client` is connected and has not received all */
    bool named;            /* has a session; found by its names */
    bool retained;         /* ended and delivered; found by its names until it expires */
    req_id id;
    uint64_t rid; /* the client's number */
    struct session_id session;
    uint8_t n_key; /* 0: no idempotency key */
    char key[LAGAN_MAX_KEY];
    uint32_t client;
    uint64_t fair_tag; /* order among requests of its priority: base/fair_queue.h */
    struct request_terms terms;
    uint64_t n_prompt_tokens; /* an estimate for text */

    struct rec_submit *submit; /* the record with its tails, submit_bytes long; n_done is 0 in it */
    uint32_t submit_bytes;

    struct request_outputs outputs;
    struct request_suspicion suspicion;
    struct request_log log;
    struct request_accounting accounting;
    struct request_delivery delivery;
    struct request_dispatch dispatch;
    struct request_notify notify;
    struct request_result result;
};
