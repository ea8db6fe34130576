/* ref_sched_commit.c - the effect of a finished step on the reference's requests: ref_sched.h. */
#include "tests/sched/ref_sched_internal.h"

static void
sampled(struct ref *t, struct req *q)
{
    token_id token = fake_token(q->name, q->prompt + q->made);

    q->made++;
    for (uint32_t i = 0; i < q->n_end && q->made > q->min_new; i++)
        if (q->end_id[i] == token) {
            ref_end(t, q);
            return;
        }
    if (q->made == q->max_new) ref_end(t, q);
}

/* Ends the members that forked from q in an uncommitted step, or in the failed one. */
static void
fail_forks(struct ref *t, const struct req *q, unsigned failed)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct req *r = &t->req[i];
        bool over = r->fork_step + (r->fork_lane == failed ? 1 : 0) <= t->done[r->fork_lane];

        if (r->id == q->id && r->fork_step && !over && r->state != GONE) ref_end(t, r);
    }
}

void
ref_commit(struct ref *t, unsigned lane, bool failed, nsec now)
{
    struct ref_step *step = &t->out[lane][0];

    check(t->n_out[lane] > 0);
    t->done[lane] = step->number;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct ref_run *run = &step->run[i];
        struct req *q = ref_find(t, run->id, run->member);
        uint32_t taken = run->n_tokens;

        check(q && q->in_flight > 0);
        q->in_flight--;
        if (run->work != WORK_ENCODER) q->encoded = false;
        if (run->drafts) {
            taken = failed ? run->n_tokens : fake_taken(&t->l, q->id, q->done, run->drafts);
            q->drafts -= run->drafts;
            q->pos -= run->n_tokens - taken;
            q->out -= run->n_tokens - taken;
            if (q->state == GENERATE && q->out == q->max_new && !q->drafts) q->state = LAST;
        }
        if (run->work != WORK_ENCODER && !failed) q->done += taken;
        if (failed && q->state != GONE) ref_end(t, q);
        if (failed) fail_forks(t, q, lane);
        if (q->beam && run->samples && q->state != GONE && q->member + 1 == q->n_members) {
            for (uint32_t k = 0; k < q->n_members; k++) q->first[k].made++;
            if (q->made == q->max_new) ref_end(t, q);
        }
        for (uint32_t k = 0;
             !q->beam && run->samples && k < 1 + run->drafts - (run->n_tokens - taken); k++)
            if (q->state != GONE) sampled(t, q);
        if (q->in_flight == 0 && q->slot && q->state == GONE) ref_leave(q);
        if (q->slot && q->state == PREEMPTED) ref_leave_preempted(q);
    }
    t->out[lane][0] = t->out[lane][1];
    t->n_out[lane]--;
    ref_expire(t, now);
}
