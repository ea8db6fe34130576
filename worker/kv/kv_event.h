/* kv_event.h - what may be found and what no longer: for routers, dumps and a successor.
 *
 * A ring of the last c.max_events, one event a block, in order. A reader keeps the number of the next event
 * that it wants; whoever comes too late is told how many it missed and starts again from a snapshot:
 *
 *     next = kv_event_end(kv);  every kv_event_snapshot();  from then on kv_events(kv, &next, ...)
 *
 * A name is a block's for all groups and for all time: of its tokens, of those before them and of their
 * space (kv_reuse.h), under a secret of this start.
 */
#ifndef KV_EVENT_H
#define KV_EVENT_H

#include "worker/kv/kv.h"

enum kv_event_op { KV_STORED, KV_REMOVED, KV_UPDATED };
/* Nothing is removed when a process ends: its successor finds it. */
enum kv_why {
    KV_ASKED, /* by a request: it stores it, says how long it is kept, fetches it or goes on in it */
    KV_PRESSURE, /* its place is taken for others */
    KV_ORPHAN,   /* the same, and before all others: what led to it had gone */
    KV_LOST,     /* with the host's memory */
    KV_FLUSHED,  /* an operator asked */
    KV_WHYS
};
struct kv_event {
    uint64_t name[2], parent[2]; /* parent of the first block: the space */
    uint8_t op, group;
    uint8_t priority, was; /* was: UPDATED, before */
    uint8_t tier;          /* enum tier, the faster one that has it; UPDATED: from now on */
    uint8_t why;           /* enum kv_why */
    uint16_t n_tokens;
};

static inline const char *
kv_why_name(enum kv_why why)
{
    static const char *const names[KV_WHYS] = { "asked", "pressure", "orphan", "lost", "flushed" };

    return names[why];
}

uint64_t kv_event_end(const struct kv *kv); /* the number of the event that will be next */
/* Up to max events from *next on, which moves behind them; *n_missed: those before it that are gone. */
uint32_t kv_events(const struct kv *kv, uint64_t *next, struct kv_event *ret, uint32_t max,
                   uint64_t *n_missed);
/* Up to max blocks that may be found, as KV_STORED, in any order; *at begins with 0. 0: that was all.
 * Nothing may change between the first call and the last. */
uint32_t kv_event_snapshot(const struct kv *kv, uint32_t *at, struct kv_event *ret, uint32_t max);

#endif
