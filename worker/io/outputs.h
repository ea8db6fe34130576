/* outputs.h - handles requests with several sequences: beams of a search, or samples of one prompt.
 *
 * Each sequence has a slot (struct worker_request); the slots are chained from the first one, which
 * represents the request. Slot i is output i, and in a search also beam i. All slots have the
 * request's ledger_index, gen and id. The scheduler gets them as one sequence group (seq.h).
 *
 * After a crash a sample continues from its delivered tokens. A beam search restarts from the
 * prompt if results are deterministic, and reports only undelivered tokens. Otherwise the delivered
 * tokens of the best beam become a fixed prefix. If the best beam was already complete, the
 * remaining outputs are searched again. */
#pragma once
#include "worker/io/request.h"
#include "worker/worker.h"

/* Layout of the ids array of a slot. struct outputs_places has the index at which a part starts:
 *
 *     source | prompt, generated | search: ended beams | scores of both | row slots of both | ...
 *     ... | delivered tokens
 *
 * Delivered tokens are at the end, where ended beams and scores do not overwrite them, because all
 * beams read the delivered tokens of the first slot. */
struct outputs_places {
    uint32_t ended, scores, ended_scores, row_slots, ended_row_slots, end;
};
static inline struct outputs_places
outputs_places(uint32_t max_source, uint32_t n_prompt, uint32_t max_new)
{
    uint32_t ended = max_source + n_prompt + max_new, bytes = max_new / 4 + 1, /* 1 byte a token */
        row_slots = ended + 3 * max_new;

    return (struct outputs_places){ ended,     ended + max_new,   ended + 2 * max_new,
                                    row_slots, row_slots + bytes, row_slots + 2 * bytes };
}
/* Returns how many ids a slot's buffer must hold. */
static inline uint32_t
outputs_max_ids(uint32_t max_source, uint32_t max_len)
{
    return MAX(max_source + 6 * max_len, 128u << 10);
}

/* Takes n - 1 slots and chains them to r. -EAGAIN: too few slots are free. */
int outputs_take(struct worker *w, struct worker_request *r, uint32_t n) MUST_USE;
/* Frees all slots of a request. Its sequences must not be in the scheduler. */
void outputs_give(struct worker *w, struct worker_request *r);
/* Detokenizes n delivered tokens again, to restore held-back text and the length of the text. */
void outputs_restore_text(struct worker *w, struct worker_request *r, const token_id *token,
                          uint32_t n);
/* Copies n delivered tokens to the end of their slots' ids. output_of[i]: output of token i. */
void outputs_place_delivered(struct worker *w, struct worker_request *r, const token_id *token,
                             const uint8_t *output_of, uint32_t n);
/* Copies prompt, seq and sampling of the first slot r to its other slots, and adds all outputs that
 * have not ended to the scheduler. Errors as scheduler_add(). */
int outputs_add(struct worker *w, struct worker_request *r, nsec now, struct err *e) MUST_USE;
/* Queues FINISH for each output of a request that was never scheduled, and frees its slots. */
void outputs_end(struct worker *w, struct worker_request *r);
