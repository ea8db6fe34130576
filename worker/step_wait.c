/* step_wait.c - predicts the end of a step from earlier ones, decides when to sleep or poll. */
#include "worker/step_wait.h"

#include "base/clock.h"

/* How late a timer usually is; a sleep is shorter by this time. */
static const nsec TIMER_SLACK = 30 * NSEC_US;
/* The margin is the polling time before and, again, after the predicted end: at least 20 us, both
 * together at most 1/5 of the step. In a step of 6 ms the worker then uses below 40 % of a core. */
static const nsec MIN_MARGIN = 20 * NSEC_US;
enum { MAX_MARGIN_PART = 5 };
/* A nap is a short sleep while a step is late or has no prediction: 1/8 of the delay so far. No
 * sleep is longer than MAX_NAP, because a step may end long before its prediction: the first step
 * of a kind also loads kernels, the next one does not. */
static const nsec MIN_NAP = 20 * NSEC_US, MAX_NAP = NSEC_MS;
enum { NAP_PART = 8 };
/* A step that ended during a sleep is recorded as 1/8 shorter, at most by half of MAX_NAP. */
enum { EARLY_PART = 8 };

/* Returns the index of the estimate for n_tokens batched tokens: 4 indices per power of 2. */
static uint32_t
size_class(uint32_t n_tokens)
{
    uint32_t octave, quarter;

    if (n_tokens < 4) return n_tokens;
    octave = 31 - (uint32_t)__builtin_clz(n_tokens);
    quarter = (n_tokens >> (octave - 2)) & 3;
    return MIN(4 * octave - 4 + quarter, (uint32_t)STEP_WAIT_SIZES - 1);
}

static const struct step_wait_estimate *
find_estimate(const struct step_wait *p, uint8_t work, uint32_t n_tokens)
{
    return &p->estimate[work % STEP_WAIT_WORK][size_class(n_tokens)];
}

/* A new duration has weight 1/4: contexts grow slowly, but clock or host load change at once. */
void
step_wait_learn(struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec took, bool observed)
{
    struct step_wait_estimate *c = &p->estimate[work % STEP_WAIT_WORK][size_class(n_tokens)];
    bool early = !observed && took < (nsec)c->ns; /* ended before the first poll */
    float ns = (float)MAX(early ? took - MIN(took / EARLY_PART, MAX_NAP / 2) : took, (nsec)1);
    float off = ns > c->ns ? ns - c->ns : c->ns - ns;

    if (c->n < 2) {
        c->n++;
        c->ns = c->n < 2 ? 0 : ns;
        c->off = c->ns / 10;
    } else {
        c->off += (MIN(off, c->ns) - c->off) / 4;
        c->ns += (ns - c->ns) / 4;
    }
}

nsec
step_wait_left(const struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec since, nsec now)
{
    nsec took = (nsec)find_estimate(p, work, n_tokens)->ns;

    return took ? MAX(since + took - now, (nsec)0) : -1;
}

struct step_wait_next
step_wait_next(const struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec since, nsec now)
{
    const struct step_wait_estimate *c = find_estimate(p, work, n_tokens);
    nsec end = since + (nsec)c->ns, off = (nsec)c->off, late = now - end;
    nsec margin = MIN(MAX(MIN_MARGIN, 2 * off), (nsec)c->ns / (2 * MAX_MARGIN_PART));
    nsec first = end - MAX(margin, MIN(2 * off, (nsec)c->ns / 2)) - TIMER_SLACK;
    nsec poll = end - margin - TIMER_SLACK;

    if (now < first) return (struct step_wait_next){ .until = MIN(first, now + MAX_NAP) };
    /* `first` is before `poll` only if durations vary by more than 5 % (2 off > margin). Few steps
     * end between these times, so naps suffice. */
    if (now < poll)
        return (struct step_wait_next){ .until = MIN(poll, now + MAX(MIN_NAP, off / NAP_PART)) };
    if (now < end + margin) return (struct step_wait_next){ .until = end + margin, .poll = true };
    return (struct step_wait_next){ .until = now + MIN(MAX(MIN_NAP, late / NAP_PART), MAX_NAP) };
}
