/* stage.c - converts a batch of the scheduler to the arrays that ops read.
 *
 * The arrays of a step are in one image (exec_internal.h) and are copied to the device at once. The
 * invariants of batch.h are checked with check(), because a batch comes from this process, not from
 * a peer.
 */
#include "worker/exec/exec_internal.h"

void *
image_take(struct image *im, size_t bytes, void **dev)
{
    size_t at = ROUND_UP(im->used, CACHE_LINE);

    check(at + bytes <= im->bytes);
    im->used = at + bytes;
    *dev = im->dev + at;
    return im->host + at;
}

int
stage_refuse(const struct exec *x, const struct batch *b, struct err *e)
{
    if (b->n_copies > x->c.max_copies)
        return err_set(e, -ENOTSUP,
                       "a step has %u block copies, at most %u are possible (internal error)",
                       b->n_copies, x->c.max_copies);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        if (b->segment[i].n_draft)
            return err_set(e, -ENOTSUP,
                           "the sequence in slot %u has %u draft tokens, but speculative decoding "
                           "is not implemented (internal error)",
                           b->segment[i].slot, b->segment[i].n_draft);
    }
    if (b->n_edits > x->c.max_edits)
        return err_set(e, -ENOTSUP,
                       "a step has %u table edits, at most %u are possible (internal error)",
                       b->n_edits, x->c.max_edits);
    return 0;
}

bool
wants_history(const struct sampling *s)
{
    return (s->repetition_penalty != 0 && s->repetition_penalty != 1) || s->no_repeat_ngram ||
           s->presence_penalty != 0 || s->frequency_penalty != 0;
}

struct staged_tokens
stage_tokens(struct image *im, struct step_tokens *r, uint32_t n_used, uint32_t n)
{
    struct staged_tokens to;

    to.token = TAKE_ARRAY(im, int32_t, n, &r->token);
    to.pos = TAKE_ARRAY(im, int32_t, n, &r->pos);
    to.slot = TAKE_ARRAY(im, uint32_t, n, &r->slot);
    r->n_tokens = n;
    for (uint32_t i = n_used; i < n; i++) {
        to.token[i] = to.pos[i] = 0;
        to.slot[i] = SLOT_NONE;
    }
    return to;
}

/* If the decoder may run as a graph, the arrays have the number of tokens and segments of the
 * graph: one-token segments at the first t->n_single_token indexes, longer segments at the next
 * graphs_segments(), empty segments at the others. Tokens keep the order of the batch, padding is
 * last. Cross attention joins the beams of a search into one segment, so that the keys of the
 * encoder input are read once; not in a GRAPHS_PREFILL graph, which has no entries for them. */
void
stage_decoder(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
              const struct todo *t)
{
    const struct graphs_slot *graph = t->decode;
    bool join = !graph || graph->kind == GRAPHS_BEAMS;
    struct image *im = &st->step;
    uint32_t n = 0, n_tokens, n_segments = graph ? t->n_single_token : b->n_segments, n_cross = 0;
    struct step_tokens *rows = &l->step.rows, *cross = &l->step.cross;
    struct segment *segment, *cross_run;
    struct staged_tokens to;

    for (uint32_t i = 0; i < b->n_segments; i++) n += b->segment[i].n_tokens;
    if (graph && graph->kind == GRAPHS_PREFILL) n_segments += graphs_segments(graph->rows);
    n_tokens = graph ? graph->rows : n;
    check(n <= n_tokens && n <= b->n_tokens && n_tokens <= x->c.max_tokens);
    check(b->n_segments <= x->n_slots);
    to = stage_tokens(im, rows, n, n_tokens);
    segment = TAKE_ARRAY(im, struct segment, n_segments, &rows->segment);
    cross_run = TAKE_ARRAY(im, struct segment, n_segments, &cross->segment);
    rows->n_segments = n_segments;
    rows->n_single_token = 0;

    memcpy(to.token, b->token, n * sizeof *to.token);
    memcpy(to.pos, b->pos, n * sizeof *to.pos);
    for (uint32_t i = 0; graph && i < n_segments; i++)
        segment[i] = cross_run[i] = (struct segment){ .slot = SLOT_NONE };
    n = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];
        uint32_t at = i;

        check(r->first_token == n && r->slot < x->n_slots && r->n_tokens);
        for (uint32_t k = 0; k < r->n_tokens; k++) to.slot[n + k] = r->slot;
        n += r->n_tokens;
        if (n == i + 1) rows->n_single_token = n;
        if (graph && n != i + 1) at += t->n_single_token - rows->n_single_token;
        check(at < n_segments);
        segment[at] = (struct segment){ .slot = r->slot,
                                        .first_token = r->first_token,
                                        .n_tokens = r->n_tokens,
                                        .first_pos = r->first_pos,
                                        .kv_len = (uint32_t)r->first_pos + r->n_tokens };
        if (join && (r->flags & SEGMENT_SAME_SOURCE)) {
            cross_run[n_cross - 1].n_tokens += r->n_tokens;
            continue;
        }
        if (join) at = n_cross++;
        cross_run[at] = (struct segment){ .slot = r->slot,
                                          .first_token = r->first_token,
                                          .n_tokens = r->n_tokens,
                                          .first_pos = r->first_pos,
                                          .kv_len = r->cross_tokens };
    }
    if (graph) rows->n_single_token = t->n_single_token;
    cross->n_tokens = n_tokens;
    cross->n_segments = !join ? n_segments : graph ? t->n_single_token / 2 : n_cross;
    cross->n_single_token = graph && join ? 0 : rows->n_single_token;
    check(!join || n_cross <= cross->n_segments);
    for (uint32_t i = 0; !graph && i < cross->n_single_token; i++)
        if (i >= n_cross || cross_run[i].n_tokens > 1) cross->n_single_token = i;
    cross->longest = graph && join ? GRAPHS_BEAM_ROWS : 0;
    for (uint32_t i = 0; !graph && i < n_cross; i++)
        cross->longest = MAX(cross->longest, cross_run[i].n_tokens);
    cross->token = rows->token;
    cross->pos = rows->pos;
    cross->slot = rows->slot;
}

void
stage_marked(const struct exec *x, struct image *im, const struct batch *b, struct todo *t)
{
    struct segment *marked = TAKE_ARRAY(im, struct segment, b->n_segments, &t->marked);

    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];

        if (!wants_history(&x->slot[r->slot])) continue;
        marked[t->n_marked++] = (struct segment){ .slot = r->slot,
                                                  .first_token = r->first_token,
                                                  .n_tokens = r->n_tokens,
                                                  .first_pos = r->first_pos };
    }
}
