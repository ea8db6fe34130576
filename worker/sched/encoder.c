/* encoder.c - plans the encoder inputs of a step, and how many encoder layers the step computes. */
#include "worker/sched/sched_internal.h"

/* Returns how many encoder layers of q fit the step; left: tokens * layers that still fit. */
static uint32_t
layers_now(const struct step_plan *p, const struct seq *q, uint64_t left)
{
    uint32_t all = p->s->l.n_enc_layers, a_step = p->s->l.enc_layers ? p->s->l.enc_layers : all;
    uint64_t fit = left / q->n_source;

    if (fit == 0 && p->b->n_encode == 0) fit = 1;
    return (uint32_t)MIN(fit, (uint64_t)MIN(a_step, all - q->n_enc_layers));
}

/* Adds n encoder layers of q to the step and subtracts their work from *left. */
static void
add_encode(struct step_plan *p, struct seq *q, uint32_t n, uint64_t *left)
{
    struct batch *b = p->b;

    b->encode[b->n_encode++] = (struct batch_encode){
        .slot = q->slot,
        .first_token = b->n_tokens,
        .n_tokens = q->n_source,
        .enc_token = q->enc_token,
        .first_layer = (uint16_t)q->n_enc_layers,
        .n_layers = (uint16_t)n,
    };
    for (uint32_t i = 0; i < q->n_source; i++, b->n_tokens++) {
        b->token[b->n_tokens] = q->source[i];
        b->pos[b->n_tokens] = (int32_t)i;
    }
    b->work |= WORK_ENCODER;
    put_in_step(p, q);
    *left -= MIN(*left, (uint64_t)n * q->n_source);
    q->n_enc_layers += n;
    if (q->n_enc_layers == p->s->l.n_enc_layers) move_seq(p->s, q, SEQ_PREFILL);
}

/* True if a sequence prefills or decodes: then the device is not idle while encoder inputs wait. */
static bool
any_computing(const struct scheduler *s)
{
    for (const struct seq *q = s->running.first; q; q = q->next)
        if ((q->state == SEQ_PREFILL || q->state == SEQ_DECODE) && !q->is_suspended) return true;
    return false;
}

/* Returns how many waiting encoder inputs may start: UINT32_MAX (no limit), a batch size of
 * limits.enc_batch, or 0 while the batch is too small. */
static uint32_t
n_released(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t n = 0, slots = MIN(s->n_free, s->max_running - s->running.n), some = 0;
    nsec oldest = NSEC_NEVER;

    if (s->l.n_enc_batches == 0 || !any_computing(s)) return UINT32_MAX;
    for (const struct seq *q = s->waiting.first; q; q = q->next) {
        if (runnable(s, q, p->lane) != WORK_ENCODER) continue;
        oldest = MIN(oldest, q->arrived);
        n++;
    }
    for (uint32_t i = 0; i < s->l.n_enc_batches; i++)
        if (s->l.enc_batch[i] <= MIN(n, slots)) some = s->l.enc_batch[i];
    if (some == s->l.enc_batch[s->l.n_enc_batches - 1]) return some;
    if (n == 0 || p->now - oldest >= s->l.enc_wait) return some;
    p->s->waited_for[p->lane] = MIN(s->waited_for[p->lane], oldest + s->l.enc_wait);
    return 0;
}

void
plan_encoder(struct step_plan *p)
{
    struct scheduler *s = p->s;
    uint64_t left = s->l.enc_work && (p->b->work & WORK_DECODE) ? s->l.enc_work : UINT64_MAX;
    uint32_t n, may = n_released(p);
    struct seq *q, *next;

    for (q = s->n_in[SEQ_ENCODER] ? s->running.first : NULL; q; q = q->next) {
        if (runnable(s, q, p->lane) != WORK_ENCODER) continue;
        n = layers_now(p, q, left);
        if (n > 0) add_encode(p, q, n, &left);
    }
    for (q = s->l.n_enc_layers ? s->waiting.first : NULL; q && may > 0 && !s->static_batch_closed;
         q = next) {
        next = q->next;
        if (runnable(s, q, p->lane) != WORK_ENCODER || !may_take_pages(s, q)) continue;
        if (find_cross(s, q)) continue; /* its cross KV is cached: plan_prefill() plans q */
        n = layers_now(p, q, left);
        if (n == 0 || !admit_enc(s, q)) break;
        add_encode(p, q, n, &left);
        may--;
    }
}
