/* host_tier.c - see host_tier.h. */
#include "worker/handover/host_tier.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Whoever goes on has begun by then, or nobody does. */
static const nsec SOON = 200 * NSEC_MS;
static const nsec LOOK = 5 * NSEC_MS; /* is it there? */

_Static_assert((int)HOST_PIECES <= (int)HAND_HOSTS, "each piece has a name");

enum { MAPPING, MAPPED, MADE, LOST }; /* MADE: with nothing in it */

void
host_tier_begin(struct engine *n)
{
    for (uint32_t i = 0; i < HOST_PIECES; i++) n->old_host[i] = (struct arena){ .fd = -1 };
}

/* Which piece that is; HOST_PIECES: none. */
static uint32_t
piece_of(const char *name)
{
    char host[HAND_NAME];

    for (uint32_t i = 0; i < HOST_PIECES; i++) {
        hand_host(host, i);
        if (!strcmp(name, host)) return i;
    }
    return HOST_PIECES;
}

/* Pieces of another time than the first that was found are none of them. */
bool
host_tier_take(struct engine *n, const struct hand_note *note, int fd)
{
    static const uint64_t none[2];
    uint32_t i = piece_of(note->name);

    if (i == HOST_PIECES) return false;
    if (!memcmp(n->old_host_id, none, sizeof none))
        memcpy(n->old_host_id, note->fingerprint, sizeof n->old_host_id);
    if (n->old_host[i].fd >= 0 || memcmp(n->old_host_id, note->fingerprint, sizeof n->old_host_id))
        close(fd);
    else
        n->old_host[i] = (struct arena){ .fd = fd, .bytes = note->bytes };
    return true;
}

static void
drop_old(struct engine *n)
{
    for (uint32_t i = 0; i < HOST_PIECES; i++)
        if (n->old_host[i].fd >= 0) close(n->old_host[i].fd);
    host_tier_begin(n);
    memset(n->old_host_id, 0, sizeof n->old_host_id);
}

/* The predecessor's where it has the sizes: pages that are there need not be cleared. */
static bool
take_over(struct engine *n)
{
    struct host_memory *h = &n->host;
    bool same = true;

    for (uint32_t i = 0; i < HOST_PIECES; i++)
        same = same && (i < h->n ? n->old_host[i].fd >= 0 && n->old_host[i].bytes == h->piece
                                 : n->old_host[i].fd < 0);
    if (!same) return false;
    for (uint32_t i = 0; i < h->n; i++) h->fd[i] = n->old_host[i].fd;
    host_tier_begin(n);
    return true;
}

static int
map(struct engine *n, uint32_t want, struct err *e)
{
    while (n->host.n_mapped < want) TRY(gpu_ops(n->gpu)->host_map(n->gpu, &n->host, e));
    return MAPPED;
}

static int
make(struct engine *n, uint32_t want, struct err *e)
{
    const struct gpu_ops *op = gpu_ops(n->gpu);
    int r = 0;

    for (uint32_t i = 0; i < n->host.n && r == 0; i++) r = op->host_make(n->gpu, &n->host, i, e);
    if (r == 0) r = map(n, want, e);
    return r < 0 ? err_while(e, r, "kv.host_memory") : MADE;
}

static int
replace(struct engine *n, uint32_t want, struct err *e)
{
    const struct gpu_ops *op = gpu_ops(n->gpu);

    op->host_close(n->gpu, &n->host);
    memset(n->old_host_id, 0, sizeof n->old_host_id);
    TRY(op->host_open(n->gpu, n->kv_config.host_bytes, &n->host, e));
    return make(n, want, e);
}

int
host_tier_open(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    bool group = w->keys.tensor_parallel > 1;
    uint32_t want;
    struct err why;

    if (!n->kv_config.host_bytes) {
        drop_old(n);
        return 0;
    }
    TRY(gpu_ops(n->gpu)->host_open(n->gpu, n->kv_config.host_bytes, &n->host, e));
    want = group ? n->host.n : 1;
    if (!take_over(n)) {
        drop_old(n);
        TRY(make(n, want, e));
    } else if (!group) {
        w->host_tier.later = true;
    } else if (map(n, want, &why) < 0) {
        log_warn("%s: making another host tier", why.text);
        TRY(replace(n, want, e));
    }
    return 0;
}

int
host_tier_give(struct worker *w, struct err *e)
{
    const struct engine *n = &w->e;

    for (uint32_t i = 0; i < n->host.n; i++) {
        const struct arena piece = { .fd = n->host.fd[i], .bytes = n->host.piece };
        char name[HAND_NAME];

        hand_host(name, i);
        TRY(arena_channel_give(w, name, &piece, n->kv_id, e));
    }
    return 0;
}

bool
host_tier_keeps(const struct engine *n)
{
    return n->kv_config.host_bytes && !memcmp(n->old_host_id, n->kv_id, sizeof n->kv_id);
}

static void *
map_some(void *arg)
{
    struct worker *w = arg;
    struct host_tier *t = &w->host_tier;
    bool broken = false;
    int r;

    FP_OR(host_mapping, broken = true);
    r = broken ? err_set(&t->err, -EINVAL, "the host tier is another's")
               : map(&w->e, t->want, &t->err);
    if (r < 0 && t->later) {
        log_warn("%s: making another host tier", t->err.text);
        r = replace(&w->e, t->want, &t->err);
    }
    FP(host_mapped);
    atomic_store_explicit(&t->done, r < 0 ? LOST : r, memory_order_release);
    return NULL;
}

/* Pieces that hold something, or soon do: one more than is half full. */
static uint32_t
wanted(const struct engine *n)
{
    uint64_t piece = n->host.piece;

    return (uint32_t)MIN((kv_host_used(n->kv) + piece / 2) / piece + 1, n->host.n);
}

/* What the manifest says of another one's cells is unsaid before that is handed up. */
static void
start_anew(struct worker *w)
{
    struct err e;

    kv_host_came(w->e.kv, /* whole= */ false);
    manifest_labels(&w->e.manifest, w->e.kv);
    if (host_tier_give(w, &e) < 0) log_warn("the host tier is not kept for a successor: %s", e.text);
}

static void
use(struct worker *w, int how, nsec now)
{
    struct engine *n = &w->e;
    struct kv_count count;

    w->host_tier.later = false;
    if (how == LOST) {
        log_err("%s: going on without a host tier", w->host_tier.err.text);
        w->host_tier.stays = true;
        kv_host_empty(n->kv);
        manifest_labels(&n->manifest, n->kv);
        return;
    }
    exec_host(n->exec, &n->host);
    kv_host_room(n->kv, n->host.n_mapped * n->host.piece);
    if (how == MADE)
        start_anew(w);
    else
        kv_host_came(n->kv, /* whole= */ true);
    kv_count_host(n->kv, &count);
    log_info(
        "a host tier of %.1f MiB is there %.3f s after READY, %.1f of it mapped, %u blocks in it",
        (double)n->host.bytes / (1 << 20), (double)(now - w->ready_at) / NSEC_S,
        (double)(n->host.n_mapped * n->host.piece) / (1 << 20), count.cached);
}

/* The rest stays as it is: what is mapped is full then. */
static void
use_more(struct worker *w, int how)
{
    struct engine *n = &w->e;

    uint64_t mapped = n->host.n_mapped * n->host.piece;

    kv_host_room(n->kv, mapped);
    w->host_tier.stays = how == LOST;
    if (how == LOST)
        log_err("%s: of the host tier no more than %.1f MiB are mapped", w->host_tier.err.text,
                (double)mapped / (1 << 20));
    else
        log_info("%.1f MiB of the host tier are mapped now", (double)mapped / (1 << 20));
}

static bool
may_begin(const struct worker *w, nsec now)
{
    if (w->host_tier.later) return w->stats.v[STAT_steps] || now - w->ready_at >= SOON;
    return !w->host_tier.stays && wanted(&w->e) > w->e.host.n_mapped;
}

void
host_tier_turn(struct worker *w, nsec now)
{
    struct host_tier *t = &w->host_tier;
    int how;

    if (!w->e.host.n) return;
    if (!t->begun) {
        if (!may_begin(w, now)) return;
        t->want = wanted(&w->e);
        atomic_store_explicit(&t->done, MAPPING, memory_order_relaxed);
        if (pthread_create(&w->loader, NULL, map_some, w)) return; /* in another turn, perhaps */
        t->begun = true;
    }
    how = atomic_load_explicit(&t->done, memory_order_acquire);
    if (how == MAPPING) return;
    pthread_join(w->loader, NULL);
    t->begun = false;
    if (t->later)
        use(w, how, now);
    else
        use_more(w, how);
}

nsec
host_tier_sleep(const struct worker *w, nsec now, nsec most)
{
    nsec begin = w->ready_at + SOON - now;

    if (w->host_tier.begun) return MIN(most, LOOK);
    if (!w->host_tier.later) return most;
    return MIN(most, begin <= 0 ? LOOK : begin);
}

void
host_tier_close(struct worker *w)
{
    if (w->host_tier.begun) pthread_join(w->loader, NULL);
    w->host_tier.begun = false;
}
