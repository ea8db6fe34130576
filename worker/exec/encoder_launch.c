/* encoder_launch.c - stages and queues the encoder slices of a step, and the cross projections of
 * encoder states (K and V of cross attention).
 *
 * An encoder slice is a range of layers over one encoder input. Short encoder inputs may run
 * through the encoder as a graph and be projected as a graph. A graph uses fixed addresses: it has
 * an image of its own that begins with its arrays. The encoder graph computes in source_x and
 * source_out; its states are then copied to enc_out. The other graph projects `sources`.
 */
#include "worker/exec/exec_internal.h"

static struct graphs_slot *
use_graph(const struct exec *x, struct exec_lane *l, enum graphs_kind kind, uint32_t rows,
          const struct batch *b)
{
    uint32_t bucket = rows && l->graphs.capacity ? graphs_source_bucket(rows) : 0;

    return bucket && bucket <= x->c.max_enc_tokens
               ? graphs_use(&l->graphs, kind, bucket, b->partition, b->step)
               : NULL;
}

/* Returns true if slice i can run with the previous slice: both have the same layers, and their
 * tokens are consecutive in the batch and in enc_state. */
static bool
follows(const struct batch *b, uint32_t i)
{
    const struct batch_encode *s = &b->encode[i], *before = s - 1;

    return i && s->first_layer == before->first_layer && s->n_layers == before->n_layers &&
           s->enc_token == before->enc_token + before->n_tokens;
}

/* Returns true if all slices can run together through all layers. */
static bool
together(const struct exec *x, const struct batch *b)
{
    for (uint32_t i = 1; i < b->n_encode; i++)
        if (!follows(b, i)) return false;
    return b->n_encode && b->n_encode <= GRAPHS_SOURCES && b->encode[0].first_layer == 0 &&
           b->encode[0].n_layers == x->m->shape.n_encoder_layers;
}

static void
stage_encoder(const struct exec *x, struct image *im, const struct batch *b, uint32_t first,
              struct todo *t)
{
    uint32_t n = b->n_tokens - first, at = 0;
    struct step_tokens *r = &t->enc;
    struct staged_tokens to;
    struct segment *segment;
    uint32_t *place;

    check(n <= x->c.max_enc_tokens && b->n_encode <= x->n_slots);
    r->n_segments = t->encode ? (uint32_t)GRAPHS_SOURCES : b->n_encode;
    to = stage_tokens(im, r, n, t->encode ? t->encode->rows : n);
    segment = TAKE_ARRAY(im, struct segment, r->n_segments, &r->segment);
    place = TAKE_ARRAY(im, uint32_t, t->encode ? n : 0, &t->enc_place);
    memcpy(to.token, b->token + first, n * sizeof *to.token);
    memcpy(to.pos, b->pos + first, n * sizeof *to.pos);
    for (uint32_t i = 0; t->encode && i < n; i++) place[i] = i;
    for (uint32_t i = 0; i < b->n_encode; i++) {
        const struct batch_encode *s = &b->encode[i];

        check(s->first_token == first + at && s->n_tokens);
        check(s->enc_token <= x->c.max_enc_tokens &&
              s->n_tokens <= x->c.max_enc_tokens - s->enc_token);
        check(s->first_layer + s->n_layers <= x->m->shape.n_encoder_layers);
        for (uint32_t k = 0; k < s->n_tokens; k++) to.slot[at + k] = s->slot;
        segment[i] = (struct segment){
            .slot = s->slot,
            .first_token = follows(b, i) ? segment[i - 1].first_token + segment[i - 1].n_tokens : 0,
            .n_tokens = s->n_tokens,
            .kv_len = s->n_tokens,
        };
        at += s->n_tokens;
    }
    for (uint32_t i = b->n_encode; i < r->n_segments; i++)
        segment[i] = (struct segment){ .slot = SLOT_NONE };
    check(at == n);
}

static void
stage_project(const struct exec *x, struct image *im, const struct batch *b, struct todo *t)
{
    uint32_t n = t->n_project, at = 0, *row;
    struct staged_tokens to;

    check(n <= x->c.max_enc_tokens);
    to = stage_tokens(im, &t->projected, n, t->project ? t->project->rows : n);
    row = TAKE_ARRAY(im, uint32_t, n, &t->project_row);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *segment = &b->segment[i];

        check(!segment->enc_tokens ||
              segment->enc_token + segment->enc_tokens <= x->c.max_enc_tokens);
        if (segment->enc_tokens && at == 0) t->project_first = segment->enc_token;
        if (segment->enc_tokens && segment->enc_token != t->project_first + at)
            t->project_first = NOT_TOGETHER;
        for (uint32_t k = 0; k < segment->enc_tokens; k++, at++) {
            to.pos[at] = (int32_t)k;
            to.slot[at] = segment->slot;
            row[at] = segment->enc_token + k;
        }
    }
    if (t->project) t->project_first = NOT_TOGETHER;
}

void
stage_sources(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
              struct todo *t)
{
    uint32_t first = 0; /* index of the first encoder token in the batch */

    for (uint32_t i = 0; i < b->n_segments; i++) {
        first += b->segment[i].n_tokens;
        t->n_project += b->segment[i].enc_tokens;
    }
    if (together(x, b)) t->encode = use_graph(x, l, GRAPHS_ENCODE, b->n_tokens - first, b);
    t->project = use_graph(x, l, GRAPHS_PROJECT, t->n_project, b);
    stage_encoder(x, &st->encode, b, first, t);
    stage_project(x, &st->project, b, t);
}

static int
encode_slices(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t)
{
    struct step *s = &l->step;
    uint32_t row = 0;

    for (uint32_t i = 0, n; i < b->n_encode; i += n) {
        const struct batch_encode *a = &b->encode[i];
        uint32_t n_tokens = a->n_tokens;

        for (n = 1; i + n < b->n_encode && follows(b, i + n); n++)
            n_tokens += b->encode[i + n].n_tokens;
        s->enc = (struct step_tokens){
            .n_tokens = n_tokens,
            .n_segments = n,
            .token = t->enc.token + row,
            .pos = t->enc.pos + row,
            .slot = t->enc.slot + row,
            .segment = t->enc.segment + i,
        };
        s->enc_x = tensor_rows(x->enc_state, a->enc_token, n_tokens);
        s->enc_out = tensor_rows(x->enc_out, a->enc_token, n_tokens);
        TRY(x->m->arch->encode(x->m, s, a->first_layer, a->n_layers));
        row += n_tokens;
    }
    return 0;
}

/* The encoder piece as a graph: all layers, at fixed addresses. */
static int
encode(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    struct step *s = &l->step;

    s->enc = t->enc;
    s->enc_x = tensor_rows(l->source_x, 0, t->enc.n_tokens);
    s->enc_out = tensor_rows(l->source_out, 0, t->enc.n_tokens);
    return x->m->arch->encode(x->m, s, 0, x->m->shape.n_encoder_layers);
}

int
queue_encoders(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t)
{
    uint32_t n = 0;

    if (!t->encode) return encode_slices(x, l, b, t);
    for (uint32_t i = 0; i < b->n_encode; i++) n += b->encode[i].n_tokens;
    TRY(queue_piece(x, l, t, t->encode, encode));
    return x->op->gather_rows(l->lane, tensor_rows(x->enc_out, b->encode[0].enc_token, n),
                              tensor_rows(l->source_out, 0, n), t->enc_place);
}

/* The projection piece: all new inputs together, so that the weights of a layer are read once. */
static int
project(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    struct step *s = &l->step;

    s->project = t->projected;
    s->project_x = t->project_first == NOT_TOGETHER
                       ? tensor_rows(l->sources, 0, t->projected.n_tokens)
                       : tensor_rows(x->enc_out, t->project_first, t->n_project);
    return x->m->arch->project_cross(x->m, s, 0, x->m->shape.n_layers);
}

int
queue_projections(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    if (!t->n_project) return 0;
    if (t->project_first == NOT_TOGETHER)
        TRY(x->op->gather_rows(l->lane, tensor_rows(l->sources, 0, t->n_project), x->enc_out,
                               t->project_row));
    return queue_piece(x, l, t, t->project, project);
}
