/* kv_publish.c - see kv_publish.h. */
#include "worker/io/kv_publish.h"

#include "ipc/channel.h"
#include "ipc/records.h"
#include "ipc/stat.h"
#include "worker/io/outbox.h"
#include "worker/kv/kv_event.h"

_Static_assert(TIER_DEVICE == 0 && TIER_HOST == 1, "rec_kv_event.tier");

enum { MAX_RECORDS = 4 }; /* in one iteration of the loop: 1,024 events, 40 KiB */

void
kv_publish_open(struct worker *w)
{
    w->kv_publish->on = w->kv_config->max_events > 0;
    w->kv_publish->in_snapshot = true; /* adoption may have filled the cache */
    w->kv_publish->next = w->kv_publish->on ? kv_event_end(w->kv) : 0;
}

/* Returns how many events fit into one record. */
static uint32_t
max_events(const struct worker *w)
{
    size_t bytes = w->channel->out.max_rec - RING_HEADER - sizeof(struct rec_kv_events);

    return (uint32_t)MIN(bytes / sizeof(struct rec_kv_event), (size_t)KV_EVENTS_MAX);
}

/* Returns true if half of the ring stays free behind the queued records and one with max events. */
static bool
has_space(const struct worker *w, uint32_t max)
{
    uint64_t queued = w->outbox->used + 64 + sizeof(struct rec_kv_event) * max;

    return ring_free_bytes(&w->channel->out) >= w->channel->out.cap / 2 + queued;
}

static void
put(struct worker *w, const struct rec_kv_events *head, const struct kv_event *e)
{
    outbox_begin(w->outbox, REC_KV_EVENTS);
    outbox_add(w->outbox, head, sizeof *head);
    for (uint32_t i = 0; i < head->n; i++) {
        struct rec_kv_event r = { .name = { e[i].name[0], e[i].name[1] },
                                  .parent = { e[i].parent[0], e[i].parent[1] },
                                  .op = e[i].op,
                                  .group = e[i].group,
                                  .priority = e[i].priority,
                                  .tier = e[i].tier,
                                  .why = e[i].why,
                                  .n_tokens = e[i].n_tokens };

        outbox_add(w->outbox, &r, sizeof r);
    }
    outbox_end(w->outbox);
}

/* Sends new events. Returns how many; all are sent if they are less than `max`. */
static uint32_t
put_events(struct worker *w, struct kv_event *e, uint32_t max)
{
    struct kv_publish *p = w->kv_publish;
    uint64_t lost;
    uint32_t n = kv_events(w->kv, &p->next, e, max, &lost);

    if (lost) { /* from here on lagand knows no block: the events until p->next are void too */
        p->lost += lost;
        w->stats->v[STAT_kv_events_lost] += lost;
        p->in_snapshot = true;
        p->begun = false;
        p->at = 0;
    }
    /* Without a snapshot begun, the snapshot will have the effect of these events. */
    if (n && (!p->in_snapshot || p->begun)) put(w, &(struct rec_kv_events){ .n = n }, e);
    w->stats->v[STAT_kv_events] += n;
    return n;
}

/* Sends the next part of the snapshot; call it when all events before it are sent. */
static void
put_snapshot(struct worker *w, struct kv_event *e, uint32_t max)
{
    struct kv_publish *p = w->kv_publish;
    struct rec_kv_events head = { .flags = KV_EVENTS_SNAPSHOT };

    head.n = kv_event_snapshot(w->kv, &p->at, e, max);
    if (!p->begun) head.flags |= KV_EVENTS_BEGIN;
    if (head.n < max) head.flags |= KV_EVENTS_END;
    head.lost = p->begun ? 0 : p->lost;
    put(w, &head, e);
    p->begun = true;
    p->lost = 0;
    if (head.n < max) *p = (struct kv_publish){ .on = true, .next = p->next };
}

int
kv_publish_run(struct worker *w)
{
    struct kv_publish *p = w->kv_publish;
    struct kv_event e[KV_EVENTS_MAX];
    uint32_t max = max_events(w);

    if (!p->on || (!p->in_snapshot && p->next == kv_event_end(w->kv))) return 0;
    for (uint32_t i = 0; i < MAX_RECORDS && has_space(w, max); i++) {
        if (put_events(w, e, max) == max) continue;
        if (!p->in_snapshot) return 0;
        put_snapshot(w, e, max);
    }
    return has_space(w, max) && (p->in_snapshot || p->next != kv_event_end(w->kv));
}
