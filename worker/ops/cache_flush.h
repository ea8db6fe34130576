/* cache_flush.h - empties the prefix cache for an operator: `laganctl kv flush`.
 *
 * The control thread requests a flush and waits. The engine thread drops part of the cache in each
 * loop iteration, so that steps continue meanwhile. Blocks that requests use are not dropped
 * (kv_flush()).
 */
#pragma once

#include "base/err.h"
#include "worker/kv/kv_reuse.h"

#include <pthread.h>
#include <stdatomic.h>

struct cache_flush {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    struct kv_flushed last;   /* result of the last finished flush, under the lock */
    bool closed;              /* under the lock */
    _Atomic bool requested;   /* set by the control thread, cleared by the engine under the lock */
    struct kv_flushed so_far; /* engine thread only */
};

void cache_flush_open(struct cache_flush *f); /* before either thread uses f */
/* Engine thread, between two plans: drops some blocks. Returns true if more work may be left. */
bool cache_flush_run(struct cache_flush *f, struct kv *kv);
/* Control thread: requests a flush; wake the engine before cache_flush_wait(), which returns
 * -ETIMEDOUT if the engine has not finished after 5 s (it still will), -ECANCELED if f was closed.
 */
void cache_flush_request(struct cache_flush *f);
int cache_flush_wait(struct cache_flush *f, struct kv_flushed *ret, struct err *e) MUST_USE;
/* Ends all waits. Any thread. */
void cache_flush_close(struct cache_flush *f);
