/* tuning.c - see tuning.h. The lock is never held over a measurement. */
#include "worker/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 64 }; /* shapes that requests brought, besides the model's list */

int
tuning_open(struct tuning *t, struct exec *x, const char *refuse, struct err *e)
{
    uint32_t n = exec_n_matmuls(x);

    *t = (struct tuning){ .exec = x, .refuse = refuse, .total = n, .room = n + SPARE };
    pthread_mutex_init(&t->lock, NULL);
    if (refuse) return 0;
    if (n == 0) t->refuse = "no step of this model is large enough to have anything to tune";
    t->row = calloc(t->room, sizeof *t->row);
    return t->row ? 0 : err_set(e, -ENOMEM, "memory for %u measured matmuls", n);
}

void
tuning_close(struct tuning *t)
{
    free(t->row);
    t->row = NULL;
}

int
tuning_begin(struct tuning *t, struct err *e)
{
    if (t->refuse) return err_set(e, -ENOTSUP, "%s", t->refuse);
    pthread_mutex_lock(&t->lock);
    if (!t->running) {
        t->done = t->n_rows = 0;
        t->why[0] = 0;
        t->asked = false;
        t->running = true;
    }
    pthread_mutex_unlock(&t->lock);
    return (int)t->total;
}

int
tuning_turn(struct tuning *t, bool idle, struct err *e)
{
    struct tune_result row;
    struct err why = { 0 };
    bool due;
    int r = 0;

    if (!idle || t->refuse) return 0;
    pthread_mutex_lock(&t->lock);
    due = t->running;
    pthread_mutex_unlock(&t->lock);
    if (!due) return 0;
    if (!t->asked) r = exec_matmul(t->exec, t->done, &why);
    t->asked = r == 0;
    if (r == 0 && (r = exec_tune(t->exec, &row)) < 0) err_set(&why, r, "%s", exec_why(t->exec));
    pthread_mutex_lock(&t->lock);
    if (r > 0 && row.best > 0 && t->n_rows < t->room) t->row[t->n_rows++] = row;
    /* What cannot be done stays as it is; anything else would go wrong again with the next one. */
    if (r < 0 && r != -ENOTSUP) {
        snprintf(t->why, sizeof t->why, "%.*s", (int)sizeof t->why - 1, why.text);
        t->running = false;
    } else if (r <= 0) { /* nothing is left of this one */
        t->asked = false;
        t->done++;
    }
    if (t->done == t->total) t->running = false;
    pthread_mutex_unlock(&t->lock);
    return r == -EIO ? err_set(e, r, "the device failed: %s", why.text) : 1;
}

uint32_t
tuning_read(struct tuning *t, struct tuning_state *ret, uint32_t from, struct tune_result *row,
            uint32_t most)
{
    uint32_t n = 0;

    pthread_mutex_lock(&t->lock);
    *ret = (struct tuning_state){
        .done = t->done, .total = t->total, .n_rows = t->n_rows, .running = t->running
    };
    memcpy(ret->why, t->why, sizeof t->why);
    if (from < t->n_rows) n = MIN(t->n_rows - from, most);
    if (n) memcpy(row, t->row + from, n * sizeof *row);
    pthread_mutex_unlock(&t->lock);
    return n;
}
