/* sim_worker.h - a simulated worker: the production scheduler and KV manager without a device.
 *
 * Sampled tokens come from request_token(), a function of the request and the position. So two runs
 * can be compared, and the next request of a conversation can begin with the previous output.
 */
#pragma once
#include "sim/sim_config.h"
#include "worker/partition/partition_choose.h"

enum { WORKER_OUT = 2 }; /* maximum steps of a lane in flight */

/* A request of a simulated worker. seq.owner of its sequence points to this struct. */
struct sim_request {
    struct seq seq;
    uint64_t stream;   /* seed of its tokens */
    uint32_t n_shared; /* the first tokens use the seed `shared` */
    uint64_t shared;
};
token_id request_token(const struct sim_request *q, uint32_t pos);

struct sim_worker {
    struct sim_config st; /* as changed by kv_init() */
    void *mem;
    struct kv *kv;
    struct scheduler *s;
    struct batch *batch[MAX_LANES][WORKER_OUT]; /* step n is in element n % WORKER_OUT */
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    struct partition_list partition_list;
    struct split split; /* if divide.mode is not off */
    uint8_t *n_tokens;  /* [max_segments] results of the step being committed */
    token_id *token;
    /* Called before the commit for each sampled token of a sequence that has not ended, or NULL. */
    void (*sampled)(struct sim_request *q, token_id token, nsec now, void *to);
    void *sampled_to;
};

int worker_open(struct sim_worker *w, const struct sim_config *st, struct err *e) MUST_USE;
/* Frees everything; no effect if w is not open. */
void worker_close(struct sim_worker *w);
/* Plans the lane's next step and returns it. NULL: no step, or WORKER_OUT steps are in flight. */
const struct batch *worker_plan(struct sim_worker *w, unsigned lane, nsec now);
/* Commits and returns the lane's oldest step; the steps of other lanes on which it depends are
 * committed first. NULL: the lane has no step in flight. */
const struct batch *worker_commit(struct sim_worker *w, unsigned lane, nsec now);
