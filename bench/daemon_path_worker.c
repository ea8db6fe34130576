/* daemon_path_worker.c - a worker without a model for bench_daemon_path and bench_gateway: fixed
 * pace, tokens that are times.
 *
 * The name of the model directory is the pace in microseconds. Each step gives every request one
 * token: the low 31 bits of the clock in nanoseconds. The reader computes from it the delay of the
 * token. The rings are used as in lagan-worker.
 */
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "tests/plain_worker.h"

#include <stdatomic.h>

enum { SLOTS = 1024, ROWS = SLOTS + 256, MAX_LEN = 1 << 20 };

static struct channel l;
static struct rec_submit active[ROWS]; /* n_done: generated tokens */
static uint32_t n_active;
static uint64_t n_steps;
static const nsec IDLE = 200 * NSEC_MS;
static bool draining;

static void
finish(uint32_t i, uint16_t reason)
{
    plain_finish(&l, &active[i], reason, active[i].n_done);
    active[i] = active[--n_active];
}

static void
intake(void)
{
    struct ring_record rec;
    bool any = false;
    int r;

    while ((r = ring_peek(&l.in, &rec)) > 0) {
        const struct rec_notice *c = rec.data;

        any = true;
        if (rec.type == REC_DRAIN) draining = true;
        if (rec.type == REC_SUBMIT) {
            check(n_active < ROWS && !(rec.flags & RING_MORE));
            memcpy(&active[n_active++], rec.data, sizeof *active);
        }
        for (uint32_t i = 0; rec.type == REC_CANCEL && i < n_active; i++)
            if (active[i].ledger_index == c->ledger_index && active[i].gen == c->gen)
                finish(i, c->flags ? (uint16_t)c->flags : LAGAN_FINISH_CANCELLED);
    }
    check(r == 0);
    if (any) channel_release(&l);
}

/* Writes one record of tokens, for the n requests from first on. */
static void
put_tokens(uint32_t first, uint32_t n, int32_t now)
{
    struct rec_step *s;
    struct rec_out *o;

    s = plain_text_buffer(&l, REC_STEP, (uint32_t)(sizeof *s + n * (sizeof *o + 8)));
    *s = (struct rec_step){ .step = ++n_steps, .n_ent = n };
    o = (struct rec_out *)(s + 1);
    for (uint32_t i = first; i < first + n; i++) {
        char *tail = (char *)(o + 1);

        *o = (struct rec_out){ .ledger_index = active[i].ledger_index,
                               .gen = active[i].gen,
                               .n_tokens = 1,
                               .first = active[i].n_done,
                               .text_bytes = 1,
                               .text_first = active[i].n_done };
        memcpy(tail, &now, sizeof now);
        tail[sizeof now] = 'a';
        o = (struct rec_out *)(void *)(tail + 8);
        active[i].n_done++;
    }
}

static void
step(void)
{
    enum { RECORD = 512 }; /* requests in a record, so that a record fits into the ring */
    int32_t now = (int32_t)(clock_now() & INT32_MAX);

    for (uint32_t i = 0; i < n_active; i += RECORD)
        put_tokens(i, MIN(n_active - i, (uint32_t)RECORD), now);
    for (uint32_t i = n_active; i-- > 0;)
        if (active[i].n_done == active[i].max_tokens) finish(i, LAGAN_FINISH_LENGTH);
}

int
main(int argc, char **argv)
{
    nsec pace = 0, due = 0;
    struct heritage h;
    struct shm_ctl *c;

    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--path=", 7) && strrchr(argv[i], '/'))
            pace = atoi(strrchr(argv[i], '/') + 1) * NSEC_US;
    c = plain_begin(&l, &h);
    plain_ready(&l, "path",
                (struct rec_ready){ .vocab = INT32_MAX, .max_len = MAX_LEN, .n_slots = SLOTS });
    while (!draining || n_active) {
        nsec now = clock_now();

        atomic_fetch_add_explicit(&c->hb_count, 1, memory_order_relaxed);
        intake();
        if (now >= due) {
            step();
            channel_publish(&l);
            /* Late steps are not made up for. */
            due = now - due > pace ? now + pace : due + pace;
        }
        if (!plain_rest(&l, n_active ? MAX(due - clock_now(), (nsec)0) : IDLE)) return 0;
    }
    return 0;
}
