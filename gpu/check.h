/* check.h - the entries of check.c's table that are in check_memory.c; documented in gpu.h. */
#pragma once

#include "gpu/device.h"

int checked_arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                       struct err *e);
int checked_arena_adopt(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e);
void checked_arena_drop(struct gpu *g, struct arena *a);
int checked_host_open(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e);
int checked_host_make(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e);
int checked_host_map(struct gpu *g, struct host_memory *m, struct err *e);
void checked_host_close(struct gpu *g, struct host_memory *m);
int checked_host_pin(struct gpu *g, void *p, size_t bytes);
void checked_host_unpin(struct gpu *g, void *p, size_t bytes);
