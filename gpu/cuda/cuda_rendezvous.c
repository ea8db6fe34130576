/* cuda_rendezvous.c - messages between ranks in shared memory; see cuda_rendezvous.h. */
#include "gpu/cuda/cuda_rendezvous.h"

#include "base/clock.h"
#include "gpu/device.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOOK_US = 200 }; /* interval at which a waiting rank looks for a message */

struct note {
    _Alignas(CACHE_LINE) _Atomic uint32_t posted;
    char bytes[RENDEZVOUS_BYTES];
};
struct rendezvous_memory {
    struct note note[RENDEZVOUS_CHANNELS][RENDEZVOUS_NOTES][GPU_MAX_RANKS];
};
_Static_assert(sizeof(struct rendezvous_memory) <= GPU_GROUP_BYTES, "GPU_GROUP_BYTES is too small");

int
rendezvous_open(struct rendezvous *m, uint32_t rank, uint32_t ranks, int fd, struct err *e)
{
    void *p;

    TRY(rank_memory_map(&p, sizeof(struct rendezvous_memory), ranks, fd, e));
    *m = (struct rendezvous){ .rank = rank, .ranks = ranks, .memory = p };
    return 0;
}

void
rendezvous_close(struct rendezvous *m)
{
    if (m->memory) munmap(m->memory, sizeof *m->memory);
    m->memory = NULL;
}

void
rendezvous_post(struct rendezvous *m, uint32_t channel, enum rendezvous_note note,
                const void *bytes, size_t n)
{
    struct note *to = &m->memory->note[channel][note][m->rank];

    check(n <= sizeof to->bytes);
    if (n) memcpy(to->bytes, bytes, n);
    atomic_store_explicit(&to->posted, 1, memory_order_release);
}

int
rendezvous_wait(struct rendezvous *m, uint32_t channel, enum rendezvous_note note, uint32_t rank,
                void *bytes, size_t n, nsec until, struct err *e)
{
    static const char *const what[] = { "the NCCL id", "the handle of its memory",
                                        "whether it maps our memory", "that it is ready" };
    struct note *from = &m->memory->note[channel][note][rank];

    check(n <= sizeof from->bytes && rank < m->ranks);
    while (!atomic_load_explicit(&from->posted, memory_order_acquire)) {
        if (clock_now() >= until)
            return err_set(e, -ETIMEDOUT, "rank %u of %u has not sent %s; see the log of that rank",
                           rank, m->ranks, what[note]);
        usleep(LOOK_US);
    }
    if (n) memcpy(bytes, from->bytes, n);
    return 0;
}
