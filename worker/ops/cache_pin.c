/* cache_pin.c - pins prefixes of the cache for an operator: see cache_pin.h. */
#include "worker/ops/cache_pin.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

#include <time.h>

static const nsec WAIT_TIMEOUT = 5 * NSEC_S; /* less than lagand's timeout of 10 s */

void
cache_pin_open(struct cache_pin *p)
{
    pthread_condattr_t a;

    *p = (struct cache_pin){ .lock = PTHREAD_MUTEX_INITIALIZER };
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&p->finished, &a);
    pthread_condattr_destroy(&a);
}

static int
unpin(struct worker *w, struct cache_pin *p)
{
    uint32_t first = p->unpin == UINT32_MAX ? 1 : p->unpin, n = 0;
    uint32_t last = p->unpin == UINT32_MAX ? KV_PINS : p->unpin;

    for (; first <= last; first++) n += kv_unpin(w->kv, first);
    if (n || p->unpin == UINT32_MAX) return (int)n;
    return err_set(&p->why, -ENOENT, "pin %u does not exist", p->unpin);
}

/* The ids are a prompt or, for an encoder-decoder model, an encoder input. */
static int
pin(struct worker *w, struct cache_pin *p)
{
    struct kv_namespace space;
    struct kv_need longest = scheduler_longest(w->sched, w->max_source);
    uint64_t salt = kv_salt(w->kv, p->salt, p->salt_bytes);
    struct kv_text t = { .token = p->ids, .n = p->n_ids + 1, .namespace = &space };

    if (w->max_source) {
        t.n = 1;
        t.source = p->ids;
        t.n_source = p->n_ids;
    }
    kv_namespace(w->kv, salt, 0, t.source, t.n_source, &space);
    return kv_pin(w->kv, &t, &longest, &p->n_tokens, &p->why);
}

void
cache_pin_run(struct worker *w)
{
    struct cache_pin *p = w->cache_pin;

    if (!atomic_load_explicit(&p->requested, memory_order_acquire)) return;
    p->result = p->unpin ? unpin(w, p) : pin(w, p);
    if (p->result > 0 && !p->unpin)
        log_info("kv pin: pin %d keeps %u tokens in the cache", p->result, p->n_tokens);
    pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->requested, false, memory_order_relaxed);
    pthread_cond_signal(&p->finished);
    pthread_mutex_unlock(&p->lock);
}

struct cache_pin *
cache_pin_begin(struct cache_pin *p)
{
    if (atomic_load_explicit(&p->requested, memory_order_acquire)) return NULL;
    free(TAKE(p->ids));
    p->n_ids = p->unpin = 0;
    p->salt_bytes = 0;
    return p;
}

void
cache_pin_request(struct cache_pin *p)
{
    atomic_store_explicit(&p->requested, true, memory_order_release);
}

int
cache_pin_wait(struct cache_pin *p, struct err *e)
{
    nsec until = clock_now() + WAIT_TIMEOUT;
    const struct timespec t = { .tv_sec = until / NSEC_S, .tv_nsec = until % NSEC_S };
    bool closed, pending;
    int r = 0;

    pthread_mutex_lock(&p->lock);
    while ((pending = atomic_load_explicit(&p->requested, memory_order_relaxed)) && !p->closed &&
           r == 0)
        r = pthread_cond_timedwait(&p->finished, &p->lock, &t);
    closed = p->closed;
    pthread_mutex_unlock(&p->lock);
    if (pending && closed) return err_set(e, -ECANCELED, "not finished: the worker exits");
    if (pending)
        return err_set(e, -ETIMEDOUT, "not finished after %lld s; it may still take effect",
                       (long long)(WAIT_TIMEOUT / NSEC_S));
    if (p->result < 0) *e = p->why;
    return p->result;
}

void
cache_pin_close(struct cache_pin *p)
{
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    pthread_cond_broadcast(&p->finished);
    pthread_mutex_unlock(&p->lock);
}
