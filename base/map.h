/* map.h - a hash table from uint64_t to uint32_t with fixed capacity, for one thread. */
#pragma once
#include "base/base.h"

#define MAP_NONE UINT32_MAX

struct map;

/* max: capacity in keys, 1 .. 2^31. Returns NULL if memory is exhausted. */
struct map *map_new(uint32_t max) MUST_USE;
struct map *map_free(struct map *m); /* NULL is allowed; returns NULL */
CLEAN_FUNC(struct map, map_free)

uint32_t map_find(const struct map *m, uint64_t key); /* the value; MAP_NONE: no such key */
/* Inserts a key; value < MAP_NONE. -ENOSPC: the table is full. -EEXIST: the key has a value. */
int map_put(struct map *m, uint64_t key, uint32_t value) MUST_USE;
uint32_t map_take(struct map *m, uint64_t key); /* removes a key, returns its value */
uint32_t map_n(const struct map *m);            /* number of keys */
