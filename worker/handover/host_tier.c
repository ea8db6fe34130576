/* host_tier.c - allocates, adopts and maps the memory of the host tier: see host_tier.h. */
#include "worker/handover/host_tier.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/manifest/manifest.h"

#include <unistd.h>

/* Time after READY to map an adopted tier even if no step has run: all requests have resumed. */
static const nsec MAP_DELAY = 200 * NSEC_MS;
static const nsec POLL_INTERVAL = 5 * NSEC_MS; /* time between two checks of the mapper thread */

_Static_assert((int)HOST_PIECES <= (int)FD_CHANNEL_HOSTS, "each piece has a name");

/* host_tier.done: mapping runs; succeeded; failed, so an empty tier is made; both have failed. */
enum { MAPPING, MAPPED, MADE, LOST };
/* What the start copies to measure: 2 ms at 16 GB/s. The pages of host memory stay allocated. */
static const uint64_t MEASURED_BYTES = 32 << 20;
enum { MEASURED_BLOCKS = 16 };

void
host_tier_init(struct worker *w)
{
    for (uint32_t i = 0; i < HOST_PIECES; i++) w->host_tier->old[i] = (struct arena){ .fd = -1 };
}

/* Returns the index of the piece with this name; HOST_PIECES: it is not the name of a piece. */
static uint32_t
piece_of(const char *name)
{
    char host[FD_CHANNEL_NAME];

    for (uint32_t i = 0; i < HOST_PIECES; i++) {
        fd_channel_host(host, i);
        if (!strcmp(name, host)) return i;
    }
    return HOST_PIECES;
}

/* Keeps the fd of a piece. Closes it if the KV id is not equal to the KV id of the first piece. */
bool
host_tier_take(struct worker *w, const struct fd_channel_note *note, int fd)
{
    struct host_tier *t = w->host_tier;
    static const uint64_t none[2];
    uint32_t i = piece_of(note->name);

    if (i == HOST_PIECES) return false;
    if (!memcmp(t->old_id, none, sizeof none))
        memcpy(t->old_id, note->fingerprint, sizeof t->old_id);
    if (t->old[i].fd >= 0 || memcmp(t->old_id, note->fingerprint, sizeof t->old_id))
        close(fd);
    else
        t->old[i] = (struct arena){ .fd = fd, .bytes = note->bytes };
    return true;
}

static void
drop_old(struct worker *w)
{
    struct host_tier *t = w->host_tier;
    for (uint32_t i = 0; i < HOST_PIECES; i++)
        if (t->old[i].fd >= 0) close(t->old[i].fd);
    host_tier_init(w);
    memset(t->old_id, 0, sizeof t->old_id);
}

/* Reuses the previous worker's pieces if their number and sizes match, also if their contents are
 * not used, because the kernel need not zero their pages again. */
static bool
use_old_pieces(struct worker *w)
{
    struct host_memory *h = &w->host_tier->host;
    bool same = true;

    for (uint32_t i = 0; i < HOST_PIECES; i++)
        same = same &&
               (i < h->n ? w->host_tier->old[i].fd >= 0 && w->host_tier->old[i].bytes == h->piece
                         : w->host_tier->old[i].fd < 0);
    if (!same) return false;
    for (uint32_t i = 0; i < h->n; i++) h->fd[i] = w->host_tier->old[i].fd;
    host_tier_init(w);
    return true;
}

static int
map_pieces(struct worker *w, uint32_t want, struct err *e)
{
    while (w->host_tier->host.n_mapped < want)
        TRY(gpu_ops(w->gpu)->mem.host_map(w->gpu, &w->host_tier->host, e));
    return MAPPED;
}

static int
make_pieces(struct worker *w, uint32_t want, struct err *e)
{
    const struct gpu_ops *op = gpu_ops(w->gpu);
    int r = 0;

    for (uint32_t i = 0; i < w->host_tier->host.n && r == 0; i++)
        r = op->mem.host_make(w->gpu, &w->host_tier->host, i, e);
    if (r == 0) r = map_pieces(w, want, e);
    return r < 0 ? err_while(e, r, "kv.host_memory") : MADE;
}

static int
replace_pieces(struct worker *w, uint32_t want, struct err *e)
{
    struct host_tier *t = w->host_tier;
    const struct gpu_ops *op = gpu_ops(w->gpu);

    op->mem.host_close(w->gpu, &t->host);
    memset(t->old_id, 0, sizeof t->old_id);
    TRY(op->mem.host_open(w->gpu, w->kv_config->host_bytes, &t->host, e));
    return make_pieces(w, want, e);
}

int
host_tier_open(struct worker *w, struct err *e)
{
    struct host_tier *t = w->host_tier;
    bool group = w->keys->tensor_parallel > 1;
    uint32_t want;
    struct err why;

    if (!w->kv_config->host_bytes) {
        drop_old(w);
        return 0;
    }
    TRY(gpu_ops(w->gpu)->mem.host_open(w->gpu, w->kv_config->host_bytes, &t->host, e));
    want = group ? t->host.n : 1;
    if (!use_old_pieces(w)) {
        drop_old(w);
        TRY(make_pieces(w, want, e));
    } else if (!group) {
        t->map_later = true;
    } else if (map_pieces(w, want, &why) < 0) {
        log_warn("cannot map the previous host tier: %s; making an empty one", why.text);
        TRY(replace_pieces(w, want, e));
    }
    return 0;
}

int
host_tier_give(struct worker *w, struct err *e)
{
    struct host_tier *t = w->host_tier;
    for (uint32_t i = 0; i < t->host.n; i++) {
        const struct arena piece = { .fd = t->host.fd[i], .bytes = t->host.piece };
        char name[FD_CHANNEL_NAME];

        fd_channel_host(name, i);
        TRY(adopt_give_arena(w, name, &piece, w->adopt->kv_id, e));
    }
    return 0;
}

void
host_tier_measure(struct worker *w)
{
    struct host_tier *t = w->host_tier;
    uint32_t group = 0;
    struct kv_count c;
    uint64_t n;

    kv_count_host(w->kv, &c);
    if (!t->host.base || t->map_later || !c.blocks) return;
    for (uint32_t g = 0; g < w->kv_config->n_groups; g++)
        if (kv_block_bytes(&w->kv_config->group[g]) > kv_block_bytes(&w->kv_config->group[group]))
            group = g;
    n = MIN(t->host.n_mapped * t->host.piece / c.block_bytes, (uint64_t)MEASURED_BLOCKS);
    n = MIN(n, MAX(MEASURED_BYTES / c.block_bytes, UINT64_C(1)));
    if (!n) return;
    t->bandwidth = exec_host_rate(w->exec, group, kv_scratch(w->kv, group), (uint32_t)n,
                                  c.block_bytes);
    log_info("host tier: %.2f GB/s from host memory to the device", (double)t->bandwidth / 1e9);
}

void
host_tier_learn(struct worker *w, double ns)
{
    const struct model_options *k = w->keys;
    struct host_tier *t = w->host_tier;

    if (!t->host.n) return;
    t->token_ns = t->token_ns > 0 ? 0.9 * t->token_ns + 0.1 * ns : ns;
    kv_host_tier_rates(w->kv, k->kv_host_bandwidth ? k->kv_host_bandwidth : t->bandwidth,
                       k->kv_prefill_rate ? NSEC_S / k->kv_prefill_rate : (nsec)t->token_ns);
}

bool
host_tier_keeps(const struct worker *w)
{
    return w->kv_config->host_bytes &&
           !memcmp(w->host_tier->old_id, w->adopt->kv_id, sizeof w->adopt->kv_id);
}

static void *
mapper_run(void *arg)
{
    struct worker *w = arg;
    struct host_tier *t = w->host_tier;
    bool broken = false;
    int r;

    FP_OR(host_mapping, broken = true);
    r = broken ? err_set(&t->err, -EINVAL, "failpoint: mapping failed")
               : map_pieces(w, t->want, &t->err);
    if (r < 0 && t->map_later) {
        log_warn("cannot map the previous host tier: %s; making an empty one", t->err.text);
        r = replace_pieces(w, t->want, &t->err);
    }
    FP(host_mapped);
    atomic_store_explicit(&t->done, r < 0 ? LOST : r, memory_order_release);
    return NULL;
}

/* Returns how many pieces should be mapped: one more than are at least half full. */
static uint32_t
wanted_pieces(const struct worker *w)
{
    uint64_t piece = w->host_tier->host.piece;

    return (uint32_t)MIN((kv_host_tier_used(w->kv) + piece / 2) / piece + 1, w->host_tier->host.n);
}

/* Removes the previous tier's host blocks from the manifest, then sends the new tier to lagand. */
static void
publish_new_tier(struct worker *w)
{
    struct err e;

    kv_host_tier_came(w->kv, /* contents_valid= */ false);
    manifest_put_nodes(&w->adopt->manifest, w->kv);
    if (host_tier_give(w, &e) < 0)
        log_warn("cannot send the host tier to lagand: %s; a replacement cannot reuse it", e.text);
}

static void
use_tier(struct worker *w, int how, nsec now)
{
    struct host_tier *t = w->host_tier;
    struct kv_count count;

    t->map_later = false;
    if (how == LOST) {
        log_err("cannot allocate the host tier: %s; serving without a host tier", t->err.text);
        t->cannot_grow = true;
        kv_host_tier_clear(w->kv);
        manifest_put_nodes(&w->adopt->manifest, w->kv);
        return;
    }
    exec_host(w->exec, &t->host);
    kv_host_tier_set_size(w->kv, t->host.n_mapped * t->host.piece);
    if (how == MADE)
        publish_new_tier(w);
    else
        kv_host_tier_came(w->kv, /* contents_valid= */ true);
    kv_count_host(w->kv, &count);
    log_info("host tier ready %.3f s after the worker: %.1f MiB, %.1f MiB mapped, %u cached blocks",
             (double)(now - w->ready_at) / NSEC_S, (double)t->host.bytes / (1 << 20),
             (double)(t->host.n_mapped * t->host.piece) / (1 << 20), count.cached);
}

/* Adds the mapped pieces to the tier. how LOST: a piece could not be mapped, so none will be. */
static void
use_more(struct worker *w, int how)
{
    struct host_tier *t = w->host_tier;
    uint64_t mapped = t->host.n_mapped * t->host.piece;

    kv_host_tier_set_size(w->kv, mapped);
    t->cannot_grow = how == LOST;
    if (how == LOST)
        log_err("cannot map more of the host tier: %s; using the mapped %.1f MiB only", t->err.text,
                (double)mapped / (1 << 20));
    else
        log_info("%.1f MiB of the host tier are mapped now", (double)mapped / (1 << 20));
}

static bool
may_start_mapping(const struct worker *w, nsec now)
{
    const struct host_tier *t = w->host_tier;
    if (t->map_later) return w->stats->v[STAT_steps] || now - w->ready_at >= MAP_DELAY;
    return !t->cannot_grow && wanted_pieces(w) > t->host.n_mapped;
}

void
host_tier_update(struct worker *w, nsec now)
{
    struct host_tier *t = w->host_tier;
    int how;

    if (!t->host.n) return;
    if (!t->mapper_runs) {
        if (!may_start_mapping(w, now)) return;
        t->want = wanted_pieces(w);
        atomic_store_explicit(&t->done, MAPPING, memory_order_relaxed);
        if (pthread_create(&t->mapper, NULL, mapper_run, w)) return; /* retried later */
        t->mapper_runs = true;
    }
    how = atomic_load_explicit(&t->done, memory_order_acquire);
    if (how == MAPPING) return;
    pthread_join(t->mapper, NULL);
    t->mapper_runs = false;
    if (t->map_later)
        use_tier(w, how, now);
    else
        use_more(w, how);
}

nsec
host_tier_sleep(const struct worker *w, nsec now, nsec most)
{
    const struct host_tier *t = w->host_tier;
    nsec begin = w->ready_at + MAP_DELAY - now;

    if (t->mapper_runs) return MIN(most, POLL_INTERVAL);
    if (!t->map_later) return most;
    return MIN(most, begin <= 0 ? POLL_INTERVAL : begin);
}

void
host_tier_close(struct worker *w)
{
    struct host_tier *t = w->host_tier;
    if (t->mapper_runs) pthread_join(t->mapper, NULL);
    t->mapper_runs = false;
}
