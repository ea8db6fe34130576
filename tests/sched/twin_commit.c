/* twin_commit.c - what a step that is over did to the twin's requests: twin.h. */
#include "tests/sched/twin_core.h"

static void
sampled(struct twin *t, struct req *q)
{
    token_id token = fake_token(q->name, q->prompt + q->made);

    q->made++;
    for (uint32_t i = 0; i < q->n_end && q->made > q->min_new; i++)
        if (q->end_id[i] == token) {
            twin_end(t, q);
            return;
        }
    if (q->made == q->max_new) twin_end(t, q);
}

/* Who was given what q held, by a step that is not over but for the one that failed. */
static void
fail_forks(struct twin *t, const struct req *q, unsigned failed)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct req *r = &t->req[i];
        bool over = r->fork_step + (r->fork_lane == failed ? 1 : 0) <= t->done[r->fork_lane];

        if (r->id == q->id && r->fork_step && !over && r->state != GONE) twin_end(t, r);
    }
}

void
twin_commit(struct twin *t, unsigned lane, bool failed, nsec now)
{
    struct twin_step *step = &t->out[lane][0];

    check(t->n_out[lane] > 0);
    t->done[lane] = step->number;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct twin_run *run = &step->run[i];
        struct req *q = twin_find(t, run->id, run->member);
        uint32_t taken = run->n_rows;

        check(q && q->in_flight > 0);
        q->in_flight--;
        if (run->work != WORK_ENCODER) q->encoded = false;
        if (run->guesses) {
            taken = failed ? run->n_rows : fake_taken(&t->l, q->id, q->done, run->guesses);
            q->guesses -= run->guesses;
            q->pos -= run->n_rows - taken;
            q->out -= run->n_rows - taken;
            if (q->state == GENERATE && q->out == q->max_new && !q->guesses) q->state = LAST;
        }
        if (run->work != WORK_ENCODER && !failed) q->done += taken;
        if (failed && q->state != GONE) twin_end(t, q);
        if (failed) fail_forks(t, q, lane);
        if (q->beam && run->samples && q->state != GONE && q->member + 1 == q->n_members) {
            for (uint32_t k = 0; k < q->n_members; k++) q->first[k].made++;
            if (q->made == q->max_new) twin_end(t, q);
        }
        for (uint32_t k = 0;
             !q->beam && run->samples && k < 1 + run->guesses - (run->n_rows - taken); k++)
            if (q->state != GONE) sampled(t, q);
        if (q->in_flight == 0 && q->seat && q->state == GONE) twin_leave(q);
        if (q->seat && q->state == PAUSED) twin_leave_paused(q);
    }
    t->out[lane][0] = t->out[lane][1];
    t->n_out[lane]--;
    twin_expire(t, now);
}
