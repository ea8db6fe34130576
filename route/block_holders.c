/* block_holders.c - see block_holders.h. A hash table with chaining: an entry is one pair (name of
 * a block, worker that has it), and all pairs of one name are in the chain of one bucket. */
#include "route/block_holders.h"

struct holding {
    uint64_t name[2];
    uint32_t worker, next; /* next pair of the bucket or of the free list: index + 1; 0: the end */
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

void
block_holders_add(struct block_holders *h, uint32_t worker, const uint64_t name[2])
{
    uint32_t *first = bucket(h, name), i;

    for (i = *first; i; i = h->all[i - 1].next)
        if (h->all[i - 1].worker == worker && is(&h->all[i - 1], name)) return;
    if (h->first_free) {
        i = h->first_free;
        h->first_free = h->all[i - 1].next;
    } else if (h->n_fresh < h->max) {
        i = ++h->n_fresh;
    } else {
        return;
    }
    h->all[i - 1] = (struct holding){ { name[0], name[1] }, worker, *first };
    *first = i;
}

static void
unlink_at(struct block_holders *h, uint32_t *link)
{
    uint32_t i = *link;

    *link = h->all[i - 1].next;
    h->all[i - 1].next = h->first_free;
    h->first_free = i;
}

void
block_holders_remove(struct block_holders *h, uint32_t worker, const uint64_t name[2])
{
    for (uint32_t *link = bucket(h, name); *link; link = &h->all[*link - 1].next) {
        if (h->all[*link - 1].worker != worker || !is(&h->all[*link - 1], name)) continue;
        unlink_at(h, link);
        return;
    }
}

void
block_holders_forget(struct block_holders *h, uint32_t worker)
{
    for (uint32_t b = 0; b < h->n_buckets; b++)
        for (uint32_t *link = &h->bucket[b]; *link;)
            if (h->all[*link - 1].worker == worker)
                unlink_at(h, link);
            else
                link = &h->all[*link - 1].next;
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
