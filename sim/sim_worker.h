/* sim_worker.h - a pretended worker: the scheduler and the KV manager that serve, and nothing behind them.
 *
 * What a step would sample comes from request_token(): a request's tokens are known before they are
 * generated, so that two runs can be compared, and a conversation's next turn begins with the last answer.
 */
#ifndef SIM_WORKER_H
#define SIM_WORKER_H

#include "sim/sim_config.h"
#include "worker/partition/partition_choose.h"

enum { WORKER_OUT = 2 }; /* steps of a lane that may be out */

/* seq->owner of every sequence given to a pretended worker. */
struct sim_request {
    struct seq seq;
    uint64_t stream;   /* what its tokens are made from */
    uint32_t n_shared; /* its first tokens are made from `shared` instead */
    uint64_t shared;
};
token_id request_token(const struct sim_request *q, uint32_t pos);

struct sim_worker {
    struct sim_config st; /* as kv_init() left it */
    void *mem;
    struct kv *kv;
    struct scheduler *s;
    struct batch *batch[MAX_LANES][WORKER_OUT]; /* of step n: n % WORKER_OUT */
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct partition_list partition_list;
    struct split split; /* with divide.mode: as a worker's */
    uint8_t *n_tokens;  /* [max_segments] of the step that is committed */
    token_id *token;
    /* Told of every token that is somebody's, before it is committed; NULL: nobody. */
    void (*sampled)(struct sim_request *q, token_id token, nsec now, void *to);
    void *sampled_to;
};

int worker_open(struct sim_worker *w, const struct sim_config *st, struct err *e) MUST_USE;
void worker_close(
    struct sim_worker *w); /* what it has is forgotten; a worker that is not open: nothing */
/* The lane's next step, or NULL. Two that are not committed are the most. */
const struct batch *worker_plan(struct sim_worker *w, unsigned lane, nsec now);
/* The lane's oldest step is over, and those it waited for; NULL: none is out. */
const struct batch *worker_commit(struct sim_worker *w, unsigned lane, nsec now);

#endif
