/* step_log.c - see step_log.h. */
#include "daemon/supervise/step_log.h"

/* A worker whose counter advances by more than this between two reads has damaged it. */
static const uint64_t MAX_ADVANCE = 1u << 24;

void
step_log_restart(struct step_log *l)
{
    l->taken = 0;
}

/* Copies record n of `from` to r. Returns false if the worker changed it meanwhile. */
static bool
copy(struct step_record *r, const struct step_record *from, uint64_t n)
{
    uint64_t seq = atomic_load_explicit(&from->seq, memory_order_acquire);

    shm_copy_in(r, from, sizeof *r);
    atomic_thread_fence(memory_order_acquire); /* pair: release fence in step_record_put() */
    return seq == 2 * n + 2 && atomic_load_explicit(&from->seq, memory_order_relaxed) == seq;
}

uint64_t
step_log_read(struct step_log *l, const struct step_records *of)
{
    uint64_t n = atomic_load_explicit(&of->n, memory_order_acquire), first = l->next + 1, lost;

    if (n - l->taken > MAX_ADVANCE) l->taken = n;
    lost = n - l->taken - MIN(n - l->taken, (uint64_t)STEP_RECORDS);
    l->taken += lost;
    l->next += lost;
    for (; l->taken < n; l->taken++) {
        struct step_copy *to = &l->at[l->next++ % STEP_RECORDS];
        bool whole = copy(&to->r, &of->entry[l->taken % STEP_RECORDS], l->taken);

        to->number = whole ? l->next : 0;
        to->r.n_pools = MIN(to->r.n_pools, (uint8_t)SHM_MAX_GROUPS);
    }
    return first;
}

const struct step_copy *
step_log_at(const struct step_log *l, uint64_t number)
{
    uint64_t oldest = l->next - MIN(l->next, (uint64_t)STEP_RECORDS) + 1;

    for (number = MAX(number, oldest); number <= l->next; number++) {
        const struct step_copy *c = &l->at[(number - 1) % STEP_RECORDS];

        if (c->number == number) return c;
    }
    return NULL;
}
