/* rank_memory.c - maps the memory that the ranks of a rank group share; see device.h. */
#include "gpu/device.h"

#include <sys/mman.h>
#include <sys/stat.h>

int
rank_memory_map(void **ret, size_t bytes, uint32_t ranks, int fd, struct err *e)
{
    struct stat st;
    void *p;

    if (fstat(fd, &st) < 0)
        return err_set(e, -errno, "cannot query the memory of %u ranks, fd %d: %m", ranks, fd);
    if ((uint64_t)st.st_size != GPU_GROUP_BYTES)
        return err_set(e, -EINVAL, "the memory of %u ranks, fd %d, has %lld bytes, expected %llu",
                       ranks, fd, (long long)st.st_size, (unsigned long long)GPU_GROUP_BYTES);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return err_set(e, -errno, "cannot map the memory of %u ranks: %m", ranks);
    *ret = p;
    return 0;
}
