/* channel.c - see channel.h. */
#include "ipc/channel.h"

#include "ipc/records.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The longest payload of each type; LONG is limited only by the ring. Types without payload have 1
 * byte, because 0 means unknown. */
#define LONG UINT32_MAX
static const uint32_t d_types[] = {
    [REC_SUBMIT] = LONG, [REC_CANCEL] = sizeof(struct rec_notice),
    [REC_DRAIN] = 8,     [REC_SUSPEND] = sizeof(struct rec_notice),
    [REC_TEXT] = LONG,
};
static const uint32_t w_types[] = {
    [REC_READY] = sizeof(struct rec_ready) + 256,
    [REC_STEP] = LONG,
    [REC_FINISH] = sizeof(struct rec_finish),
    [REC_REJECT] = sizeof(struct rec_reject) + UINT16_MAX,
    [REC_PHASE] = sizeof(struct rec_phase),
    [REC_PROMPT_LOGPROBS] = LONG,
    [REC_TEXT_DONE] = LONG,
    [REC_KV_EVENTS] = LONG,
    [REC_TENSOR] = LONG,
};

static const uint32_t plan_types[] = {
    [PLAN_KV] = LONG,   [PLAN_SLOT] = LONG,  [PLAN_TOKENS] = LONG, [PLAN_SEEN] = LONG,
    [PLAN_STEP] = LONG, [PLAN_PARTS] = LONG, [PLAN_MORE] = LONG,
};
static const uint32_t reply_types[] = { [REPLY_JOIN] = LONG, [REPLY_LEFT] = 32, [REPLY_READY] = 8 };

static const struct channel closed = { .d.fd = -1, .w.fd = -1, .doorbell.fd = -1 };

int
channel_make(struct channel *l, uint32_t worker_idx, uint64_t epoch, const uint8_t daemon_id[16],
             uint32_t ring_log2_d, uint32_t ring_log2_w, int *worker_doorbell, struct err *e)
{
    int doorbell[2], r;

    *l = closed;
    l->epoch = epoch;
    r = shm_make(&l->d, SHM_D, worker_idx, epoch, daemon_id, ring_log2_d, e);
    if (r == 0) r = shm_make(&l->w, SHM_W, worker_idx, epoch, daemon_id, ring_log2_w, e);
    if (r == 0) {
        ring_writer(&l->out, &l->d, &l->w);
        r = ring_reader(&l->in, &l->d, &l->w, w_types, ARRAY_LEN(w_types));
        if (r < 0) err_set(e, r, "response ring of worker %u: %s", worker_idx, strerror(-r));
    }
    if (r == 0) r = doorbell_pair(doorbell, e);
    if (r < 0) {
        channel_close(l);
        return r;
    }
    doorbell_init(&l->doorbell, doorbell[0], &l->d, &l->w);
    *worker_doorbell = doorbell[1];
    return 0;
}

int
channel_attach(struct channel *l, int d, int w, int doorbell, uint64_t epoch, struct err *e)
{
    int r;

    *l = closed;
    l->epoch = epoch;
    l->doorbell.fd = doorbell;
    r = shm_attach(&l->d, d, SHM_D, epoch, e);
    if (r < 0) {
        close(d);
        close(w);
        channel_close(l);
        return r;
    }
    r = shm_attach(&l->w, w, SHM_W, epoch, e);
    if (r < 0) close(w);
    if (r == 0 && (l->d.hdr.worker_idx != l->w.hdr.worker_idx ||
                   memcmp(l->d.hdr.daemon_id, l->w.hdr.daemon_id, sizeof l->d.hdr.daemon_id))) {
        r = err_set(e, -EBADMSG, "D and W are not a pair: worker %u and %u", l->d.hdr.worker_idx,
                    l->w.hdr.worker_idx);
    }
    if (r == 0) {
        ring_writer(&l->out, &l->w, &l->d);
        r = ring_reader(&l->in, &l->w, &l->d, d_types, ARRAY_LEN(d_types));
        if (r < 0) err_set(e, r, "request ring: %s", strerror(-r));
    }
    if (r < 0) {
        channel_close(l);
        return r;
    }
    doorbell_init(&l->doorbell, doorbell, &l->w, &l->d);
    return 0;
}

void
channel_close(struct channel *l)
{
    ring_done(&l->in);
    ring_done(&l->out);
    shm_close(&l->d);
    shm_close(&l->w);
    if (l->doorbell.fd >= 0) close(l->doorbell.fd);
    *l = closed;
}

void
channel_publish(struct channel *l)
{
    ring_publish(&l->out);
    doorbell_ring(&l->doorbell);
}

void
channel_release(struct channel *l)
{
    ring_release(&l->in);
    doorbell_ring_space(&l->doorbell);
}

int
channel_sleep(struct channel *l)
{
    return doorbell_sleep(&l->doorbell, l->out.full, channel_ready, l);
}

bool
channel_ready(void *l)
{
    const struct channel *k = l;

    return !ring_empty(&k->in) || ring_space_freed(&k->out);
}

int
channel_make_plan(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                  const uint8_t daemon_id[16], int doorbell[2], struct err *e)
{
    int r;

    *l = closed;
    l->epoch = epoch;
    r = shm_make(&l->d, SHM_P, worker_idx, epoch, daemon_id, 0, e);
    if (r == 0) r = shm_make(&l->w, SHM_W, worker_idx, epoch, daemon_id, SHM_RING_LOG2_REPLY, e);
    if (r == 0) r = doorbell_pair(doorbell, e);
    if (r < 0) channel_close(l);
    return r;
}

/* Maps P and W; lead: rank 0 writes P and reads W. */
static int
attach_plan(struct channel *l, int p, int w, int doorbell, uint64_t epoch, bool lead, struct err *e)
{
    int r;

    *l = closed;
    l->epoch = epoch;
    l->doorbell.fd = doorbell;
    r = lead ? shm_attach(&l->d, p, SHM_P, epoch, e) : shm_view(&l->d, p, SHM_P, epoch, e);
    if (r < 0) close(p);
    if (r == 0)
        r = lead ? shm_view(&l->w, w, SHM_W, epoch, e) : shm_attach(&l->w, w, SHM_W, epoch, e);
    if (l->w.fd < 0) close(w);
    return r;
}

int
channel_attach_leader(struct channel *l, int p, int w, int doorbell, uint64_t epoch, struct err *e)
{
    int r = attach_plan(l, p, w, doorbell, epoch, true, e);

    if (r == 0) {
        ring_writer(&l->out, &l->d, &l->w);
        r = ring_reader(&l->in, &l->d, &l->w, reply_types, ARRAY_LEN(reply_types));
        if (r < 0) err_set(e, r, "reply ring of a rank: %s", strerror(-r));
    }
    if (r < 0)
        channel_close(l);
    else
        doorbell_init(&l->doorbell, doorbell, &l->d, &l->w);
    return r;
}

int
channel_attach_rank(struct channel *l, int p, int w, int doorbell, uint64_t epoch, struct err *e)
{
    int r = attach_plan(l, p, w, doorbell, epoch, false, e);

    if (r == 0) {
        ring_writer(&l->out, &l->w, &l->d);
        r = ring_reader(&l->in, &l->w, &l->d, plan_types, ARRAY_LEN(plan_types));
        if (r < 0) err_set(e, r, "plan ring: %s", strerror(-r));
    }
    if (r < 0)
        channel_close(l);
    else
        doorbell_init(&l->doorbell, doorbell, &l->w, &l->d);
    return r;
}
