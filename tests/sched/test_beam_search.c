/* test_beam_search.c - beam search against a reference: transformers' loop over whole sequences,
 * which sorts every candidate of every beam at each step.
 */
#include "tests/test.h"
#include "worker/sched/beam_search.h"

#include "include/lagan_wire.h"

#include <math.h>

enum { MAX_LEN = 40, VOCAB = 24, MOST = MAX_BEAMS * VOCAB };

/* A fake model: its log-probabilities depend on all tokens so far. */
static float
logprob_of(uint64_t seed, const token_id *token, uint32_t n, token_id next)
{
    uint64_t h = seed * UINT64_C(0x9e3779b97f4a7c15);

    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)token[i]) * UINT64_C(0xd6e8feb86659fd93) + 1;
    h = (h ^ (uint64_t)next << 7) * UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 31;
    return -0.05f - (float)(h % 1000003) / 150000.0f;
}

struct hypothesis {
    token_id token[MAX_LEN];
    uint32_t n;
    float score;
    bool hit, filled;
};

static int
best_first(const void *a, const void *b)
{
    float x = ((const struct hypothesis *)a)->score, y = ((const struct hypothesis *)b)->score;

    return (x < y) - (x > y);
}

struct ref {
    struct hypothesis run[MAX_BEAMS], done[MAX_BEAMS];
};

static bool
ends(const struct beam *b, token_id t, uint32_t n)
{
    for (uint32_t i = 0; i < b->n_end; i++)
        if (b->end_id[i] == t && n > b->min_new) return true;
    return n == b->max_new;
}

static uint32_t
reference_step(struct ref *w, const struct beam *b, uint64_t seed, uint32_t cur, bool *improve)
{
    static struct hypothesis all[MOST], next[MOST + MAX_BEAMS];
    uint32_t n = 0, k = MAX(2u, 1 + b->n_end) * b->n_beams, hits = 0, n_next = 0;
    float worst = 0, best_length;
    bool full = true;

    for (uint32_t i = 0; i < b->n_beams; i++)
        for (token_id t = 0; t < VOCAB; t++) {
            all[n] = w->run[i];
            all[n].score = w->run[i].score + logprob_of(seed, w->run[i].token, cur, t);
            all[n].token[cur] = t;
            all[n].n = cur + 1;
            all[n].hit = ends(b, t, cur + 1);
            n++;
        }
    qsort(all, n, sizeof *all, best_first);
    k = MIN(k, n);
    for (uint32_t i = 0; i < k; i++) {
        hits += all[i].hit;
        next[n_next] = all[i];
        if (all[i].hit) next[n_next].score += -1e9f;
        n_next++;
    }
    qsort(next, n_next, sizeof *next, best_first);
    memcpy(w->run, next, b->n_beams * sizeof *next);
    n_next = 0;
    for (uint32_t i = 0; i < b->n_beams; i++) next[n_next++] = w->done[i];
    for (uint32_t i = 0; i < b->n_beams; i++) {
        if (!all[i].hit) continue;
        next[n_next] = all[i];
        next[n_next].filled = true;
        next[n_next++].score /= powf((float)(cur + 1), b->length_penalty);
    }
    qsort(next, n_next, sizeof *next, best_first);
    memcpy(w->done, next, b->n_beams * sizeof *next);
    for (uint32_t i = 0; i < b->n_beams; i++) {
        full = full && w->done[i].filled;
        worst = w->done[i].score;
    }
    best_length = (float)(b->early == BEAM_EARLY_NEVER && b->length_penalty > 0 ? b->max_new
                                                                                : cur + 1);
    *improve = *improve &&
               w->run[0].score / powf(best_length, b->length_penalty) > (full ? worst : -1e9f);
    return !*improve || (b->early == BEAM_EARLY_TRUE && full) || hits == k;
}

struct beam_fixture {
    struct beam b;
    token_id line[MAX_BEAMS][MAX_LEN], done_token[MAX_BEAMS][MAX_LEN], end_id[4];
    float total[MAX_BEAMS][MAX_LEN], done_total[MAX_BEAMS][MAX_LEN];
    uint8_t row_slot[MAX_BEAMS][MAX_LEN], done_row_slot[MAX_BEAMS][MAX_LEN];
    struct batch_top top[MAX_BEAMS][MOST];
    uint32_t n_given;
};

static int
by_logprob(const void *a, const void *b)
{
    const struct batch_top *x = a, *y = b;

    if (x->logprob != y->logprob) return x->logprob < y->logprob ? 1 : -1;
    return x->id - y->id;
}

static void
set_storage(struct beam_fixture *x, uint32_t i)
{
    x->b.line[i] = x->line[i];
    x->b.done_token[i] = x->done_token[i];
    x->b.total[i] = x->total[i];
    x->b.done_total[i] = x->done_total[i];
    x->b.row_slot[i] = x->row_slot[i];
    x->b.done_row_slot[i] = x->done_row_slot[i];
}

static void
open_fixture(struct beam_fixture *x)
{
    static const float penalty[] = { 0, 1, 2, 0.6f, -0.5f };

    memset(x, 0, sizeof *x);
    x->n_given = test_below(4);
    x->b = (struct beam){ .n_beams = 1 + test_below(8),
                          .max_new = 1 + test_below(30),
                          .n_end = test_below(4),
                          .end_id = x->end_id,
                          .early = test_below(3),
                          .length_penalty = penalty[test_below(ARRAY_LEN(penalty))],
                          .first = x->n_given };
    x->b.min_new = test_below(3) ? 0 : test_below(x->b.max_new);
    x->b.n_eos = x->b.n_end ? 1 : 0;
    for (uint32_t i = 0; i < x->b.n_end; i++) x->end_id[i] = (token_id)(3 + 5 * i);
    for (uint32_t i = 0; i < x->b.n_beams; i++) {
        set_storage(x, i);
        for (uint32_t k = 0; k < x->n_given; k++) x->line[i][k] = (token_id)(1000 + k);
    }
    beam_start(&x->b, 0, 0);
}

static void
step_fixture(struct beam_fixture *x, uint64_t seed)
{
    struct beam_list list[MAX_BEAMS];
    uint32_t width = beam_width(x->b.n_beams, x->b.n_end);

    for (uint32_t i = 0; i < x->b.n_beams; i++) {
        for (token_id t = 0; t < VOCAB; t++)
            x->top[i][t] =
                (struct batch_top){ t, logprob_of(seed, x->line[i] + x->n_given, x->b.n_new, t) };
        qsort(x->top[i], VOCAB, sizeof x->top[i][0], by_logprob);
        for (uint32_t k = VOCAB; k < width; k++) x->top[i][k] = (struct batch_top){ -1, -INFINITY };
        list[i] = (struct beam_list){ x->top[i], width };
    }
    beam_decide(&x->b, list);
    beam_advance(&x->b);
}

static void
search_ends_with_the_reference_sequences_and_scores(void **state)
{
    static struct beam_fixture x;
    static struct ref w;
    /* before each step, by slot: the tokens after which its row was computed */
    static token_id before[MAX_LEN][MAX_BEAMS][MAX_LEN];
    uint32_t n_end = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        token_id settled[MAX_LEN];
        uint32_t n_common = 0, cur = 0;
        bool improve = true, over = false;

        open_fixture(&x);
        memset(&w, 0, sizeof w);
        for (uint32_t i = 0; i < x.b.n_beams; i++) {
            w.run[i].score = i ? -1e9f : 0;
            w.done[i].score = -1e9f;
        }
        while (!over) {
            assert_false(x.b.over);
            for (uint32_t i = 0; i < x.b.n_beams; i++)
                memcpy(before[cur][i], x.line[i] + x.n_given, cur * sizeof(token_id));
            over = reference_step(&w, &x.b, seed, cur++, &improve);
            step_fixture(&x, seed);
            assert_true(x.b.n_common >= n_common); /* delivered tokens stay */
            for (uint32_t i = 0; i < n_common; i++)
                assert_int_equal(x.line[0][x.n_given + i], settled[i]);
            n_common = x.b.n_common;
            memcpy(settled, x.line[0] + x.n_given, n_common * sizeof *settled);
            for (uint32_t i = 0; i < x.b.n_beams; i++) { /* each beam has its own slot */
                assert_true(x.b.parent[i] < x.b.n_beams);
                assert_int_equal(x.line[i][0], x.n_given ? 1000 : x.line[i][0]);
            }
            for (uint32_t i = 0; i < x.b.n_beams && !over; i++) {
                const token_id *line = x.line[x.b.order[i]] + x.n_given;

                if (w.run[i].score < -1e8f) continue; /* ties: any order */
                assert_memory_equal(line, w.run[i].token, cur * sizeof *line);
                assert_true(x.b.score[x.b.order[i]] == w.run[i].score);
                assert_true(x.total[x.b.order[i]][cur - 1] == w.run[i].score);
            }
        }
        assert_true(x.b.over);
        for (uint32_t i = 0; i < x.b.n_beams; i++) {
            struct beam_done d = beam_result(&x.b, i);

            if (!w.done[i].filled) break;
            assert_int_equal(d.n, w.done[i].n);
            assert_memory_equal(d.token, w.done[i].token, d.n * sizeof *d.token);
            assert_true(fabsf(d.score - w.done[i].score) <= 1e-6f * fabsf(d.score));
            assert_true(fabsf(d.total[d.n - 1] / powf((float)d.n, x.b.length_penalty) - d.score) <=
                        1e-5f * fabsf(d.score));
            for (uint32_t k = 1; k < d.n; k++) assert_true(d.total[k] < d.total[k - 1]);
            for (uint32_t k = 0; k < d.n; k++)
                assert_memory_equal(before[k][d.row_slot[k]], d.token, k * sizeof *d.token);
            assert_memory_equal(d.token, settled, MIN(n_common, d.n) * sizeof *settled);
            assert_int_equal(d.reason == LAGAN_FINISH_LENGTH,
                             d.n == x.b.max_new && !(x.b.n_end && d.n > x.b.min_new &&
                                                     (d.token[d.n - 1] - 3) % 5 == 0 &&
                                                     d.token[d.n - 1] / 5 < (int)x.b.n_end));
            n_end += d.reason != LAGAN_FINISH_LENGTH;
        }
    }
    assert_true(n_end > 1000);
}

static void
copy_fixture(struct beam_fixture *to, const struct beam_fixture *from)
{
    *to = *from;
    to->b.end_id = to->end_id;
    for (uint32_t i = 0; i < to->b.n_beams; i++) set_storage(to, i);
    beam_start(&to->b, 0, 0);
}

static void
same_results(const struct beam *a, const struct beam *b)
{
    assert_int_equal(a->n_common, b->n_common);
    for (uint32_t i = 0; i < a->n_beams; i++) {
        struct beam_done x = beam_result(a, i), y = beam_result(b, i);

        assert_true(x.n == y.n && x.score == y.score && x.reason == y.reason);
        assert_memory_equal(x.token, y.token, x.n * sizeof *x.token);
    }
}

static void
search_repeated_from_its_decisions_continues_equally(void **state)
{
    static struct beam_fixture x, y;
    uint32_t n_steps = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct beam_decision decision[MAX_LEN];
        uint32_t n = 0, until = test_below(20);

        open_fixture(&x);
        copy_fixture(&y, &x);
        while (!x.b.over) {
            step_fixture(&x, seed);
            if (!x.b.over && n < until) decision[n++] = x.b.last;
        }
        for (uint32_t i = 0; i < n; i++) assert_int_equal(beam_redo(&y.b, &decision[i]), 0);
        for (n_steps += n; !y.b.over;) step_fixture(&y, seed);
        same_results(&x.b, &y.b);
    }
    assert_true(n_steps > 1000);
}

static void
impossible_decisions_are_refused(void **state)
{
    static struct beam_fixture x;
    struct beam_decision good, bad;

    (void)state;
    do open_fixture(&x);
    while (x.b.n_beams < 2 || x.b.max_new < 10 || x.b.n_end == 0);
    x.b.min_new = 0;
    step_fixture(&x, 1);
    good = x.b.last;
    good.n_ended = 0;
    beam_start(&x.b, 0, 0);
    bad = good;
    bad.next[1].slot = (uint8_t)x.b.n_beams;
    assert_int_equal(beam_redo(&x.b, &bad), -EBADMSG);
    bad = good;
    bad.next[0].token = -1;
    assert_int_equal(beam_redo(&x.b, &bad), -EBADMSG);
    bad = good;
    bad.n_ended = x.b.n_beams + 1;
    assert_int_equal(beam_redo(&x.b, &bad), -EBADMSG);
    bad = good;
    bad.n_ended = 1;
    bad.ended[0] = (struct beam_move){ .token = 1, .score = -1 }; /* 1 is no end token */
    assert_int_equal(beam_redo(&x.b, &bad), -EBADMSG);
    bad.ended[0].token = x.end_id[0];
    assert_int_equal(beam_redo(&x.b, &bad), 0);
    for (uint32_t i = 2; i < x.b.max_new; i++) assert_int_equal(beam_redo(&x.b, &good), 0);
    assert_int_equal(beam_redo(&x.b, &good), -EBADMSG); /* would be the last step */
}

static void
equal_scores_prefer_better_beams_then_lower_ids(void **state)
{
    static struct beam_fixture x;
    struct batch_top even[4] = { { 2, -1 }, { 5, -1 }, { 7, -1 }, { 9, -1 } };
    struct beam_list list[2] = { { even, 4 }, { even, 4 } };

    (void)state;
    open_fixture(&x);
    x.b.n_beams = 2;
    x.b.n_end = 0;
    x.b.max_new = 9;
    for (uint32_t i = 0; i < 2; i++) set_storage(&x, i);
    beam_start(&x.b, 0, 0);
    beam_decide(&x.b, list);
    beam_advance(&x.b);
    assert_int_equal(x.line[x.b.order[0]][x.n_given], 2);
    assert_int_equal(x.line[x.b.order[1]][x.n_given], 5);
    beam_decide(&x.b, list);
    beam_advance(&x.b);
    assert_int_equal(x.line[x.b.order[0]][x.n_given], 2);
    assert_int_equal(x.line[x.b.order[1]][x.n_given], 2);
    assert_int_equal(x.line[x.b.order[0]][x.n_given + 1], 2);
    assert_int_equal(x.line[x.b.order[1]][x.n_given + 1], 5);
    assert_int_equal(x.b.n_common, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(search_ends_with_the_reference_sequences_and_scores),
        cmocka_unit_test(search_repeated_from_its_decisions_continues_equally),
        cmocka_unit_test(impossible_decisions_are_refused),
        cmocka_unit_test(equal_scores_prefer_better_beams_then_lower_ids),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
