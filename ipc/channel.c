/* channel.c - see channel.h. */
#include "ipc/channel.h"

#include "ipc/records.h"

#include <unistd.h>

/* The longest payload of each record type in bytes; LONG: limited only by the ring. A type without
 * payload also has a length above 0, because 0 marks an unknown type. */
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
CLEAN_FUNC(struct channel, channel_close)

/* One side of a channel: kind of the memfd d, whether this side writes d (else w), and name and
 * record types of the ring that it reads. */
struct side {
    enum shm_kind kind;
    bool writes_d;
    const char *reads;
    const uint32_t *types;
    uint32_t n_types;
};
static const struct side lagand = { SHM_D, true, "response ring", w_types, ARRAY_LEN(w_types) };
static const struct side worker = { SHM_D, false, "request ring", d_types, ARRAY_LEN(d_types) };
static const struct side leader = { SHM_P, true, "reply ring", reply_types,
                                    ARRAY_LEN(reply_types) };
static const struct side rank = { SHM_P, false, "plan ring", plan_types, ARRAY_LEN(plan_types) };

/* Sets up both rings and the doorbell of a mapped channel. */
static int
set_up(struct channel *l, const struct side *s, int doorbell, struct err *e)
{
    const struct shm *mine = s->writes_d ? &l->d : &l->w, *peer = s->writes_d ? &l->w : &l->d;
    int r;

    doorbell_init(&l->doorbell, doorbell, mine, peer);
    ring_writer(&l->out, mine, peer);
    r = ring_reader(&l->in, mine, peer, s->types, s->n_types);
    return r < 0 ? err_set(e, r, "cannot allocate the read buffer for the %s of worker %u: %s",
                           s->reads, l->w.hdr.worker_idx, strerror(-r))
                 : 0;
}

int
channel_make(struct channel *l, uint32_t worker_idx, uint64_t epoch, const uint8_t daemon_id[16],
             uint32_t ring_log2_d, uint32_t ring_log2_w, int *worker_doorbell, struct err *e)
{
    CLEAN(channel_close_at) struct channel *made = l;
    int doorbell[2];

    *l = closed;
    l->epoch = epoch;
    TRY(shm_make(&l->d, SHM_D, worker_idx, epoch, daemon_id, ring_log2_d, e));
    TRY(shm_make(&l->w, SHM_W, worker_idx, epoch, daemon_id, ring_log2_w, e));
    TRY(set_up(l, &lagand, -1, e));
    TRY(doorbell_pair(doorbell, e));
    l->doorbell.fd = doorbell[0];
    *worker_doorbell = doorbell[1];
    made = NULL;
    return 0;
}

int
channel_make_plan(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                  const uint8_t daemon_id[16], int doorbell[2], struct err *e)
{
    CLEAN(channel_close_at) struct channel *made = l;

    *l = closed;
    l->epoch = epoch;
    TRY(shm_make(&l->d, SHM_P, worker_idx, epoch, daemon_id, 0, e));
    TRY(shm_make(&l->w, SHM_W, worker_idx, epoch, daemon_id, SHM_RING_LOG2_REPLY, e));
    TRY(doorbell_pair(doorbell, e));
    made = NULL;
    return 0;
}

static int
attach(struct channel *l, int d, int w, int doorbell, uint64_t epoch, const struct side *s,
       struct err *e)
{
    int r;

    *l = closed;
    l->epoch = epoch;
    l->doorbell.fd = doorbell;
    r = s->writes_d ? shm_attach(&l->d, d, s->kind, epoch, e)
                    : shm_view(&l->d, d, s->kind, epoch, e);
    if (r < 0) close(d);
    if (r == 0)
        r = s->writes_d ? shm_view(&l->w, w, SHM_W, epoch, e)
                        : shm_attach(&l->w, w, SHM_W, epoch, e);
    if (l->w.fd < 0) close(w);
    if (r == 0 && (l->d.hdr.worker_idx != l->w.hdr.worker_idx ||
                   memcmp(l->d.hdr.daemon_id, l->w.hdr.daemon_id, sizeof l->d.hdr.daemon_id)))
        r = err_set(e, -EBADMSG,
                    "the inherited memfds d and w belong to workers %u and %u, or to different "
                    "lagand processes (internal error)",
                    l->d.hdr.worker_idx, l->w.hdr.worker_idx);
    if (r == 0) r = set_up(l, s, doorbell, e);
    if (r < 0) channel_close(l);
    return r;
}

int
channel_attach(struct channel *l, int d, int w, int doorbell, uint64_t epoch, struct err *e)
{
    return attach(l, d, w, doorbell, epoch, &worker, e);
}

int
channel_attach_leader(struct channel *l, int p, int w, int doorbell, uint64_t epoch, struct err *e)
{
    return attach(l, p, w, doorbell, epoch, &leader, e);
}

int
channel_attach_rank(struct channel *l, int p, int w, int doorbell, uint64_t epoch, struct err *e)
{
    return attach(l, p, w, doorbell, epoch, &rank, e);
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
