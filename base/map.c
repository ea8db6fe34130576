/* map.c - see map.h.
 *
 * Open addressing with linear probing, at most half full, so a probe reads one or two cache lines.
 * Removal moves later entries of a run of occupied entries back instead of leaving tombstones,
 * which would slow down a table that lives for months. Value MAP_NONE: empty entry. */
#include "base/map.h"

struct map {
    uint64_t mask; /* number of entries - 1 */
    uint32_t n, max;
    uint64_t *key;
    uint32_t *value;
};

/* Returns the preferred index of a key: the finaliser of splitmix64. Without it consecutive ids
 * would have consecutive indices and form long runs of occupied entries. */
static uint64_t
home(const struct map *m, uint64_t key)
{
    key = (key ^ (key >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    key = (key ^ (key >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (key ^ (key >> 31)) & m->mask;
}

/* Returns the index of the key, or of the empty entry where it would be inserted. */
static uint64_t
slot_of(const struct map *m, uint64_t key)
{
    uint64_t i = home(m, key);

    while (m->value[i] != MAP_NONE && m->key[i] != key) i = (i + 1) & m->mask;
    return i;
}

struct map *
map_new(uint32_t max)
{
    CLEAN(map_free_at) struct map *m = calloc(1, sizeof *m);
    uint64_t slots = 2;

    check(max >= 1 && max <= UINT32_C(1) << 31);
    if (!m) return NULL;
    while (slots < 2 * (uint64_t)max) slots *= 2;
    m->mask = slots - 1;
    m->max = max;
    m->key = calloc(slots, sizeof *m->key);
    m->value = malloc(slots * sizeof *m->value);
    if (!m->key || !m->value) return NULL;
    memset(m->value, 0xff, slots * sizeof *m->value);
    return TAKE(m);
}

struct map *
map_free(struct map *m)
{
    if (!m) return NULL;
    free(m->key);
    free(m->value);
    free(m);
    return NULL;
}

uint32_t
map_find(const struct map *m, uint64_t key)
{
    return m->value[slot_of(m, key)];
}

int
map_put(struct map *m, uint64_t key, uint32_t value)
{
    uint64_t i = slot_of(m, key);

    check(value < MAP_NONE);
    if (m->value[i] != MAP_NONE) return -EEXIST;
    if (m->n == m->max) return -ENOSPC;
    m->key[i] = key;
    m->value[i] = value;
    m->n++;
    return 0;
}

uint32_t
map_take(struct map *m, uint64_t key)
{
    uint64_t hole = slot_of(m, key);
    uint32_t value = m->value[hole];

    if (value == MAP_NONE) return MAP_NONE;
    for (uint64_t i = (hole + 1) & m->mask; m->value[i] != MAP_NONE; i = (i + 1) & m->mask) {
        /* Entry i may fill the hole unless its home lies between the hole and i. */
        if (((i - home(m, m->key[i])) & m->mask) < ((i - hole) & m->mask)) continue;
        m->key[hole] = m->key[i];
        m->value[hole] = m->value[i];
        hole = i;
    }
    m->value[hole] = MAP_NONE;
    m->n--;
    return value;
}

uint32_t
map_n(const struct map *m)
{
    return m->n;
}
