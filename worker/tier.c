/* tier.c - see tier.h. */
#include "worker/tier.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whoever goes on has begun by then, or nobody does. */
static const nsec SOON = 200 * NSEC_MS;
static const nsec LOOK = 5 * NSEC_MS; /* is it there? */

enum { MAPPING, MAPPED, MADE, LOST }; /* MADE: with nothing in it */

static bool
suits(const struct engine *n)
{
    return n->old_host.fd >= 0 && n->old_host.bytes == n->kv_config.host_bytes;
}

/* The predecessor's where it has the size: pages that are there need not be cleared. */
static int
map_or_make(struct engine *n, struct err *e)
{
    const struct gpu_ops *op = gpu_ops(n->gpu);
    uint64_t bytes = n->kv_config.host_bytes;
    bool same = suits(n);
    int old = n->old_host.fd, r;
    struct err why;

    n->old_host.fd = -1;
    if (same) {
        if (op->host_adopt(n->gpu, old, bytes, &n->host_arena, &why) == 0) return MAPPED;
        log_warn("%s: making another host tier", why.text);
    }
    if (old >= 0) close(old);
    r = op->host_make(n->gpu, bytes, &n->host_arena, e);
    return r < 0 ? err_while(e, r, "kv.host_memory") : MADE;
}

int
tier_open(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    int r;

    if (n->kv_config.host_bytes && suits(n) && w->keys.tensor_parallel == 1) {
        w->tier.later = true;
        return 0;
    }
    if (n->kv_config.host_bytes) {
        r = map_or_make(n, e);
        if (r != MADE) return r < 0 ? r : 0;
    } else {
        if (n->old_host.fd >= 0) close(n->old_host.fd);
        n->old_host.fd = -1;
    }
    memset(n->old_host_id, 0, sizeof n->old_host_id);
    return 0;
}

int
tier_give(struct worker *w, struct err *e)
{
    const struct engine *n = &w->e;

    if (!n->kv_config.host_bytes) return 0;
    return start_give(w, "host", w->tier.later ? &n->old_host : &n->host_arena, n->kv_id, e);
}

bool
tier_keeps(const struct engine *n)
{
    return n->kv_config.host_bytes && !memcmp(n->old_host_id, n->kv_id, sizeof n->kv_id);
}

static void *
map_later(void *arg)
{
    struct worker *w = arg;
    int r;

    FP_OR(host_mapping, w->e.old_host.bytes = 0); /* another's */
    r = map_or_make(&w->e, &w->tier.err);
    FP(host_mapped);
    atomic_store_explicit(&w->tier.done, r < 0 ? LOST : r, memory_order_release);
    return NULL;
}

/* What the manifest says of another one's cells is unsaid before that is handed up. */
static void
replace(struct worker *w)
{
    struct err e;

    kv_host_came(w->e.kv, /* whole= */ false);
    manifest_labels(&w->e.manifest, w->e.kv);
    if (tier_give(w, &e) < 0) log_warn("the host tier is not kept for a successor: %s", e.text);
}

static void
use(struct worker *w, int how, nsec now)
{
    struct engine *n = &w->e;
    struct kv_count count;

    w->tier.later = false;
    if (how == LOST) {
        log_err("%s: going on without a host tier", w->tier.err.text);
        kv_host_empty(n->kv);
        return;
    }
    exec_host(n->exec, &n->host_arena);
    if (how == MADE)
        replace(w);
    else
        kv_host_came(n->kv, /* whole= */ true);
    kv_count_host(n->kv, &count);
    log_info("a host tier of %.1f MiB is there %.3f s after READY, %u blocks in it",
             (double)n->host_arena.bytes / (1 << 20), (double)(now - w->ready_at) / NSEC_S,
             count.cached);
}

void
tier_turn(struct worker *w, nsec now)
{
    struct tier_wait *t = &w->tier;
    int how;

    if (!t->later) return;
    if (!t->begun) {
        if (!w->stats.v[STAT_steps] && now - w->ready_at < SOON) return;
        if (pthread_create(&w->loader, NULL, map_later, w)) return; /* in another turn, perhaps */
        t->begun = true;
    }
    how = atomic_load_explicit(&t->done, memory_order_acquire);
    if (how == MAPPING) return;
    pthread_join(w->loader, NULL);
    t->begun = false;
    use(w, how, now);
}

nsec
tier_sleep(const struct worker *w, nsec now, nsec most)
{
    nsec begin = w->ready_at + SOON - now;

    if (!w->tier.later) return most;
    return MIN(most, w->tier.begun || begin <= 0 ? LOOK : begin);
}

void
tier_close(struct worker *w)
{
    if (w->tier.begun) pthread_join(w->loader, NULL);
    w->tier.begun = false;
}
