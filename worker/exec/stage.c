/* stage.c - a batch as the arrays that ops read.
 *
 * Everything of a step lies in one image and goes to the device in one copy. What the batch promises
 * (batch.h) is checked here: it comes from the scheduler beside us, not from the world.
 */
#include "worker/exec/inside.h"

#include <errno.h>
#include <string.h>

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
        return err_set(e, -ENOTSUP, "batch has %u block copies, there is room for %u", b->n_copies,
                       x->c.max_copies);
    for (uint32_t i = 0; i < b->n_runs; i++) {
        if (b->run[i].n_draft)
            return err_set(e, -ENOTSUP, "seat %u has %u draft tokens: drafts are not there yet",
                           b->run[i].seat, b->run[i].n_draft);
    }
    if (b->n_edits > x->c.max_edits)
        return err_set(e, -ENOTSUP, "batch has %u edits, there is room for %u", b->n_edits,
                       x->c.max_edits);
    return 0;
}

bool
wants_history(const struct sampling *s)
{
    return s->repetition_penalty != 0 && s->repetition_penalty != 1;
}

void
pad_rows(int32_t *token, int32_t *pos, uint32_t *seat, uint32_t from, uint32_t n)
{
    for (; from < n; from++) {
        if (token) token[from] = 0;
        pos[from] = 0;
        seat[from] = SEAT_NONE;
    }
}

/* A step that may be a graph has as many rows and runs as that graph: runs of one row in the first
 * t->n_single places, longer ones in GRAPHS_RUNS behind them, and in places that are left a run of no rows.
 * So rows follow each other as in the batch, padding last, whatever of them are a prompt's. In cross attention
 * the beams of a search are one run: their source's keys are read once. Not in a graph of prompts, where that would want
 * a place behind all others. */
void
stage_decoder(struct exec *x, struct exec_lane *l, struct stage *st, const struct batch *b,
              const struct todo *t)
{
    const struct graphs_slot *graph = t->decode;
    bool join = !graph || graph->kind == GRAPHS_BEAMS;
    struct image *im = &st->step;
    uint32_t n = 0, n_rows, n_runs = graph ? t->n_single : b->n_runs, n_cross = 0;
    struct step_tokens *rows = &l->step.rows, *cross = &l->step.cross;
    struct segment *run, *cross_run;
    int32_t *token, *pos;
    uint32_t *seat;

    for (uint32_t i = 0; i < b->n_runs; i++) n += b->run[i].n_rows;
    if (graph && graph->kind == GRAPHS_PROMPTS) n_runs += GRAPHS_RUNS;
    n_rows = graph ? graph->rows : n;
    check(n <= n_rows && n <= b->n_rows && n_rows <= x->c.max_rows);
    check(b->n_runs <= x->n_seats);
    token = TAKE_ARRAY(im, int32_t, n_rows, &rows->token);
    pos = TAKE_ARRAY(im, int32_t, n_rows, &rows->pos);
    seat = TAKE_ARRAY(im, uint32_t, n_rows, &rows->seat);
    run = TAKE_ARRAY(im, struct segment, n_runs, &rows->run);
    cross_run = TAKE_ARRAY(im, struct segment, n_runs, &cross->run);
    rows->n_rows = n_rows;
    rows->n_runs = n_runs;
    rows->n_single = 0;

    memcpy(token, b->token, n * sizeof *token);
    memcpy(pos, b->pos, n * sizeof *pos);
    pad_rows(token, pos, seat, n, n_rows);
    for (uint32_t i = 0; graph && i < n_runs; i++)
        run[i] = cross_run[i] = (struct segment){ .seat = SEAT_NONE };
    n = 0;
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *r = &b->run[i];
        uint32_t at = i;

        check(r->first_row == n && r->seat < x->n_seats && r->n_rows);
        for (uint32_t k = 0; k < r->n_rows; k++) seat[n + k] = r->seat;
        n += r->n_rows;
        if (n == i + 1) rows->n_single = n;
        if (graph && n != i + 1) at += t->n_single - rows->n_single;
        check(at < n_runs);
        run[at] = (struct segment){ .seat = r->seat,
                                    .first_row = r->first_row,
                                    .n_rows = r->n_rows,
                                    .first_pos = r->first_pos,
                                    .kv_len = (uint32_t)r->first_pos + r->n_rows };
        if (join && (r->flags & RUN_SAME_SOURCE)) {
            cross_run[n_cross - 1].n_rows += r->n_rows;
            continue;
        }
        if (join) at = n_cross++;
        cross_run[at] = (struct segment){ .seat = r->seat,
                                          .first_row = r->first_row,
                                          .n_rows = r->n_rows,
                                          .first_pos = r->first_pos,
                                          .kv_len = r->cross_tokens };
    }
    if (graph) rows->n_single = t->n_single;
    cross->n_rows = n_rows;
    cross->n_runs = !join ? n_runs : graph ? t->n_single / 2 : n_cross;
    cross->n_single = graph && join ? 0 : rows->n_single;
    check(!join || n_cross <= cross->n_runs);
    for (uint32_t i = 0; !graph && i < cross->n_single; i++)
        if (i >= n_cross || cross_run[i].n_rows > 1) cross->n_single = i;
    cross->longest = graph && join ? GRAPHS_BEAM_ROWS : 0;
    for (uint32_t i = 0; !graph && i < n_cross; i++)
        cross->longest = MAX(cross->longest, cross_run[i].n_rows);
    cross->token = rows->token;
    cross->pos = rows->pos;
    cross->seat = rows->seat;
}

static void
stage_history(const struct exec *x, struct image *im, const struct batch *b, struct todo *t)
{
    struct segment *see = TAKE_ARRAY(im, struct segment, b->n_runs, &t->see);

    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *r = &b->run[i];

        if (!wants_history(&x->seat[r->seat])) continue;
        see[t->n_see++] = (struct segment){ .seat = r->seat,
                                            .first_row = r->first_row,
                                            .n_rows = r->n_rows,
                                            .first_pos = r->first_pos };
    }
}

void
stage_rest(struct exec *x, struct stage *st, const struct batch *b, struct todo *t)
{
    stage_history(x, &st->step, b, t);
    stage_moves(x, &st->step, b, t);
}
