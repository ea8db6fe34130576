/* ledger_save.h - writes the ledger into its log, from which the next lagand restores it.
 *
 * Only requests with names are saved, because no client could ask for the others. Requests for
 * prompt log-probabilities or tensors are not saved, because these are not retained; their clients
 * submit them again. A request is written before a worker gets it, its tokens before its client
 * gets them. If the log is full, it is invalid until the ledger is empty: requests continue, and a
 * restart of lagand would lose them, which is logged once.
 *
 * Records are appended. The log is rewritten from the ledger when it has doubled its size.
 */
#pragma once

#include "base/base.h"
#include "base/clock.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/outputs.h"
#include "daemon/persist/log_file.h"
#include "include/lagan_wire.h"
#include "ipc/layout.h"

struct config;

/* Flags of a SUBMIT that is not saved. */
#define LEDGER_NOT_SAVED (SUBMIT_PROMPT_LOGPROBS | SUBMIT_LOGITS | SUBMIT_ENCODER_OUTPUT)
#define LEDGER_LOG_BYTES (UINT64_C(128) << 20) /* of one half of the file */

/* Records of the log. The layout is ABI between two versions of lagand: a change needs another
 * LOG_FILE_MAGIC. */
enum { SAVED_REQUEST = 1, SAVED_TOKENS = 2, SAVED_STATE = 3, SAVED_END = 4, SAVED_IDS = 5 };
enum { SAVED_UNNAME = 6, SAVED_RID = 7 };
struct saved_request {
    uint64_t id, rid;
    struct session_id session;
    int64_t accepted, deadline; /* CLOCK_MONOTONIC: a memfd ends with the boot */
    int64_t disconnect_timeout;
    uint32_t ack_window, submit_bytes;
    uint8_t n_key, no_resume, pad[6];
    char key[LAGAN_MAX_KEY], model[64];
    /* rec_submit with its tails */
};
struct saved_tokens { /* they follow the tokens of earlier records */
    uint64_t id;
    uint32_t first, n, n_text;
    uint32_t lp_first; /* log-probabilities of the tokens from there on */
    float score;
    uint32_t text_received; /* bytes of text that workers have sent, with the client's part */
    uint32_t text_start_unknown;
    uint32_t n_spans; /* with several outputs */
    /* i32 token[n]; f32 logprob[]; {i32, f32} top[][logprobs]; text; struct output_span[n_spans];
     * packed */
};
struct saved_state {
    uint64_t id;
    uint32_t resumed, n_stuck, n_tokens_before, fault_at;
    uint8_t n_faults, cleared, pad[2];
    uint32_t home;
};
struct saved_end {
    uint64_t id;
    int64_t ended;
    float score;
    uint32_t cached, adopted, recomputed;
    uint16_t reason, pad;
    uint32_t n_prompt_tokens;
    char message[200];
    /* with several outputs: struct request_output[n] */
};
struct saved_ids {
    uint64_t last; /* ids up to this one are used, also by requests that are not saved */
};
struct saved_unname {
    uint64_t id; /* its names are removed */
};
struct saved_rid {
    uint64_t id, rid; /* its new rid */
};
_Static_assert(sizeof(struct saved_request) == 200, "saved_request");
_Static_assert(sizeof(struct saved_tokens) == 40, "saved_tokens");
_Static_assert(sizeof(struct saved_state) == 32, "saved_state");
_Static_assert(sizeof(struct saved_end) == 240, "saved_end");

/* The layout of all records of the log; see ipc/layout.h. */
/* clang-format off */
#define LEDGER_LOG_LAYOUT_SUM (SUBMIT_LAYOUT_SUM \
    LAYOUT(log_file_hdr, half) LAYOUT(log_file_half, generation) \
    LAYOUT(log_file_half, not_generation) LAYOUT(log_file_record, crc) \
    LAYOUT(log_file_record, type) LAYOUT(log_file_record, len) \
    LAYOUT(log_file_record, generation) LAYOUT(saved_request, id) LAYOUT(saved_request, rid) \
    LAYOUT(saved_request, session) LAYOUT(saved_request, accepted) \
    LAYOUT(saved_request, deadline) LAYOUT(saved_request, disconnect_timeout) \
    LAYOUT(saved_request, ack_window) LAYOUT(saved_request, submit_bytes) \
    LAYOUT(saved_request, n_key) LAYOUT(saved_request, no_resume) LAYOUT(saved_request, key) \
    LAYOUT(saved_request, model) LAYOUT(saved_tokens, id) LAYOUT(saved_tokens, first) \
    LAYOUT(saved_tokens, n) LAYOUT(saved_tokens, n_text) LAYOUT(saved_tokens, lp_first) \
    LAYOUT(saved_tokens, score) LAYOUT(saved_tokens, text_received) \
    LAYOUT(saved_tokens, text_start_unknown) LAYOUT(saved_tokens, n_spans) \
    LAYOUT(saved_state, id) LAYOUT(saved_state, resumed) LAYOUT(saved_state, n_stuck) \
    LAYOUT(saved_state, n_tokens_before) LAYOUT(saved_state, fault_at) \
    LAYOUT(saved_state, n_faults) LAYOUT(saved_state, cleared) LAYOUT(saved_state, home) \
    LAYOUT(saved_end, id) LAYOUT(saved_end, ended) LAYOUT(saved_end, score) \
    LAYOUT(saved_end, cached) LAYOUT(saved_end, adopted) LAYOUT(saved_end, recomputed) \
    LAYOUT(saved_end, reason) LAYOUT(saved_end, n_prompt_tokens) LAYOUT(saved_end, message) \
    LAYOUT(saved_ids, last) \
    LAYOUT(saved_unname, id) LAYOUT(saved_rid, id) LAYOUT(saved_rid, rid) \
    LAYOUT(output_span, output) LAYOUT(output_span, n) LAYOUT(output_span, n_text) \
    LAYOUT(output_span, score) LAYOUT(request_output, n_received) \
    LAYOUT(request_output, n_text_received) LAYOUT(request_output, score) \
    LAYOUT(request_output, reason) LAYOUT(request_output, cached) LAYOUT(request_output, adopted) \
    LAYOUT(request_output, recomputed))
/* clang-format on */

/* Changed by ledger_save.c only; tests shorten the file. */
struct ledger_log {
    struct log_file file;
    struct ledger *ledger;
    const struct config *config;
    uint64_t rewrite_above; /* bytes */
    bool invalid;           /* no space for the ledger, or not read yet */
    req_id seen_id;         /* requests up to this id were written or skipped */
};

/* A log without a file. l and c must outlive it. NULL: no memory. */
struct ledger_log *ledger_log_new(struct ledger *l, const struct config *c) MUST_USE;
struct ledger_log *ledger_log_free(struct ledger_log *g);

/* Reads the file of a previous lagand and restores its requests, queued or retained. fd -1 or an
 * invalid file: creates a new one; without memory the log has no file. Problems are logged. Nothing
 * is written before ledger_log_start(). Returns true if a file was read. */
bool ledger_log_open(struct ledger_log *g, int fd);
/* Writes the ledger into the file, and every change from now on. */
void ledger_log_start(struct ledger_log *g);
int ledger_log_fd(const struct ledger_log *g); /* -1: no file */

/* Write a change of a request. No effect if the request is not saved, without a file, and for a
 * NULL log (tests). */
void ledger_save_new(struct ledger_log *g); /* requests accepted since the last call */
/* Its last n tokens and n_text bytes. */
void ledger_save_tokens(struct ledger_log *g, const struct request *r, uint32_t n, uint32_t n_text);
void ledger_save_state(struct ledger_log *g, const struct request *r); /* worker and suspicion */
void ledger_save_end(struct ledger_log *g, const struct request *r);
void ledger_save_rid(struct ledger_log *g, const struct request *r);
void ledger_save_unname(struct ledger_log *g, struct request *r); /* before its names are removed */
