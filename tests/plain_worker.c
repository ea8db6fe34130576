/* plain_worker.c - see plain_worker.h. */
#include "tests/plain_worker.h"

#include "base/clock.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

struct shm_ctl *
plain_begin(struct channel *l, struct heritage *h)
{
    struct shm_ctl *c;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check(heritage_take(h, NULL) == 0);
    check(channel_attach(l, heritage_fd(h, "d"), heritage_fd(h, "w"), heritage_fd(h, "doorbell"),
                         h->epoch, NULL) == 0);
    c = shm_ctl(&l->w);
    atomic_fetch_add(&c->hb_count, 1);
    return c;
}

void *
plain_text_buffer(struct channel *l, uint16_t type, uint32_t len)
{
    void *p;
    int r;

    while ((r = ring_reserve(&l->out, type, 0, len, 0, &p)) == -EAGAIN) {
        channel_publish(l);
        poll(NULL, 0, 1);
        if (doorbell_drain(&l->doorbell) == -EPIPE) exit(0);
    }
    check(r == 0);
    memset(p, 0, len);
    return p;
}

void
plain_ready(struct channel *l, const char *name, struct rec_ready facts)
{
    uint32_t n = (uint32_t)strlen(name);
    struct rec_ready *r = plain_text_buffer(l, REC_READY, (uint32_t)sizeof *r + ROUND_UP(n, 8u));

    facts.tokens_per_block = 16;
    facts.n_groups = 1;
    facts.name_bytes = n;
    facts.max_tokens = facts.max_len;
    for (uint32_t i = 0; i < N_READY_DEFAULTS; i++) facts.defaults[i] = NAN;
    *r = facts;
    memcpy(r + 1, name, n);
    channel_publish(l);
}

void
plain_finish(struct channel *l, const struct rec_submit *s, uint16_t reason, uint32_t n_tokens)
{
    struct rec_finish *f = plain_text_buffer(l, REC_FINISH, sizeof *f);

    *f = (struct rec_finish){
        .ledger_index = s->ledger_index, .gen = s->gen, .reason = reason, .n_tokens = n_tokens
    };
}

bool
plain_rest(struct channel *l, nsec most)
{
    const struct timespec t = { .tv_sec = most / NSEC_S, .tv_nsec = most % NSEC_S };
    struct pollfd p = { .fd = l->doorbell.fd, .events = POLLIN };
    int r = channel_sleep(l);

    if (r > 0) r = ppoll(&p, 1, &t, NULL);
    if (r > 0) doorbell_set_readable(&l->doorbell);
    doorbell_wake(&l->doorbell);
    return r != -EPIPE;
}
