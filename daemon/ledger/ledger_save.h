/* ledger_save.h - writes the ledger into its log; the next lagand restores it (ledger_load.c).
 *
 * Only requests with names are saved, because after a restart no client could name the others.
 * Requests for prompt log-probabilities or tensors are not saved, because these data are not
 * retained; their clients submit the requests again. A request is written before a worker gets it,
 * its tokens before its client gets them. A log that is full is invalid until the ledger has no
 * open request: requests continue, but a restart of lagand would lose them, which is logged once.
 *
 * Records are appended to the valid half of the log file. When the log has doubled its size, it is
 * rewritten from the ledger into the other half, which then is the valid one (log_file.h). */
#pragma once
#include "base/base.h"
#include "base/clock.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/outputs.h"
#include "daemon/persist/log_file.h"
#include "include/lagan_wire.h"
#include "ipc/layout.h"

struct config;

/* A SUBMIT with one of these flags is not saved. */
#define LEDGER_NOT_SAVED (SUBMIT_PROMPT_LOGPROBS | SUBMIT_LOGITS | SUBMIT_ENCODER_OUTPUT)
#define LEDGER_LOG_BYTES (UINT64_C(128) << 20) /* capacity of each half of the file (log_file.h) */

/* Records of the log, an ABI between versions of lagand: a change needs another LOG_FILE_MAGIC. */
enum { SAVED_REQUEST = 1, SAVED_TOKENS = 2, SAVED_STATE = 3, SAVED_END = 4, SAVED_IDS = 5 };
enum { SAVED_UNNAME = 6, SAVED_RID = 7 };
struct saved_request {
    uint64_t id, rid;
    struct session_id session;
    int64_t accepted, deadline; /* CLOCK_MONOTONIC; a reboot ends clock and memfd */
    int64_t disconnect_timeout;
    uint32_t ack_window, submit_bytes;
    uint64_t accepted_at; /* UNIX time in seconds */
    uint8_t n_key, no_resume, n_request_id, pad[5];
    char key[LAGAN_MAX_KEY], model[64], request_id[LAGAN_MAX_REQUEST_ID];
    /* rec_submit with its tails */
};
struct saved_tokens { /* tokens [first, first + n) of a request */
    uint64_t id;
    uint32_t first, n, n_text;
    uint32_t lp_first; /* the record has log-probabilities of tokens [lp_first, first + n) */
    float score;
    uint32_t text_received; /* bytes of text of all tokens, the client's generated_ids included */
    uint32_t text_start_unknown;
    uint32_t n_spans; /* 0: the request has one output */
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
    uint16_t reason, stop;
    uint32_t n_prompt_tokens;
    struct rec_kv_blocks kv_blocks;
    char message[200];
    /* then, if the request has several outputs, struct request_output[n] */
};
struct saved_ids {
    uint64_t last; /* ids up to this one are used, some by requests that are not saved */
};
struct saved_unname {
    uint64_t id; /* of the request whose names are removed */
};
struct saved_rid {
    uint64_t id, rid; /* a request and its new rid */
};
_Static_assert(sizeof(struct saved_request) == 336, "saved_request");
_Static_assert(sizeof(struct saved_tokens) == 40, "saved_tokens");
_Static_assert(sizeof(struct saved_state) == 32, "saved_state");
_Static_assert(sizeof(struct saved_end) == 256, "saved_end");

/* A checksum of the offsets of all fields in the log (ipc/layout.h); changes with the layout. */
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
    LAYOUT2(saved_request, model, accepted_at) LAYOUT2(saved_request, n_request_id, request_id) \
    LAYOUT(saved_tokens, id) LAYOUT(saved_tokens, first) \
    LAYOUT(saved_tokens, n) LAYOUT(saved_tokens, n_text) LAYOUT(saved_tokens, lp_first) \
    LAYOUT(saved_tokens, score) LAYOUT(saved_tokens, text_received) \
    LAYOUT(saved_tokens, text_start_unknown) LAYOUT(saved_tokens, n_spans) \
    LAYOUT(saved_state, id) LAYOUT(saved_state, resumed) LAYOUT(saved_state, n_stuck) \
    LAYOUT(saved_state, n_tokens_before) LAYOUT(saved_state, fault_at) \
    LAYOUT(saved_state, n_faults) LAYOUT(saved_state, cleared) LAYOUT(saved_state, home) \
    LAYOUT(saved_end, id) LAYOUT(saved_end, ended) LAYOUT(saved_end, score) \
    LAYOUT(saved_end, cached) LAYOUT(saved_end, adopted) LAYOUT(saved_end, recomputed) \
    LAYOUT(saved_end, reason) LAYOUT(saved_end, n_prompt_tokens) LAYOUT(saved_end, message) \
    LAYOUT(saved_end, stop) LAYOUT(request_output, stop) \
    LAYOUT(saved_ids, last) \
    LAYOUT(saved_unname, id) LAYOUT(saved_rid, id) LAYOUT(saved_rid, rid) \
    LAYOUT(output_span, output) LAYOUT(output_span, n) LAYOUT(output_span, n_text) \
    LAYOUT(output_span, score) LAYOUT(request_output, n_received) \
    LAYOUT(request_output, n_text_received) LAYOUT(request_output, score) \
    LAYOUT(request_output, reason) LAYOUT(request_output, cached) LAYOUT(request_output, adopted) \
    LAYOUT(request_output, recomputed) LAYOUT(request_output, kv_blocks) \
    LAYOUT(saved_end, kv_blocks) KV_BLOCKS_LAYOUT)
/* clang-format on */

/* In ledger_load.c: applies one record of n bytes at data, 8-aligned, to l. Validates every field,
 * because a lagand that crashed may have written it. type: a SAVED_ constant; c: has the models
 * that are served now. -EBADMSG, -ENOMEM: the record is ignored, and e says why. */
int ledger_load_record(struct ledger *l, const struct config *c, uint16_t type, const void *data,
                       uint32_t n, struct err *e) MUST_USE;

/* The open log of a ledger. Only ledger_save.c changes it; public so that tests can shorten it. */
struct ledger_log {
    struct log_file file;
    struct ledger *ledger;
    const struct config *config;
    uint64_t rewrite_above; /* the log is rewritten when its valid half exceeds these bytes */
    bool invalid;           /* the ledger did not fit, or ledger_log_start() was not called yet */
    req_id seen_id;         /* requests up to this id were written, or are not saved */
};

/* Returns a log for l that has no file yet. l and c must outlive it. NULL: no memory. */
struct ledger_log *ledger_log_new(struct ledger *l, const struct config *c) MUST_USE;
struct ledger_log *ledger_log_free(struct ledger_log *g);

/* Restores the requests, queued or retained, from the log file fd of a previous lagand. Returns
 * true if the file was read. If fd is -1 or the file is invalid, creates a new file; if that fails
 * too, the log has no file. Failures are logged. Saves nothing before ledger_log_start(). */
bool ledger_log_open(struct ledger_log *g, int fd);
/* Writes the whole ledger into the file; from now on the ledger_save_ functions write changes. */
void ledger_log_start(struct ledger_log *g);
int ledger_log_fd(const struct ledger_log *g); /* -1: no file */

/* Each ledger_save_ function appends one change to the log. No effect if the request is not saved,
 * if the log has no file, or if g is NULL (tests). */
void ledger_save_new(struct ledger_log *g); /* all requests accepted since the last call */
/* Appends r's last n tokens and the last n_text bytes of its text. */
void ledger_save_tokens(struct ledger_log *g, const struct request *r, uint32_t n, uint32_t n_text);
void ledger_save_state(struct ledger_log *g, const struct request *r); /* worker and faults */
void ledger_save_end(struct ledger_log *g, const struct request *r);
void ledger_save_rid(struct ledger_log *g, const struct request *r);
void ledger_save_unname(struct ledger_log *g, struct request *r); /* call before ledger_unname() */
