/* cache_flush.h - an operator's wish that the cache be empty: `laganctl kv flush`.
 *
 * Asked by the control thread, which waits for the engine's; that drops some of the cache in each
 * turn, so that steps go on meanwhile. What requests hold is not touched (kv_flush()).
 */
#ifndef WORKER_OPS_CACHE_FLUSH_H
#define WORKER_OPS_CACHE_FLUSH_H

#include "base/err.h"
#include "worker/kv/kv_reuse.h"

#include <pthread.h>
#include <stdatomic.h>

struct cache_flush {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    uint64_t n_finished;      /* flushes that are over, under the lock */
    struct kv_flushed last;   /* of the last of them, under the lock */
    bool closed;              /* under the lock */
    _Atomic bool requested;   /* by the control thread, until it is done */
    struct kv_flushed so_far; /* the engine's */
};

void cache_flush_open(struct cache_flush *f); /* before the first of either thread */
/* The engine's, between two plans. Whether there may be more to do at once. */
bool cache_flush_run(struct cache_flush *f, struct kv *kv);
/* The control thread's: a number to wait with, once the engine is awake; and until it is done.
 * -ETIMEDOUT: the engine has not come to it, and will; -ECANCELED: it is closed. */
uint64_t cache_flush_request(struct cache_flush *f);
int cache_flush_wait(struct cache_flush *f, uint64_t number, struct kv_flushed *ret,
                     struct err *e) MUST_USE;
/* Nobody waits any longer. Any thread. */
void cache_flush_close(struct cache_flush *f);

#endif
