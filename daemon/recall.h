/* recall.h - the ledger in its mirror: what the next lagand must know, and how it is read back.
 *
 * Only rows with names: nobody could ask for the others. Nor those with prompt log-probabilities or tensors, which
 * are not kept; their clients submit them again. A row is written down before it is given to a worker,
 * its tokens before a client has them. When it cannot be, for want of memory, the mirror is void until
 * the ledger is empty: requests go on, and a restart would find none.
 */
#ifndef DAEMON_RECALL_H
#define DAEMON_RECALL_H

#include "base/base.h"
#include "daemon/daemon.h"
#include "daemon/mirror.h"
#include "daemon/pieces.h"
#include "ipc/layout.h"

#define RECALL_LOST (SUBMIT_PROMPT_LOGPROBS | SUBMIT_LOGITS | SUBMIT_ENCODER_OUTPUT)
#define RECALL_BYTES (UINT64_C(128) << 20) /* of one half of the mirror */

/* What lies in the records of the mirror. */
enum { KEPT_ROW = 1, KEPT_TOKENS = 2, KEPT_STATE = 3, KEPT_END = 4, KEPT_IDS = 5 };
enum { KEPT_GONE = 6, KEPT_RID = 7 };
struct kept_row {
    uint64_t id, rid;
    struct session_id session;
    int64_t accepted, deadline; /* CLOCK_MONOTONIC: a memfd does not outlive a boot */
    int64_t patience;
    uint32_t ack_window, submit_bytes;
    uint8_t n_key, no_resume, pad[6];
    char key[LAGAN_MAX_KEY], model[64];
    /* rec_submit with its tails */
};
struct kept_tokens { /* they follow those that the row has */
    uint64_t id;
    uint32_t first, n, n_text;
    uint32_t lp_first; /* log-probabilities of the tokens from there on */
    float score;
    uint32_t text_said; /* bytes of text that the worker has said, with what came before ours */
    uint32_t text_unknown;
    uint32_t n_pieces; /* with several outputs */
    /* i32 token[n]; f32 logprob[]; {i32, f32} top[][logprobs]; text; struct row_piece[n_pieces]; packed */
};
struct kept_state {
    uint64_t id;
    uint32_t resumed, n_vain, n_before, blamed_at;
    uint8_t n_blames, acquitted, pad[2];
    uint32_t home;
};
struct kept_end {
    uint64_t id;
    int64_t ended;
    float score;
    uint32_t cached, adopted, recomputed;
    uint16_t reason, pad[3];
    char why[200];
    /* with several outputs: struct row_output[] */
};
struct kept_ids {
    uint64_t last; /* ids up to that are used, also by rows that are not here */
};
struct kept_gone {
    uint64_t id; /* it is known by no name any more */
};
struct kept_rid {
    uint64_t id, rid; /* its client calls it so now */
};
_Static_assert(sizeof(struct kept_row) == 200, "kept_row");
_Static_assert(sizeof(struct kept_tokens) == 40, "kept_tokens");
_Static_assert(sizeof(struct kept_state) == 32, "kept_state");
_Static_assert(sizeof(struct kept_end) == 240, "kept_end");

/* The layout of all records of the log; see ipc/layout.h. */
#define MIRROR_LAYOUT_SUM \
    (SUBMIT_LAYOUT_SUM LAYOUT(mirror_hdr, half) LAYOUT(mirror_half, turn) LAYOUT( \
        mirror_half, not_turn) LAYOUT(mirror_record, crc) LAYOUT(mirror_record, type) \
         LAYOUT(mirror_record, len) LAYOUT(mirror_record, turn) LAYOUT(kept_row, id) LAYOUT( \
             kept_row, rid) LAYOUT(kept_row, session) LAYOUT(kept_row, accepted) \
             LAYOUT(kept_row, deadline) LAYOUT(kept_row, patience) LAYOUT( \
                 kept_row, ack_window) LAYOUT(kept_row, submit_bytes) LAYOUT(kept_row, n_key) \
                 LAYOUT(kept_row, no_resume) LAYOUT(kept_row, key) LAYOUT(kept_row, model) LAYOUT( \
                     kept_tokens, id) LAYOUT(kept_tokens, first) LAYOUT(kept_tokens, n) \
                     LAYOUT(kept_tokens, n_text) LAYOUT(kept_tokens, lp_first) LAYOUT( \
                         kept_tokens, score) LAYOUT(kept_tokens, text_said) \
                         LAYOUT(kept_tokens, text_unknown) LAYOUT(kept_tokens, n_pieces) LAYOUT( \
                             kept_state, id) LAYOUT(kept_state, resumed) \
                             LAYOUT(kept_state, n_vain) LAYOUT(kept_state, n_before) LAYOUT( \
                                 kept_state, \
                                 blamed_at) LAYOUT(kept_state, n_blames) \
                                 LAYOUT(kept_state, acquitted) LAYOUT(kept_state, home) LAYOUT( \
                                     kept_end, id) LAYOUT(kept_end, \
                                                          ended) LAYOUT(kept_end, score) \
                                     LAYOUT(kept_end, cached) LAYOUT(kept_end, adopted) LAYOUT( \
                                         kept_end, recomputed) LAYOUT(kept_end, reason) \
                                         LAYOUT(kept_end, why) LAYOUT(kept_ids, last) \
                                             LAYOUT(kept_gone, id) LAYOUT(kept_rid, id) LAYOUT( \
                                                 kept_rid, rid) LAYOUT(row_piece, output) \
                                                 LAYOUT(row_piece, n) LAYOUT(row_piece, n_text) \
                                                     LAYOUT(row_piece, score) LAYOUT(row_output, \
                                                                                     n_said) \
                                                         LAYOUT(row_output, n_text_said) \
                                                             LAYOUT(row_output, score) LAYOUT( \
                                                                 row_output, reason) \
                                                                 LAYOUT(row_output, cached) \
                                                                     LAYOUT(row_output, adopted) \
                                                                         LAYOUT(row_output, \
                                                                                recomputed))

/* fd: a predecessor's mirror, which is taken over and its rows are in the ledger again: waiting, or
 * ended and kept; -1: there is none. How many rows; the mirror may fail to be made, which is said. */
uint32_t recall_open(struct daemon *d, int fd);
/* One record into the ledger. -EBADMSG: it is dropped, with the sentence. For tests and fuzzers too. */
int recall_record(struct ledger *l, const struct config *c, uint16_t type, const void *data,
                  uint32_t n, struct err *e) MUST_USE;

/* To be written down: rows that have come since the last call. */
void recall_new(struct daemon *d);
/* The last n tokens and n_text bytes of it. */
void recall_tokens(struct daemon *d, struct row *r, uint32_t n, uint32_t n_text);
void recall_state(struct daemon *d, struct row *r); /* a worker died of it, or not of it */
void recall_end(struct daemon *d, struct row *r);
void recall_rid(struct daemon *d, struct row *r);  /* its client has another number for it */
void recall_gone(struct daemon *d, struct row *r); /* it is about to lose its names */

#endif
