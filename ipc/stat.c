/* stat.c - see stat.h. */
#include "ipc/stat.h"

#include "base/failpoint.h"

/* clang-format off */
const struct stat_row stat_rows[STAT_COUNT] = {
#define X(kind, name, unit, sentence) { STAT_##kind, #name, unit, sentence },
    STATS(X)
#undef X
};
const struct stat_row group_stat_rows[GROUP_STAT_COUNT] = {
#define X(kind, name, unit, sentence) { STAT_##kind, #name, unit, sentence },
    GROUP_STATS(X)
#undef X
};
/* clang-format on */
const char *const group_kinds[] = { "none", "full", "window", "cross", "state" };

void
stat_publish(struct shm_ctl *mine, const struct stats *s)
{
    uint32_t seq = atomic_load_explicit(&mine->stat_seq, memory_order_relaxed);

    atomic_store_explicit(&mine->stat_seq, seq + 1, memory_order_relaxed);
    /* stat_seq is odd before the values change; pair: fence of stat_read() */
    atomic_thread_fence(memory_order_release);
    FP(stat_writing);
    for (uint32_t i = 0; i < STAT_COUNT; i++) {
        atomic_store_explicit(&mine->stat[i], s->v[i], memory_order_relaxed);
    }
    for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++)
        for (uint32_t i = 0; i < GROUP_STAT_COUNT; i++)
            atomic_store_explicit(&mine->group_stat[g][i], s->group[g][i], memory_order_relaxed);
    atomic_store_explicit(&mine->stat_seq, seq + 2, memory_order_release); /* pair: stat_read() */
}

bool
stat_read(const struct shm_ctl *peer, struct stats *ret)
{
    /* A writer that was killed during a write leaves stat_seq odd, so after 3 attempts the caller
     * uses its previous copy. */
    for (int i = 0; i < 3; i++) {
        uint32_t seq = atomic_load_explicit(&peer->stat_seq, memory_order_acquire);
        struct stats s;

        if (seq % 2) continue;
        for (uint32_t k = 0; k < STAT_COUNT; k++) {
            s.v[k] = atomic_load_explicit(&peer->stat[k], memory_order_relaxed);
        }
        for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++)
            for (uint32_t k = 0; k < GROUP_STAT_COUNT; k++)
                s.group[g][k] = atomic_load_explicit(&peer->group_stat[g][k], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&peer->stat_seq, memory_order_relaxed) == seq) {
            *ret = s;
            return true;
        }
    }
    return false;
}
