/* tuning.h - measures matmuls while the worker has no request, one matmul per loop iteration.
 *
 * A measurement finds the fastest algorithm for a pair, a matmul shape and a number of batched
 * tokens, and saves it in the tuning file. `laganctl tune` starts a pass, which measures all pairs
 * of the model: the control thread starts it and reads its progress; the engine thread measures one
 * pair in each idle iteration, so that a new request waits for at most one. Pairs that the tuning
 * file has are skipped. Without a pass, a worker idle for 2 s measures pairs of past requests.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"

#include <pthread.h>

/* Progress of a pass, as the operator sees it. */
struct tuning_state {
    uint32_t done, total; /* number of pairs; done: measured, skipped or without a result */
    uint32_t n_results;
    bool running;
    char why[160]; /* the error that ended the pass early; "": no error */
};

struct tuning {
    struct exec *exec;  /* engine thread only */
    const char *refuse; /* the reason why passes are refused; NULL: they are not */
    pthread_mutex_t lock;
    /* Under the lock. */
    struct tuning_state state;
    bool pair_listed; /* exec_matmul() has run pair number `done`; exec_tune() measures it next */
    uint32_t max_results;
    struct tune_result *result; /* [max_results] */
    /* Engine thread only. */
    nsec busy_at;        /* end of the last iteration that was not idle */
    bool failed_unasked; /* measuring without a pass failed, so it is not tried again */
};

/* Returns the reason, for the operator, why matmuls cannot be tuned; NULL: they can be. */
const char *tuning_refusal(const struct model_options *k, bool on_gpu, uint32_t n_lanes);
/* Initializes *t. refuse: the result of tuning_refusal(), kept as a pointer. -ENOMEM. */
int tuning_open(struct tuning *t, struct exec *x, const char *refuse, nsec now,
                struct err *e) MUST_USE;
void tuning_close(struct tuning *t);
/* Starts a pass, unless one runs. Returns its number of pairs. -ENOTSUP: e has the reason. */
int tuning_start(struct tuning *t, struct err *e) MUST_USE;
/* Measures the next pair if `idle` is true. Returns 1 if a pair was measured or skipped, else 0;
 * -EIO: the device failed. Engine thread, every loop iteration. */
int tuning_run(struct tuning *t, bool idle, nsec now, struct err *e) MUST_USE;
/* Reads the progress, and at most `most` results from index `from` on; returns how many. */
uint32_t tuning_read(struct tuning *t, struct tuning_state *ret, uint32_t from,
                     struct tune_result *result, uint32_t most);
