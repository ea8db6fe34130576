/* outputs.h - requests of several sequences: the beams of a search, samples of one prompt.
 *
 * Each sequence has a slot of struct requests, chained from the first, which is the request; slot i
 * is output i, and of a search also beam i. All have the request's row, generation and id. The
 * scheduler gets them as one family (worker/sched/seq.h).
 *
 * After a death a sample goes on from the tokens that were delivered of it. A search begins again from
 * the prompt where that comes to the same bits, and tells what has not been delivered; where it need
 * not, it goes on from what was delivered of its best output, which stays what it begins with; had that
 * been delivered to its end, others are searched anew.
 */
#ifndef WORKER_IO_OUTPUTS_H
#define WORKER_IO_OUTPUTS_H

#include "worker/io/request.h"
#include "worker/worker.h"

/* A slot's ids, what each part begins at:
 *
 *     source | prompt, then generated | of a search: what has ended | scores |  ...  | delivered tokens
 *
 * Those lie at the end of its room and are read, each slot's by the others too, when scores are
 * written already. */
struct outputs_places {
    uint32_t ended, scores, end;
};
static inline struct outputs_places
outputs_places(uint32_t max_source, uint32_t n_prompt, uint32_t max_new)
{
    uint32_t ended = max_source + n_prompt + max_new;

    return (struct outputs_places){ ended, ended + max_new, ended + 2 * max_new };
}
static inline uint32_t
outputs_max_ids(uint32_t max_source, uint32_t max_len)
{
    return MAX(max_source + 4 * max_len, 128u << 10);
}

/* n slots in all. -EAGAIN: there are not so many. */
int outputs_take(struct worker *w, struct worker_request *r, uint32_t n) MUST_USE;
/* A request's slots, one or several, none of which the scheduler has. */
void outputs_give(struct worker *w, struct worker_request *r);
/* The tokens that were delivered before, output_of[i] is token i's output; they wait at the end of each
 * slot's room. */
void outputs_place_delivered(struct worker *w, struct worker_request *r, const token_id *token,
                             const uint8_t *output_of, uint32_t n);
/* The prompt stands in the first slot, and what is common in its seq and sampling: the others
 * are filled in, and all go to the scheduler but for those that had ended. Else as
 * scheduler_add() says. */
int outputs_add(struct worker *w, struct worker_request *r, nsec now, struct err *e) MUST_USE;
/* Over before it was begun: the last word about each. */
void outputs_end(struct worker *w, struct worker_request *r);

#endif
