/* tuning.h - the worker measures matmuls, one a turn, while there is no request.
 *
 * With `laganctl tune` all of the model's: the control thread begins a pass and reads how far it
 * is; the engine thread takes one pair (a shape, a number of rows) in a turn that has nothing else
 * to do. So a request that comes waits for one pair at most. Pairs that the table has already are
 * passed over: then a pass says that there is nothing new. Without being asked, a worker that has
 * been idle for two seconds measures those that requests have brought.
 */
#ifndef WORKER_OPS_TUNING_H
#define WORKER_OPS_TUNING_H

#include "base/base.h"
#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"

#include <pthread.h>

struct tuning {
    struct exec *exec;  /* the engine's */
    const char *refuse; /* why there is nothing to do here, or NULL */
    pthread_mutex_t lock;
    bool running;
    bool pair_listed; /* the device knows of pair `done` */
    uint32_t done, total, n_results,
        max_results;            /* done counts pairs, those that gave no row too */
    struct tune_result *result; /* [max_results] */
    char why[160];              /* why the pass ended before its end; "" it did not */
    /* The engine's alone. */
    nsec busy_at;        /* the last turn that was not idle */
    bool failed_unasked; /* unasked: it went wrong, and will again */
};

struct tuning_state {
    uint32_t done, total, n_results;
    bool running;
    char why[160];
};

/* Why matmuls cannot be tuned with these settings, for the operator; NULL: they can. on_gpu: the
 * device is one. */
const char *tuning_refusal(const struct model_options *k, bool on_gpu, uint32_t n_lanes);
/* refuse is kept. */
int tuning_open(struct tuning *t, struct exec *x, const char *refuse, nsec now,
                struct err *e) MUST_USE;
void tuning_close(struct tuning *t);
/* A pass from the first pair on; one that is under way goes on. How many pairs it has, or
 * -ENOTSUP with the sentence. */
int tuning_start(struct tuning *t, struct err *e) MUST_USE;
/* The engine's turn, every one: 1 something was measured or found to be known already, 0 there
 * was none or idle is false, -EIO the device has failed. */
int tuning_run(struct tuning *t, bool idle, nsec now, struct err *e) MUST_USE;
/* How far it is, and at most `most` rows from `from` on; how many. */
uint32_t tuning_read(struct tuning *t, struct tuning_state *ret, uint32_t from,
                     struct tune_result *result, uint32_t most);

#endif
