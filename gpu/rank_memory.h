/* rank_memory.h - the shared memory of a rank group. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Maps the first bytes of gpu_options.group_fd; the caller unmaps them. The memory is zero when a
 * group starts. -EINVAL: ranks is above GPU_MAX_RANKS or fd has fewer than GPU_GROUP_BYTES. */
int rank_memory_map(void **ret, size_t bytes, uint32_t ranks, int fd, struct err *e) MUST_USE;
