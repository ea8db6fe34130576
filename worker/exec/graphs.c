/* graphs.c - decides which pieces of steps run as captured graphs; see graphs.h. */
#include "worker/exec/graphs.h"

/* The buckets. From 16 rows on at most 1/3 of a bucket is padding, from 128 on at most 1/5.
 * Encoders use the first GRAPHS_SOURCE_BUCKETS. */
static const uint32_t bucket_rows[GRAPHS_BUCKETS - 1] = { 1,   2,   4,   8,   16,  24,  32,  48,
                                                          64,  96,  128, 160, 192, 224, 256, 320,
                                                          384, 448, 512, 640, 768, 896, 1024 };

uint32_t
graphs_buckets(uint32_t bucket[GRAPHS_BUCKETS], uint32_t most)
{
    uint32_t n = 0;

    for (; n < GRAPHS_BUCKETS - 1 && bucket_rows[n] <= most; n++) bucket[n] = bucket_rows[n];
    if (n < GRAPHS_BUCKETS - 1 && n > 0 && bucket[n - 1] < most) bucket[n++] = most;
    return n;
}

uint32_t
graphs_source_bucket(uint32_t rows)
{
    for (uint32_t i = 0; i < GRAPHS_SOURCE_BUCKETS; i++)
        if (bucket_rows[i] >= rows) return bucket_rows[i];
    return 0;
}

struct graphs_slot *
graphs_use(struct graphs *g, enum graphs_kind kind, uint32_t rows, uint32_t partition,
           uint64_t step)
{
    struct graphs_slot *s = g->slot;

    while (s < g->slot + g->n && (s->rows != rows || s->kind != kind || s->partition != partition))
        s++;
    if (s == g->slot + GRAPHS_MOST) return NULL;
    if (s == g->slot + g->n) {
        *s = (struct graphs_slot){ .kind = kind, .rows = rows, .partition = partition, .wait = 1 };
        g->n++;
    }
    s->used = ++g->n_uses;
    s->step = step;
    return s;
}

bool
graphs_may_capture(struct graphs *g, struct graphs_slot *s, nsec busy)
{
    if (s->wait > 0) {
        if (s->wait != UINT32_MAX) s->wait--;
        return false;
    }
    if (g->captured == s->step) return false; /* this step has already captured another piece */
    return g->cost - busy <= GRAPHS_DELAY;
}

/* The least recently used graph whose last step is done, so it is not running; or NULL. */
static struct graphs_slot *
oldest(struct graphs *g, uint64_t done)
{
    struct graphs_slot *old = NULL;

    for (uint32_t i = 0; i < g->n; i++) {
        struct graphs_slot *s = &g->slot[i];

        if (s->graph && s->step <= done && (!old || s->used < old->used)) old = s;
    }
    return old;
}

int
graphs_keep(struct graphs *g, struct graphs_slot *s, struct graph *graph, uint64_t bytes, nsec took,
            uint64_t done, struct graph **drop)
{
    struct graphs_slot *old = NULL;

    check(!s->graph);
    *drop = NULL;
    g->cost = MAX(g->cost, took);
    g->captured = s->step;
    if (bytes > g->capacity) {
        graphs_never(s);
        return -ENOSPC;
    }
    if (g->bytes + bytes > g->capacity) {
        old = oldest(g, done);
        if (!old) {
            s->wait = GRAPHS_AGAIN;
            return -ENOSPC;
        }
        *drop = old->graph;
        g->bytes -= old->bytes;
        old->graph = NULL;
        /* Two graphs that do not both fit must not evict each other again and again. */
        old->wait = GRAPHS_AGAIN;
        return -EAGAIN;
    }
    s->graph = graph;
    s->bytes = bytes;
    g->bytes += bytes;
    return 0;
}

struct graph *
graphs_take(struct graphs *g, uint32_t partition)
{
    for (uint32_t i = 0; i < g->n; i++) {
        struct graphs_slot *s = &g->slot[i];
        struct graph *graph = s->graph;

        if (!graph || (partition != GRAPHS_ALL && s->partition != partition)) continue;
        g->bytes -= s->bytes;
        s->graph = NULL;
        s->wait = 1;
        return graph;
    }
    return NULL;
}

void
graphs_never(struct graphs_slot *s)
{
    s->wait = UINT32_MAX;
}
