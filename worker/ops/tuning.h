/* tuning.h - measures matmuls while the worker has no request, one matmul per loop iteration.
 *
 * `laganctl tune` measures all matmuls of the model: the control thread starts a pass and reads its
 * progress; the engine thread measures one pair (a shape, a number of batched tokens) in each idle
 * iteration. So a new request waits for at most one pair. Pairs that the tuning file already has
 * are skipped. Without a pass, a worker that has been idle for 2 s measures the matmuls of past
 * requests.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"

#include <pthread.h>

/* Progress of a pass, as lagand sees it. */
struct tuning_state {
    uint32_t done, total; /* pairs; done: including pairs without a result */
    uint32_t n_results;
    bool running;
    char why[160]; /* error that ended the pass early; "": none */
};

struct tuning {
    struct exec *exec;  /* engine thread only */
    const char *refuse; /* why tuning is refused, or NULL */
    pthread_mutex_t lock;
    /* Under the lock. */
    struct tuning_state state;
    bool pair_listed; /* pair `done` has been given to the device */
    uint32_t max_results;
    struct tune_result *result; /* [max_results] */
    /* Engine thread only. */
    nsec busy_at;        /* end of the last iteration that was not idle */
    bool failed_unasked; /* measuring without a pass failed; do not try again */
};

/* Returns the reason, for the operator, why matmuls cannot be tuned; NULL: they can. */
const char *tuning_refusal(const struct model_options *k, bool on_gpu, uint32_t n_lanes);
/* Keeps the pointer `refuse`. -ENOMEM. */
int tuning_open(struct tuning *t, struct exec *x, const char *refuse, nsec now,
                struct err *e) MUST_USE;
void tuning_close(struct tuning *t);
/* Starts a pass, unless one runs. Returns its number of pairs, or -ENOTSUP with the reason. */
int tuning_start(struct tuning *t, struct err *e) MUST_USE;
/* Engine thread, every iteration. Returns 1 if a pair was measured or skipped, 0 if none was left
 * or idle is false, -EIO if the device failed. */
int tuning_run(struct tuning *t, bool idle, nsec now, struct err *e) MUST_USE;
/* Reads progress and at most `most` results from index `from`; returns their number. */
uint32_t tuning_read(struct tuning *t, struct tuning_state *ret, uint32_t from,
                     struct tune_result *result, uint32_t most);
