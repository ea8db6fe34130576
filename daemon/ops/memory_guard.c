/* memory_guard.c - see memory_guard.h. */
#include "daemon/ops/memory_guard.h"

#include "base/log.h"
#include "daemon/net/frontend.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/deliver.h"

#include <malloc.h>

/* Bytes. GROWTH: if lagand grew by more since the last check, the next check is SOON. UNUSED: if
 * malloc() has more free memory, it is returned to the system after CALM. UNREAD_MUCH: a client
 * that has at least this many unread bytes does not read. */
enum { GROWTH = 16 << 20, UNUSED = 32 << 20, UNREAD_MUCH = 64 << 10 };
enum { FEW = 6 }; /* so few connections cannot use more than MEMORY_GUARD_BYTES */
/* QUIET: a client silent for so long is idle. FREED: time to free a closed connection's memory. */
static const nsec SOON = 5 * NSEC_MS, OFTEN = 50 * NSEC_MS, QUIET = 100 * NSEC_MS, FREED = NSEC_S,
                  LOG_INTERVAL = 10 * NSEC_S, CALM = 2 * NSEC_S;

enum stage { SILENT, IDLE, UNREAD, ANY, N_STAGES }; /* connections that are closed, in this order */
static const char *const stage_names[] = {
    [SILENT] = "have sent no message",
    [IDLE] = "have no open request",
    [UNREAD] = "do not read",
    [ANY] = "are open",
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void); /* gcc has no header for it */
#endif

/* Returns the allocated bytes of lagand. *unused: free memory of malloc(), which it will reuse. */
static uint64_t
own_bytes(uint64_t *unused)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    *unused = 0; /* the sanitizers have another malloc() */
    return __sanitizer_get_current_allocated_bytes();
#else
    struct mallinfo2 m = mallinfo2();

    *unused = m.fordblks;
    return m.uordblks + m.hblkhd;
#endif
}

/* Closes all connections of one stage and returns their number. */
static uint32_t
close_stage(struct daemon *d, enum stage stage)
{
    struct connections *all = d->frontend->connections;
    struct client *c;
    uint32_t n = 0;
    nsec since;
    int fd;

    for (; stage == SILENT && (fd = connections_oldest_unidentified(all, &since)) >= 0; n++)
        frontend_disconnect_fd(d, fd);
    for (uint32_t at = 0; stage != SILENT && (c = session_next(d->sessions, &at));) {
        if (c->listener == LISTENER_CTL ||
            (stage == IDLE && (c->n_open || d->now - c->received_at < QUIET)) ||
            (stage == UNREAD && c->sent - c->read < UNREAD_MUCH))
            continue;
        deliver_client_disconnected(d, c->handle);
        n++;
    }
    return n;
}

/* Closes the connections of the first stage that has some. In the time FREED after it has closed
 * connections, skips the stages UNREAD and ANY: the memory of the closed ones may be enough. */
static void
relieve(struct daemon *d, uint64_t now, uint64_t may)
{
    struct memory_guard *p = d->memory_guard;
    enum stage last = d->now - p->closed_at < FREED ? IDLE : ANY, stage = SILENT;
    uint32_t n = close_stage(d, stage);

    while (!n && stage < last) n = close_stage(d, ++stage);
    if (!n) return;
    p->closed_at = d->now;
    if (p->logged_at && d->now - p->logged_at < LOG_INTERVAL) return;
    p->logged_at = d->now;
    log_warn("lagand uses %llu MiB, but its requests need at most %llu MiB; closing %u connections "
             "that %s",
             (unsigned long long)now >> 20, (unsigned long long)(may - MEMORY_GUARD_BYTES) >> 20, n,
             stage_names[stage]);
    event_log_add(
        d, "client", "",
        "lagand uses %llu MiB, more than its requests need; closed %u connections that %s",
        (unsigned long long)now >> 20, n, stage_names[stage]);
}

nsec
memory_guard_look(struct daemon *d)
{
    struct memory_guard *p = d->memory_guard;
    uint64_t unused, now = own_bytes(&unused), before = p->last, may;

    if (!p->base) p->base = before = now;
    p->last = now;
    may = p->base + d->held_bytes + LEDGER_KEEP_BYTES + MEMORY_GUARD_BYTES;
    if (now > may) relieve(d, now, may);
    if (now > before + GROWTH || now > may) {
        p->calm_at = d->now + CALM;
        return d->now + SOON;
    }
    if (unused > UNUSED && d->now >= p->calm_at) {
        malloc_trim(0);
        p->calm_at = d->now + CALM;
    }
    return connections_n(d->frontend->connections) > FEW ? d->now + OFTEN : NSEC_NEVER;
}
