/* plan_ring.c - rank 0's side of the plan rings, and the start of the other ranks: plan_ring.h. */
#include "worker/tp/plan_ring.h"

#include "base/clock.h"
#include "base/opt.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"
#include "worker/model/model.h"
#include "worker/process/health.h"

#include <stdio.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#include "config.h"
#endif

/* Microseconds between two polls: for a reply during the start; for ring space during a step. */
enum { PEEK_US = 500, RESERVE_US = 50 };

static int
attach_rank(struct worker *w, uint32_t rank, struct err *e)
{
    static const char *const names[] = { "plan", "reply", "ring" };
    int fd[ARRAY_LEN(names)];

    for (uint32_t i = 0; i < ARRAY_LEN(names); i++) {
        char name[16];

        snprintf(name, sizeof name, "%s%u", names[i], rank);
        fd[i] = heritage_fd(w->heritage, name);
        if (fd[i] < 0)
            return err_set(e, -EBADMSG,
                           "descriptor %s is missing in LAGAN_FDNAMES (lagand sets it)", name);
    }
    return channel_attach_leader(&w->plan->channel[rank - 1], fd[0], fd[1], fd[2],
                                 w->heritage->epoch, e);
}

int
plan_ring_open(struct worker *w, struct err *e)
{
    uint32_t ranks = w->keys->tensor_parallel;

    for (uint32_t r = 1; r < ranks; r++) {
        TRY(attach_rank(w, r, e));
        w->plan->n = r;
    }
    return 0;
}

void
plan_ring_close(struct plan_ring *p)
{
    while (p->n) channel_close(&p->channel[--p->n]);
    free(p->packed);
}

/* ---- the start */

/* Writes the JOIN payload of this process to buf of n >= JOIN_BYTES bytes; returns its length. */
static size_t
join_payload(const struct worker *w, void *buf, size_t n)
{
    struct plan_ring_join j = { .checkpoint = { w->model->checkpoint[0],
                                                w->model->checkpoint[1] } };
    char *text = (char *)buf + sizeof j;
    size_t max = n - sizeof j, len;

    len = (size_t)snprintf(text, max, "version %s\n", PACKAGE_VERSION);
    for (const struct opt *o = model_opts; o->key; o++) {
        char value[1100];

        len += (size_t)snprintf(text + len, max - len, "%s %s\n", o->key,
                                opt_text(o, w->keys, value, sizeof value));
        check(len < max);
    }
    memcpy(buf, &j, sizeof j);
    return sizeof j + len;
}

/* Waits for the next record, without a timeout: lagand ends this rank if the peer has exited. */
static int
await_record(struct channel *l, struct ring_record *ret)
{
    int r;

    while ((r = ring_peek(&l->in, ret)) == 0) usleep(PEEK_US);
    return r;
}

/* Compares the JOIN texts of rank 0 and another rank. -EINVAL: e has the first different line. */
static int
compare_texts(const char *ours, size_t n_ours, const char *theirs, size_t n_theirs, uint32_t rank,
              struct err *e)
{
    size_t at = 0, line = 0;

    while (at < MIN(n_ours, n_theirs) && ours[at] == theirs[at])
        if (ours[at++] == '\n') line = at;
    if (at == n_ours && at == n_theirs) return 0;
    return err_set(e, -EINVAL, "options or versions differ: rank %u has \"%.*s\", rank 0 \"%.*s\"",
                   rank, (int)MIN(strcspn(theirs + line, "\n"), (size_t)200), theirs + line,
                   (int)MIN(strcspn(ours + line, "\n"), (size_t)200), ours + line);
}

static int
await_reply(struct worker *w, uint32_t rank, uint16_t type, struct ring_record *ret, struct err *e)
{
    struct channel *l = &w->plan->channel[rank - 1];
    int r = await_record(l, ret);

    if (r < 0) return err_set(e, r, "cannot read replies of rank %u: %s", rank, ring_why(&l->in));
    if (ret->type != type || ret->flags)
        return err_set(e, -EBADMSG, "rank %u sent a reply of type %u, expected type %u", rank,
                       ret->type, type);
    return 0;
}

static int
check_join(struct worker *w, uint32_t rank, const char *ours, size_t n, struct err *e)
{
    struct ring_record rec;
    struct plan_ring_join j, me;
    char theirs[JOIN_BYTES];
    int r;

    TRY(await_reply(w, rank, REPLY_JOIN, &rec, e));
    if (rec.len < sizeof j || rec.len > sizeof theirs - 1)
        return err_set(e, -EBADMSG, "rank %u sent a JOIN record of %u bytes, expected %zu to %zu",
                       rank, rec.len, sizeof j, sizeof theirs - 1);
    memcpy(theirs, rec.data, rec.len);
    theirs[rec.len] = 0;
    memcpy(&j, theirs, sizeof j);
    memcpy(&me, ours, sizeof me);
    r = compare_texts(ours + sizeof me, n - sizeof me, theirs + sizeof j, rec.len - sizeof j, rank,
                      e);
    channel_release(&w->plan->channel[rank - 1]);
    if (r < 0) return r;
    if (memcmp(j.checkpoint, me.checkpoint, sizeof j.checkpoint))
        return err_set(
            e, -EINVAL,
            "rank %u has checkpoint hash %016llx, rank 0 has %016llx; both must be equal", rank,
            (unsigned long long)j.checkpoint[0], (unsigned long long)me.checkpoint[0]);
    return 0;
}

int
plan_ring_join(struct worker *w, struct err *e)
{
    char ours[JOIN_BYTES + 1];
    size_t n = join_payload(w, ours, JOIN_BYTES);

    ours[n] = 0;
    for (uint32_t r = 1; r <= w->plan->n; r++) TRY(check_join(w, r, ours, n, e));
    return 0;
}

int
plan_ring_left(struct worker *w, const struct plan_ring_left *ours, struct plan_ring_missing *ret,
               struct err *e)
{
    *ret = (struct plan_ring_missing){ 0 };
    for (uint32_t r = 1; r <= w->plan->n; r++) {
        struct ring_record rec;
        struct plan_ring_left left;

        TRY(await_reply(w, r, REPLY_LEFT, &rec, e));
        if (rec.len != sizeof left)
            return err_set(e, -EBADMSG, "rank %u sent a LEFT record of %u bytes, expected %zu", r,
                           rec.len, sizeof left);
        memcpy(&left, rec.data, sizeof left);
        channel_release(&w->plan->channel[r - 1]);
        if (!ret->kv && memcmp(left.kv_id, ours->kv_id, sizeof left.kv_id)) ret->kv = r;
        if (!ret->host && memcmp(left.host_id, ours->host_id, sizeof left.host_id)) ret->host = r;
    }
    return 0;
}

/* Reserves n bytes in a rank's plan ring; waits while it is full. The rank empties it meanwhile. */
static int
reserve_record(struct worker *w, uint32_t rank, uint16_t type, size_t n, void **ret, struct err *e)
{
    struct channel *l = &w->plan->channel[rank - 1];
    int r;

    while ((r = ring_reserve(&l->out, type, 0, (uint32_t)n, 0, ret)) == -EAGAIN) {
        channel_publish(l);
        if (w->loaded) health_heartbeat(w, clock_now());
        usleep(RESERVE_US);
    }
    return r < 0 ? err_set(e, r, "cannot write %zu bytes to the plan ring of rank %u: %s", n, rank,
                           r == -EMSGSIZE ? "the ring is smaller" : ring_why(&l->out))
                 : 0;
}

/* Writes a record to a rank's plan ring: n_a bytes from a, then n_b bytes from b. */
static int
put_record(struct worker *w, uint32_t rank, uint16_t type, const void *a, size_t n_a, const void *b,
           size_t n_b, struct err *e)
{
    void *to;

    TRY(reserve_record(w, rank, type, n_a + n_b, &to, e));
    memcpy(to, a, n_a);
    if (n_b) memcpy((char *)to + n_a, b, n_b);
    return 0;
}

int
plan_ring_ready(struct worker *w, const struct plan_ring_kv *kv, struct err *e)
{
    memcpy(w->plan->part, w->steps->part, sizeof w->plan->part);
    for (uint32_t r = 1; r <= w->plan->n; r++) {
        TRY(put_record(w, r, PLAN_KV, kv, sizeof *kv, NULL, 0, e));
        channel_publish(&w->plan->channel[r - 1]);
    }
    for (uint32_t r = 1; r <= w->plan->n; r++) {
        struct ring_record rec;

        TRY(await_reply(w, r, REPLY_READY, &rec, e));
        channel_release(&w->plan->channel[r - 1]);
    }
    return 0;
}

/* ---- steps */

int
plan_ring_alloc(struct plan_ring *p, const struct batch *longest, struct err *e)
{
    if (p->n == 0) return 0;
    p->packed_bytes = batch_most_bytes(longest);
    p->packed = malloc(p->packed_bytes);
    return p->packed ? 0
                     : err_set(e, -ENOMEM, "out of host memory: %zu bytes for a packed batch",
                               p->packed_bytes);
}

static int
send_slot(struct worker *w, uint32_t rank, uint32_t slot, const struct sampling *how, struct err *e)
{
    struct plan_ring_slot s = { .slot = slot, .n_bias = how->n_bias, .how = *how };

    s.how.prompt = NULL;
    s.how.bias = NULL;
    return put_record(w, rank, PLAN_SLOT, &s, sizeof s, how->bias, how->n_bias * sizeof *how->bias,
                      e);
}

/* Sends the first n tokens of the sequence in the slot, in several records if needed. */
static int
send_tokens(struct worker *w, uint32_t rank, uint32_t slot, const token_id *token, uint32_t n,
            struct err *e)
{
    for (struct plan_ring_tokens t = { .slot = slot }; t.first < n; t.first += t.n) {
        t.n = MIN(n - t.first, (uint32_t)PLAN_MOST_TOKENS);
        TRY(put_record(w, rank, PLAN_TOKENS, &t, sizeof t, token + t.first, t.n * sizeof *token,
                       e));
    }
    return 0;
}

int
plan_ring_sequence(struct worker *w, const struct batch_segment *first, const struct seq *seq,
                   const struct sampling *how, struct err *e)
{
    uint32_t n = (uint32_t)first->first_pos,
             known = seq->prompt_logprobs ? MAX(n, seq->n_prompt) : n;
    const struct plan_ring_tokens seen = { .slot = first->slot, .n = n };

    for (uint32_t r = 1; r <= w->plan->n; r++) {
        TRY(send_slot(w, r, first->slot, how, e));
        TRY(send_tokens(w, r, first->slot, seq->token, known, e));
        TRY(put_record(w, r, PLAN_SEEN, &seen, sizeof seen, NULL, 0, e));
    }
    return 0;
}

/* Sends a partition that an operator has changed since it was last sent, before a step uses it. */
static int
send_partition(struct worker *w, unsigned partition, struct err *e)
{
    struct plan_ring_partition p = { .partition = partition };

    if (!memcmp(w->plan->part[partition], exec_parts(w->exec, partition), sizeof p.part)) return 0;
    memcpy(p.part, exec_parts(w->exec, partition), sizeof p.part);
    memcpy(w->plan->part[partition], p.part, sizeof p.part);
    for (uint32_t r = 1; r <= w->plan->n; r++)
        TRY(put_record(w, r, PLAN_PARTS, &p, sizeof p, NULL, 0, e));
    return 0;
}

/* Sends a packed batch of n bytes as MORE records of PLAN_BYTES each, and a last STEP record. */
static int
send_batch(struct worker *w, uint32_t rank, size_t bytes, struct err *e)
{
    const char *from = w->plan->packed;

    for (; bytes > PLAN_BYTES; bytes -= PLAN_BYTES, from += PLAN_BYTES)
        TRY(put_record(w, rank, PLAN_MORE, from, PLAN_BYTES, NULL, 0, e));
    TRY(put_record(w, rank, PLAN_STEP, from, bytes, NULL, 0, e));
    channel_publish(&w->plan->channel[rank - 1]);
    return 0;
}

int
plan_ring_step(struct worker *w, const struct batch *b, struct err *e)
{
    int bytes;

    if (w->plan->n == 0) return 0;
    TRY(send_partition(w, b->partition, e));
    bytes = batch_pack(b, w->plan->packed, w->plan->packed_bytes);
    check(bytes >= 0);
    for (uint32_t r = 1; r <= w->plan->n; r++) TRY(send_batch(w, r, (size_t)bytes, e));
    return 0;
}

/* ---- the start of a rank above 0 */

static int
send_reply(struct worker *w, uint16_t type, const void *data, size_t n, struct err *e)
{
    void *to;
    int r = ring_reserve(&w->channel->out, type, 0, (uint32_t)n, 0, &to);

    if (r < 0)
        return err_set(e, r, "cannot send %zu bytes to rank 0: %s", n, ring_why(&w->channel->out));
    memcpy(to, data, n);
    channel_publish(w->channel);
    return 0;
}

int
plan_ring_send_join(struct worker *w, struct err *e)
{
    char identity[JOIN_BYTES];
    size_t n = join_payload(w, identity, sizeof identity);

    return send_reply(w, REPLY_JOIN, identity, n, e);
}

int
plan_ring_send_left(struct worker *w, const struct plan_ring_left *left, struct err *e)
{
    return send_reply(w, REPLY_LEFT, left, sizeof *left, e);
}

int
plan_ring_await_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e)
{
    struct ring_record rec;
    int r = await_record(w->channel, &rec);

    if (r < 0) return err_set(e, r, "cannot read the plan ring: %s", ring_why(&w->channel->in));
    if (rec.type != PLAN_KV || rec.len != sizeof *kv)
        return err_set(e, -EBADMSG,
                       "rank 0 sent a record of type %u, %u bytes; expected KV, %zu bytes",
                       rec.type, rec.len, sizeof *kv);
    memcpy(kv, rec.data, sizeof *kv);
    channel_release(w->channel);
    return 0;
}

int
plan_ring_send_ready(struct worker *w, struct err *e)
{
    return send_reply(w, REPLY_READY, &(uint64_t){ 0 }, sizeof(uint64_t), e);
}
