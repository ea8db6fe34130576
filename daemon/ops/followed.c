/* followed.c - verbs whose rows are numbered, so that a client can follow them: steps. */
#include "daemon/ops/ask.h"

#include "daemon/supervise/step_log.h"
#include "daemon/supervise/worker.h"

#include <time.h>

enum { STEPS_A_CALL = 64 }; /* 64 rows of 44 values fit into LAGAN_MAX_NODES */

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
    put_u64(p, "number", c->number);
    put_u64(p, "at_ms", wall_ms(d, r->at_ns));
    put_u64(p, "step", r->step);
    put_u64(p, "lane", r->lane);
    put_u64(p, "prefill_tokens", r->prefill_tokens);
    put_u64(p, "decode_tokens", r->decode_tokens);
    put_u64(p, "encoder_tokens", r->encoder_tokens);
    put_u64(p, "sequences", r->n_segments);
    put_u64(p, "cached_tokens", r->cached_tokens);
    put_u64(p, "preempted", r->preempted);
    put_u64(p, "running", r->running);
    put_u64(p, "waiting", r->waiting);
    put_u64(p, "plan_ns", r->plan_ns);
    put_u64(p, "queue_ns", r->queue_ns);
    put_u64(p, "device_ns", r->device_ns);
    put_u64(p, "prefill_units", r->prefill_units);
    put_u64(p, "decode_units", r->decode_units);
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
    put_u64(p, "next", c ? at : l->next + 1);
    put_u64(p, "end", l->next + 1);
    put_u64(p, "lost", c && from && c->number > from ? c->number - from : 0);
    msg_key(p, "steps");
    msgpack_pack_array(p, n);
    for (at = from; n-- && (c = step_log_at(l, at)); at = c->number + 1) put_step(p, a->d, c);
}
