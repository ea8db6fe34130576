/* cache_flush.h - empties the prefix cache for an operator: `laganctl kv flush`.
 *
 * The control thread requests a flush and waits. The engine thread evicts some cached blocks in
 * each loop iteration, so that steps continue meanwhile. Blocks in use stay (kv_flush()).
 */
#pragma once
#include "base/err.h"
#include "worker/kv/kv_reuse.h"

#include <pthread.h>
#include <stdatomic.h>

struct cache_flush {
    pthread_mutex_t lock;
    pthread_cond_t finished;
    struct kv_flushed last;   /* result of the last finished flush; used with the lock held */
    bool closed;              /* the worker exits: all waits end; used with the lock held */
    _Atomic bool requested;   /* set by the control thread, cleared by the engine under the lock */
    struct kv_flushed so_far; /* what the current flush has evicted; engine thread only */
};

void cache_flush_open(struct cache_flush *f); /* call before a thread uses f */
/* Evicts some blocks if a flush is requested. Returns true if the engine should not sleep, because
 * more may be left to evict. Engine thread, between two plans. */
bool cache_flush_run(struct cache_flush *f, struct kv *kv);
/* Requests a flush. Wake the engine thread, then call cache_flush_wait(). Control thread. */
void cache_flush_request(struct cache_flush *f);
/* Waits for the requested flush. -ETIMEDOUT: it has not finished after 5 s, but continues;
 * -ECANCELED: f was closed. Control thread. */
int cache_flush_wait(struct cache_flush *f, struct kv_flushed *ret, struct err *e) MUST_USE;
/* Ends all waits with -ECANCELED. Any thread. */
void cache_flush_close(struct cache_flush *f);
