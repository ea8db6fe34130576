/* map.h - a u64 to u32 table of fixed capacity; no allocation after map_new(). One thread. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/base.h"

#define MAP_NONE UINT32_MAX

struct map;

/* Room for max keys, from 1 to 2^31. NULL when memory ran out. */
struct map *map_new(uint32_t max) MUST_USE;
struct map *map_free(struct map *m); /* NULL in, NULL out */
CLEAN_FUNC(struct map, map_free)

uint32_t map_find(const struct map *m, uint64_t key); /* MAP_NONE: absent */
/* -ENOSPC: full. -EEXIST: the key is there; nothing changes. value < MAP_NONE. */
int map_put(struct map *m, uint64_t key, uint32_t value) MUST_USE;
uint32_t map_take(struct map *m, uint64_t key); /* removes; MAP_NONE: was not there */
uint32_t map_n(const struct map *m);

#endif
