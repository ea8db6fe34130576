/* rank_start.c - see rank_start.h. */
#include "worker/tp/rank_start.h"

#include "ipc/channel.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { PEEK_US = 500 }; /* us between two polls of the plan ring during the start */

static int
send_reply(struct worker *w, uint16_t type, const void *data, size_t n, struct err *e)
{
    void *to;
    int r = ring_reserve(&w->channel->out, type, 0, (uint32_t)n, 0, &to);

    if (r < 0)
        return err_set(e, r, "reply of %zu bytes to rank 0: %s", n, ring_why(&w->channel->out));
    memcpy(to, data, n);
    channel_publish(w->channel);
    return 0;
}

int
rank_start_join(struct worker *w, struct err *e)
{
    char identity[JOIN_BYTES];
    size_t n = plan_ring_identity(w, identity, sizeof identity);

    return send_reply(w, REPLY_JOIN, identity, n, e);
}

int
rank_start_left(struct worker *w, const struct plan_ring_left *left, struct err *e)
{
    return send_reply(w, REPLY_LEFT, left, sizeof *left, e);
}

int
rank_start_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e)
{
    struct ring_record rec;
    int r;

    while ((r = ring_peek(&w->channel->in, &rec)) == 0) usleep(PEEK_US);
    if (r < 0) return err_set(e, r, "plan ring: %s", ring_why(&w->channel->in));
    if (rec.type != PLAN_KV || rec.len != sizeof *kv)
        return err_set(e, -EBADMSG, "plan ring: first record has type %u and %u bytes, expected KV",
                       rec.type, rec.len);
    memcpy(kv, rec.data, sizeof *kv);
    channel_release(w->channel);
    return 0;
}

int
rank_start_ready(struct worker *w, struct err *e)
{
    return send_reply(w, REPLY_READY, &(uint64_t){ 0 }, sizeof(uint64_t), e);
}
