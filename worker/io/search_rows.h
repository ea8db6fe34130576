/* search_rows.h - keeps the logit rows of a beam search until its hypotheses are decided.
 *
 * Each token of a hypothesis was taken from the logit row of one beam (beam_done.row_slot). Which
 * rows the outputs need is known only when the search is over. So each slot of a search with
 * logprobs above 0 or return_logits keeps the row of its beam for every generated token:
 *
 *     slot m of the request    [max_new] best[logprobs]      struct batch_top, best first
 *                              [max_new] logits[vocabulary]  fp32, with return_logits
 *
 * The memory is a part of the slot (request.h); search_rows_fit() refuses searches that need more.
 * Engine thread only. */
#pragma once
#include "worker/io/request.h"
#include "worker/worker.h"

/* Returns the bytes of rows that one slot may need, for requests_open_rows(). */
size_t search_rows_slot_bytes(const struct worker *w);
/* Returns true if the search of r, a first slot, keeps rows. */
static inline bool
search_rows_kept(const struct worker_request *r)
{
    return r->beam.n_beams > 1 && (r->sampling.logprobs || r->sampling.want_logits);
}
/* Checks that the rows of r, a first slot, fit for max_new tokens. -EMSGSIZE: they do not fit; e
 * has the numbers. */
int search_rows_fit(const struct worker *w, const struct worker_request *r, uint32_t max_new,
                    struct err *e) MUST_USE;
/* Keeps the rows of all beams in b, whose result is res. Call it before scheduler_commit(). seq:
 * [n_segments] the sequence of each segment, or NULL. */
void search_rows_keep(struct worker *w, const struct batch *b, const struct batch_result *res,
                      struct seq *const *seq);
/* The row of generated token t in the slot of beam `slot`, r: the first slot. search_rows_top()
 * returns [r->sampling.logprobs] entries, id -1 beyond the vocabulary; search_rows_logits() returns
 * [vocabulary] values. NULL: slot is BEAM_NO_ROW. */
const struct batch_top *search_rows_top(const struct worker_request *r, uint32_t slot, uint32_t t);
const float *search_rows_logits(const struct worker *w, const struct worker_request *r,
                                uint32_t slot, uint32_t t);
