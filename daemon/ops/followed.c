/* followed.c - verbs with numbered rows, which a client can follow: steps, kv events. */
#include "daemon/ops/ask.h"

#include "base/block_event.h"
#include "daemon/request/kv_watch.h"
#include "daemon/supervise/step_log.h"
#include "daemon/supervise/worker.h"

#include <stdio.h>
#include <time.h>

/* Rows of a reply, which has at most LAGAN_MAX_NODES values: 44 for a step, 21 for an event and 13
 * for a block, keys included. */
enum { STEPS_A_CALL = 64, EVENTS_A_CALL = 96 };

/* Converts a time of CLOCK_MONOTONIC into milliseconds of the wall clock. */
static uint64_t
wall_ms(const struct daemon *d, nsec at)
{
    struct timespec t;
    nsec wall;

    clock_gettime(CLOCK_REALTIME, &t);
    wall = (nsec)t.tv_sec * NSEC_S + t.tv_nsec;
    return (uint64_t)((wall - (d->now - MAX(MIN(at, d->now), (nsec)0))) / NSEC_MS);
}

static void
put_blocks(msgpack_packer *p, const char *key, const uint32_t *n, uint32_t n_pools)
{
    msg_key(p, key);
    msgpack_pack_array(p, n_pools);
    for (uint32_t i = 0; i < n_pools; i++) msgpack_pack_uint32(p, n[i]);
}

static void
put_step(msgpack_packer *p, const struct daemon *d, const struct step_copy *c)
{
    const struct step_record *r = &c->r;

    msgpack_pack_map(p, 19);
    msg_key_u64(p, "number", c->number);
    msg_key_u64(p, "at_ms", wall_ms(d, r->at_ns));
    msg_key_u64(p, "step", r->step);
    msg_key_u64(p, "lane", r->lane);
    msg_key_u64(p, "prefill_tokens", r->prefill_tokens);
    msg_key_u64(p, "decode_tokens", r->decode_tokens);
    msg_key_u64(p, "encoder_tokens", r->encoder_tokens);
    msg_key_u64(p, "sequences", r->n_segments);
    msg_key_u64(p, "cached_tokens", r->cached_tokens);
    msg_key_u64(p, "preempted", r->preempted);
    msg_key_u64(p, "running", r->running);
    msg_key_u64(p, "waiting", r->waiting);
    msg_key_u64(p, "plan_ns", r->plan_ns);
    msg_key_u64(p, "queue_ns", r->queue_ns);
    msg_key_u64(p, "device_ns", r->device_ns);
    msg_key_u64(p, "prefill_units", r->prefill_units);
    msg_key_u64(p, "decode_units", r->decode_units);
    put_blocks(p, "used", r->used, r->n_pools);
    put_blocks(p, "free", r->free, r->n_pools);
}

/* Replies with up to STEPS_A_CALL steps of a worker from number args.from on. lagand keeps the last
 * STEP_RECORDS: `lost` is how many between `from` and the first one of the reply are not kept. */
void
cmd_steps(struct ask *a)
{
    struct worker *w = worker_meant(a);
    const struct step_log *l;
    const struct step_copy *c;
    uint64_t from = 0, at, n = 0;
    msgpack_packer *p;

    if (!w) return;
    worker_look(w);
    l = worker_steps(w);
    if (a->args) msg_u64(a->args, "from", &from);
    if (from > l->next + 1) from = 0; /* `from` was given by a previous lagand */
    for (at = from; n < STEPS_A_CALL && (c = step_log_at(l, at)); n++) at = c->number + 1;
    c = step_log_at(l, from);
    p = reply(a);
    msgpack_pack_map(p, 4);
    msg_key_u64(p, "next", c ? at : l->next + 1);
    msg_key_u64(p, "end", l->next + 1);
    msg_key_u64(p, "lost", c && from && c->number > from ? c->number - from : 0);
    msg_key(p, "steps");
    msgpack_pack_array(p, n);
    for (at = from; n-- && (c = step_log_at(l, at)); at = c->number + 1) put_step(p, a->d, c);
}

/* ---- kv events */

static void
put_name(msgpack_packer *p, const char *key, const uint64_t name[2])
{
    char hex[33];

    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)name[0],
             (unsigned long long)name[1]);
    put_text(p, key, hex);
}

/* The keys that an event and a block of a snapshot have in common. */
static void
put_block(msgpack_packer *p, const uint64_t name[2], const uint64_t parent[2], uint32_t group,
          bool on_host, uint32_t n_tokens, uint32_t priority)
{
    put_name(p, "name", name);
    put_name(p, "parent", parent);
    msg_key_u64(p, "group", group);
    put_text(p, "tier", on_host ? "host" : "device");
    msg_key_u64(p, "tokens", n_tokens);
    msg_key_u64(p, "priority", priority);
}

static void
put_event(msgpack_packer *p, const struct daemon *d, uint64_t number,
          const struct kv_log_entry *entry)
{
    const struct rec_kv_event *v = &entry->e;

    msgpack_pack_map(p, 10);
    msg_key_u64(p, "number", number);
    msg_key_u64(p, "at_ms", wall_ms(d, entry->at));
    put_text(p, "op", kv_op_name(v->op));
    put_text(p, "why", kv_why_name(v->why));
    put_block(p, v->name, v->parent, v->group, v->tier, v->n_tokens, v->priority);
}

/* Replies with up to EVENTS_A_CALL events of a worker from number args.from on. If `from` is not
 * kept, `lost` tells how many events are missing, and the caller drops the blocks that it knows. If
 * all events are in the reply and args.at is given, the reply has blocks of the cache from position
 * `at` on too; the caller repeats the call with the new `at` until it is null. */
void
cmd_kv_events(struct ask *a)
{
    struct worker *w = worker_meant(a);
    uint64_t first, next, from = 0, lost = 0, at64 = 0, end;
    struct held_block block[EVENTS_A_CALL];
    bool asked = a->args && msg_u64(a->args, "at", &at64) == 0;
    uint32_t n = 0, at = (uint32_t)MIN(at64, (uint64_t)UINT32_MAX);
    msgpack_packer *p;

    if (!w) return;
    kv_watch_range(w, &first, &next);
    if (a->args) msg_u64(a->args, "from", &from);
    if (from > next) from = 0; /* `from` was given by a previous lagand */
    if (from < first) {
        lost = from ? first - from : 0;
        from = first;
    }
    end = MIN(next, from + EVENTS_A_CALL);
    if (asked && end == next && !lost) n = kv_watch_blocks(w, &at, block, EVENTS_A_CALL);
    p = reply(a);
    msgpack_pack_map(p, 7);
    msg_key_u64(p, "first", first);
    msg_key_u64(p, "next", end);
    msg_key_u64(p, "end", next);
    msg_key_u64(p, "lost", lost);
    msg_key(p, "events");
    msgpack_pack_array(p, end - from);
    for (; from < end; from++) put_event(p, a->d, from, kv_watch_at(w, from));
    msg_key(p, "at");
    if (n)
        msgpack_pack_uint64(p, at);
    else
        msgpack_pack_nil(p);
    msg_key(p, "blocks");
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++) {
        msgpack_pack_map(p, 6);
        put_block(p, block[i].name, block[i].parent, block[i].group, block[i].on_host,
                  block[i].n_tokens, block[i].priority);
    }
}
