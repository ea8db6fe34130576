/* tuning.c - measures matmuls of an idle worker: see tuning.h. No measurement holds the lock. */
#include "worker/ops/tuning.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>

enum { SPARE = 64 }; /* results for pairs that requests used and the model does not list */
/* Idle time after which pairs of past requests are measured without a pass. */
static const nsec UNASKED_AFTER = 2 * NSEC_S;

const char *
tuning_refusal(const struct model_options *k, bool on_gpu, uint32_t n_lanes)
{
    if (k->tensor_parallel > 1)
        return "tensor_parallel models are not tuned: results that each rank computes alone, such "
               "as expert routing, must have the same bits in all ranks";
    if (!on_gpu) return "the CPU device has no matmuls to tune";
    if (!k->cuda_tuning_file[0])
        return "there is no file for the results: set this model's key cuda.tuning_file, then run "
               "`laganctl daemon reexec`";
    if (k->numerics == NUMERICS_INVARIANT)
        return "numerics is invariant: results must not change while the worker serves";
    if (n_lanes > 1)
        return "each lane has a part of the GPU: tune in a worker whose split.mode is off";
    return NULL;
}

int
tuning_open(struct tuning *t, struct exec *x, const char *refuse, nsec now, struct err *e)
{
    uint32_t n = exec_n_matmuls(x);

    *t = (struct tuning){
        .exec = x, .refuse = refuse, .state.total = n, .max_results = n + SPARE, .busy_at = now
    };
    pthread_mutex_init(&t->lock, NULL);
    if (refuse) return 0;
    if (n == 0) t->refuse = "no step of this model is large enough for tuning";
    t->result = calloc(t->max_results, sizeof *t->result);
    return t->result ? 0 : err_set(e, -ENOMEM, "out of memory for %u tuning results", n + SPARE);
}

void
tuning_close(struct tuning *t)
{
    free(t->result);
    t->result = NULL;
}

int
tuning_start(struct tuning *t, struct err *e)
{
    if (t->refuse) return err_set(e, -ENOTSUP, "%s", t->refuse);
    pthread_mutex_lock(&t->lock);
    if (!t->state.running) {
        t->state = (struct tuning_state){ .total = t->state.total, .running = true };
        t->pair_listed = false;
    }
    pthread_mutex_unlock(&t->lock);
    return (int)t->state.total;
}

/* Measures one pair that past requests have used. */
static int
measure_unasked(struct tuning *t)
{
    struct tune_result us;
    int r = exec_tune(t->exec, &us);

    if (r > 0)
        log_info("measured matmul [%u, %u] x %u tokens: best %.1f us, library default %.1f us, %u "
                 "candidates",
                 us.n, us.k, us.rows, (double)us.best, (double)us.first, us.n_tried);
    if (r < 0) log_warn("cannot measure a matmul, so automatic tuning ends: %s", exec_why(t->exec));
    t->failed_unasked = r < 0;
    return r > 0;
}

/* Measures the next pair of the pass, or skips it if it cannot be measured. */
static int
measure_pair(struct tuning *t, struct err *e)
{
    struct tuning_state *s = &t->state;
    struct tune_result result;
    struct err why = { 0 };
    int r = 0;

    if (!t->pair_listed) r = exec_matmul(t->exec, s->done, &why);
    t->pair_listed = r == 0;
    if (r == 0 && (r = exec_tune(t->exec, &result)) < 0) err_set(&why, r, "%s", exec_why(t->exec));
    pthread_mutex_lock(&t->lock);
    if (r > 0 && result.best > 0 && s->n_results < t->max_results)
        t->result[s->n_results++] = result;
    /* -ENOTSUP: this pair cannot be measured. Any other error would recur, so it ends the pass. */
    if (r < 0 && r != -ENOTSUP) {
        snprintf(s->why, sizeof s->why, "%.*s", (int)sizeof s->why - 1, why.text);
        s->running = false;
    } else if (r <= 0) { /* the pair has been measured or is skipped */
        t->pair_listed = false;
        s->done++;
    }
    if (s->done == s->total) s->running = false;
    pthread_mutex_unlock(&t->lock);
    return r == -EIO ? err_set(e, r, "the device failed in a matmul: %s", why.text) : 1;
}

int
tuning_run(struct tuning *t, bool idle, nsec now, struct err *e)
{
    bool running;

    if (!idle) t->busy_at = now;
    if (!idle || t->refuse) return 0;
    pthread_mutex_lock(&t->lock);
    running = t->state.running;
    pthread_mutex_unlock(&t->lock);
    if (running) return measure_pair(t, e);
    return now - t->busy_at < UNASKED_AFTER || t->failed_unasked ? 0 : measure_unasked(t);
}

uint32_t
tuning_read(struct tuning *t, struct tuning_state *ret, uint32_t from, struct tune_result *result,
            uint32_t most)
{
    uint32_t n = 0;

    pthread_mutex_lock(&t->lock);
    *ret = t->state;
    if (from < ret->n_results) n = MIN(ret->n_results - from, most);
    if (n) memcpy(result, t->result + from, n * sizeof *result);
    pthread_mutex_unlock(&t->lock);
    return n;
}
