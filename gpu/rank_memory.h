/* rank_memory.h - the memory that ranks of one group share, before anything else joins them. */
#ifndef GPU_RANK_MEMORY_H
#define GPU_RANK_MEMORY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Maps the first bytes of gpu_options.group_fd for a rank of ranks; the caller unmaps them. Zeros
 * when a group begins. -EINVAL: fd has not GPU_GROUP_BYTES. */
int rank_memory_map(void **ret, size_t bytes, uint32_t ranks, int fd, struct err *e) MUST_USE;

#endif
