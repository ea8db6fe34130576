/* warmup.c - runs the kernels once over padding tokens before the first request ("the pass").
 *
 * The driver loads a kernel at its first launch and waits until the device is idle. Without the
 * pass the supervisor could take that wait for a hang, and the first request would wait for the
 * loading of all kernels.
 *
 * The pass runs the first and the last layer, the logits and sampling, twice: with 1 decode token,
 * which does not use cuBLASLt (it may still be initialising), and with prefill tokens. No table is
 * read and no block is written. With `brief` (clients wait for a replacement worker) the prefill
 * pass is left out, because initialising cuBLASLt takes longest and can overlap with decoding.
 */
#include "worker/exec/exec_internal.h"

enum { ROWS = 64 };

/* Stages n padding tokens in one segment, for decoder and encoder. */
static void
stage_padding(struct exec_lane *l, struct image *im, uint32_t n, struct todo *t)
{
    struct step *s = &l->step;

    im->used = 0;
    stage_tokens(im, &s->rows, 0, n);
    *TAKE_ARRAY(im, struct segment, 1, &s->rows.segment) =
        (struct segment){ .slot = SLOT_NONE, .n_tokens = n, .kv_len = n };
    *TAKE_ARRAY(im, uint32_t, 1, &t->which) = n - 1;
    *TAKE_ARRAY(im, struct sample_row, 1, &t->row) = sampling_padding;
    s->rows.n_segments = 1;
    s->rows.n_single_token = n == 1;
    s->cross = s->enc = s->project = s->rows;
    s->x = tensor_rows(l->x, 0, n);
    s->normed = tensor_rows(l->normed, 0, n);
    t->n_sample_rows = t->n_logits = 1;
}

static int
queue_source(struct exec *x, struct exec_lane *l, uint32_t n)
{
    const struct model_shape *shape = &x->m->shape;
    struct step *s = &l->step;

    s->enc_x = tensor_rows(x->enc_state, 0, n);
    s->enc_out = s->project_x = tensor_rows(x->enc_out, 0, n);
    TRY(x->m->arch->encode(x->m, s, 0, 1));
    TRY(x->m->arch->encode(x->m, s, shape->n_encoder_layers - 1, 1));
    return x->m->arch->project_cross(x->m, s, 0, 1);
}

static int
queue_pass(struct exec *x, struct exec_lane *l, const struct image *im, uint32_t n,
           const struct todo *t)
{
    const struct model_shape *shape = &x->m->shape;

    TRY(x->op->mem.put(l->lane, im->dev, im->host, im->used));
    if (shape->n_encoder_layers && n > 1) TRY(queue_source(x, l, n));
    TRY(x->m->arch->forward(x->m, &l->step, 0, 1));
    TRY(x->m->arch->forward(x->m, &l->step, shape->n_layers - 1, 1));
    return sampling_queue(x, l, t);
}

int
wait_until_idle(struct exec *x, struct exec_lane *l)
{
    for (uint64_t mark = 2; mark-- > 0;) { /* ends with mark 0, because steps count from 1 */
        TRY(x->op->lane.mark(l->lane, mark));
        TRY(gpu_wait(l->lane, mark, mark));
    }
    return 0;
}

int
warm_up(struct exec *x, struct exec_lane *l)
{
    uint32_t most = MIN(x->c.max_tokens,
                        x->m->shape.n_encoder_layers ? x->c.max_enc_tokens : UINT32_MAX);
    uint32_t n[] = { 1, MIN(most, (uint32_t)ROWS) };

    for (unsigned i = 0; i < (x->c.brief ? 1 : ARRAY_LEN(n)); i++) {
        struct todo t = { 0 };

        stage_padding(l, &l->stage[i].step, n[i], &t);
        TRY(queue_pass(x, l, &l->stage[i].step, n[i], &t));
    }
    return wait_until_idle(x, l);
}
