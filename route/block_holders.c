/* block_holders.c - see block_holders.h. A hash table with chaining: an entry is one pair (name of
 * a block, worker that has it), and all pairs of one name are in the chain of one bucket. */
#include "route/block_holders.h"

struct holding {
    uint64_t name[2], parent[2];
    uint32_t worker, next; /* next pair of the bucket or of the free list: index + 1; 0: the end */
    uint16_t n_tokens;
    uint8_t groups, on_host; /* bits: groups that have the block; only in the host tier. 0: free */
    uint8_t priority;
};
struct block_holders {
    struct holding *all;
    uint32_t *bucket, n_buckets;
    uint32_t n_fresh, max, first_free; /* all[n_fresh ..] were never used; free list: index + 1 */
};

struct block_holders *
block_holders_new(uint32_t max_blocks)
{
    struct block_holders *h = calloc(1, sizeof *h);

    if (!h) return NULL;
    h->max = max_blocks;
    for (h->n_buckets = 64; h->n_buckets < max_blocks && h->n_buckets < 1u << 31;)
        h->n_buckets *= 2;
    h->all = calloc(max_blocks, sizeof h->all[0]);
    h->bucket = calloc(h->n_buckets, sizeof h->bucket[0]);
    return h->all && h->bucket ? h : block_holders_free(h);
}

struct block_holders *
block_holders_free(struct block_holders *h)
{
    if (h) {
        free(h->all);
        free(h->bucket);
    }
    free(h);
    return NULL;
}

static uint32_t *
bucket(const struct block_holders *h, const uint64_t name[2])
{
    return &h->bucket[name[0] & (h->n_buckets - 1)];
}

static bool
is(const struct holding *k, const uint64_t name[2])
{
    return k->name[0] == name[0] && k->name[1] == name[1];
}

/* Returns the link to the pair of this name and worker, or the last link of the bucket, 0. */
static uint32_t *
find(const struct block_holders *h, uint32_t worker, const uint64_t name[2])
{
    uint32_t *link = bucket(h, name);

    while (*link && (h->all[*link - 1].worker != worker || !is(&h->all[*link - 1], name)))
        link = &h->all[*link - 1].next;
    return link;
}

void
block_holders_add(struct block_holders *h, uint32_t worker, const struct held_block *b)
{
    uint32_t i = *find(h, worker, b->name), *first = bucket(h, b->name);
    uint8_t bit = (uint8_t)(1u << b->group);
    struct holding *k;

    if (!i && h->first_free) {
        i = h->first_free;
        h->first_free = h->all[i - 1].next;
    } else if (!i && h->n_fresh < h->max) {
        i = ++h->n_fresh;
    } else if (!i) {
        return;
    }
    k = &h->all[i - 1];
    if (!k->groups) {
        *k = (struct holding){ .name = { b->name[0], b->name[1] },
                               .worker = worker,
                               .next = *first };
        *first = i;
    }
    memcpy(k->parent, b->parent, sizeof k->parent);
    k->n_tokens = b->n_tokens;
    k->priority = b->priority;
    k->groups |= bit;
    k->on_host = (uint8_t)(b->on_host ? k->on_host | bit : k->on_host & ~bit);
}

static void
unlink_at(struct block_holders *h, uint32_t *link)
{
    uint32_t i = *link;

    *link = h->all[i - 1].next;
    h->all[i - 1].groups = 0;
    h->all[i - 1].next = h->first_free;
    h->first_free = i;
}

void
block_holders_remove(struct block_holders *h, uint32_t worker, const uint64_t name[2],
                     uint8_t group)
{
    uint32_t *link = find(h, worker, name);
    struct holding *k = *link ? &h->all[*link - 1] : NULL;
    uint8_t others = (uint8_t) ~(1u << group);

    if (!k) return;
    k->groups &= others;
    k->on_host &= others;
    if (!k->groups) unlink_at(h, link);
}

void
block_holders_forget(struct block_holders *h, uint32_t worker)
{
    for (uint32_t i = 0; i < h->n_fresh; i++)
        if (h->all[i].groups && h->all[i].worker == worker)
            unlink_at(h, find(h, worker, h->all[i].name));
}

uint32_t
block_holders_list(const struct block_holders *h, uint32_t worker, uint32_t *at,
                   struct held_block *ret, uint32_t max)
{
    uint32_t n = 0;

    for (; *at < h->n_fresh && n + 8 <= max; ++*at) {
        const struct holding *k = &h->all[*at];

        if (k->worker != worker) continue;
        for (uint8_t g = 0; g < 8; g++)
            if (k->groups >> g & 1)
                ret[n++] = (struct held_block){ { k->name[0], k->name[1] },
                                                { k->parent[0], k->parent[1] },
                                                k->n_tokens,
                                                g,
                                                k->on_host >> g & 1,
                                                k->priority };
    }
    return n;
}

uint32_t
block_holders_find(const struct block_holders *h, const uint64_t (*name)[2], uint32_t n,
                   uint32_t *worker, uint32_t *found, uint32_t max)
{
    uint32_t some = 0;

    for (; n > 0; n--) {
        uint32_t holders = 0, known = some;

        for (uint32_t i = *bucket(h, name[n - 1]); i; i = h->all[i - 1].next) {
            uint32_t k = 0;

            if (!is(&h->all[i - 1], name[n - 1])) continue;
            if (++holders > max) return known;
            while (k < known && worker[k] != h->all[i - 1].worker) k++;
            if (k < known || some == max) continue; /* known: the worker also has a later block */
            worker[some] = h->all[i - 1].worker;
            found[some++] = n;
        }
    }
    return some;
}
