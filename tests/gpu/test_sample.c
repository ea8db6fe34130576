/* test_sample.c - sample() and mark_tokens(): penalties, suppressed tokens, cuts, draws,
 * log-probabilities; against a simple reference sampler that sorts the whole vocabulary in double.
 */
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include "gpu/fp.h"

#include <math.h>
#include <unistd.h>

enum { MAX_VOCAB = 5000, N_SUPPRESSED = 4 };

static const struct sample_row plain = {
    .slot = SLOT_NONE,
    .top_p = 1,
    .repetition = 1,
    .force = -1,
    .target = -1,
    .allowed = ALLOW_ALL,
};

/* One call of sample() over rows of logits, and its results. */
struct drawn {
    int32_t token[64], last[64];
    float logprob[64];
    struct top top[64 * 8];
    int error;
};

static const struct token_history none;

/* logits: of a fixture; row and suppressed: host memory; history: of a fixture, or none. */
static struct drawn
sample_with(const char *isa, uint32_t threads, struct tensor logits, const struct sample_row *row,
            const int32_t *suppressed, struct token_history history)
{
    struct drawn d, *there;
    struct fixture r;
    struct tensor copy;
    struct sample s;
    uint32_t n = logits.dim[0];

    assert_true(n <= 64);
    memset(&d, 0x7f, sizeof d);
    fixture_open(&r, isa, threads);
    there = fixture_copy(&r, &d, sizeof d);
    copy = fixture_empty(&r, DT_F32, n, logits.dim[1], logits.dim[1] + 3);
    for (uint32_t i = 0; i < n; i++)
        memcpy((float *)HOST(copy.data) + (size_t)i * copy.stride,
               (float *)HOST(logits.data) + (size_t)i * logits.stride,
               logits.dim[1] * sizeof(float));
    s = (struct sample){ .logits = copy,
                         .row = fixture_copy(&r, row, n * sizeof *row),
                         .suppressed = suppressed ? fixture_copy(&r, suppressed,
                                                                 N_SUPPRESSED * sizeof *suppressed)
                                                  : NULL,
                         .n = n,
                         .history = history,
                         .last = there->last,
                         .token = there->token,
                         .logprob = there->logprob,
                         .top = there->top };
    fixture_send(&r);
    assert_int_equal(r.op->sample(r.lane, &s), 0);
    fixture_wait(&r);
    d = *HOST(there);
    d.error = r.op->lane.error(r.lane);
    fixture_close(&r);
    return d;
}

static struct drawn
sample(struct tensor logits, const struct sample_row *row, const int32_t *suppressed)
{
    return sample_with("auto", 2, logits, row, suppressed, none);
}

static const float *order_by;

static int
better_first(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (order_by[i] != order_by[j]) return order_by[i] > order_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Returns the number of ids that transformers' warpers keep, best first. p[id]: probability among
 * them. */
static uint32_t
ref_candidates(const float *x, uint32_t n, const struct sample_row *r, uint32_t *id, double *p)
{
    double total = 0, before = 0;
    uint32_t left = r->top_k && r->top_k < n ? r->top_k : n, keep = 0;

    for (uint32_t i = 0; i < n; i++) id[i] = i, p[i] = 0;
    order_by = x;
    qsort(id, n, sizeof *id, better_first);
    for (uint32_t i = 0; i < left; i++) {
        p[id[i]] = exp(((double)x[id[i]] - x[id[0]]) / r->temperature);
        total += p[id[i]];
    }
    for (; keep < left; keep++) { /* better tokens already reach top_p: cut here */
        if (keep && r->top_p < 1 && before >= r->top_p * total) break;
        before += p[id[keep]];
    }
    while (keep > 1 && p[id[keep - 1]] < r->min_p) keep--;
    total = 0;
    for (uint32_t i = 0; i < keep; i++) total += p[id[i]];
    for (uint32_t i = 0; i < n; i++) p[id[i]] = i < keep ? p[id[i]] / total : 0;
    return keep;
}

/* Of 2^i equal tokens, top_p 2^-j keeps the 2^(i-j) lowest ids: their share is exactly top_p. */
static void
top_p_keeps_no_tie_beyond_an_exact_share(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 8; i++)
        for (uint32_t j = 0; j <= i; j++) {
            uint32_t vocab = 1u << i, keep = vocab >> j;
            bool drawn[128] = { false };
            struct sample_row row[64];
            struct fixture r;
            struct tensor x;

            fixture_open(&r, "auto", 1);
            x = fixture_tensor(&r, DT_F32, 64, vocab, vocab, 2);
            for (uint32_t k = 0; k < 64 * vocab; k++) ((float *)HOST(x.data))[k] = 1.5f;
            for (uint32_t part = 0; part < 16; part++) {
                struct drawn d;

                for (uint32_t k = 0; k < 64; k++) {
                    row[k] = plain;
                    row[k].temperature = 1;
                    row[k].top_p = 1 / (float)(1u << j);
                    row[k].position = 64 * part + k;
                }
                d = sample(x, row, NULL);
                for (uint32_t k = 0; k < 64; k++) {
                    if ((uint32_t)d.token[k] >= keep)
                        fail_msg("token %d of %u: top_p %g keeps %u", d.token[k], vocab,
                                 (double)row[k].top_p, keep);
                    drawn[d.token[k]] = true;
                }
            }
            /* 1,024 draws miss one of 16 tokens with a probability below 1e-27. */
            for (uint32_t k = 0; k < keep && keep <= 16; k++) assert_true(drawn[k]);
            fixture_close(&r);
        }
}

static void
temperature_zero_takes_the_best_lowest_id_on_ties(void **state)
{
    struct fixture r;
    struct tensor x;
    struct sample_row row[3] = { plain, plain, plain };
    struct drawn d;
    float *f;

    (void)state;
    fixture_open(&r, "auto", 1);
    x = fixture_tensor(&r, DT_F32, 3, 1001, 1001, 1);
    f = HOST(x.data);
    f[700] = f[300] = f[900] = 50;
    f[1001 + 1000] = 50;
    f[2002] = 50;
    row[0].slot = 5;
    d = sample(x, row, NULL);
    assert_int_equal(d.token[0], 300);
    assert_int_equal(d.token[1], 1000);
    assert_int_equal(d.token[2], 0);
    assert_int_equal(d.last[5], 300);
    assert_int_equal(d.last[0], 0x7f7f7f7f); /* no slot: no last token is written */
    fixture_close(&r);
}

static void
a_nan_is_never_chosen_and_an_all_nan_row_fails(void **state)
{
    struct fixture r;
    struct tensor x;
    struct sample_row row[2] = { plain, plain };
    struct drawn d;
    float *f;

    (void)state;
    fixture_open(&r, "auto", 1);
    x = fixture_tensor(&r, DT_F32, 2, 100, 100, 1);
    f = HOST(x.data);
    for (int i = 0; i < 200; i++)
        if (i != 41 && i != 143) f[i] = NAN;
    row[1].temperature = 1;
    d = sample(x, row, NULL);
    assert_int_equal(d.token[0], 41);
    assert_int_equal(d.token[1], 43);
    assert_int_equal(d.error, 0);
    ((float *)HOST(x.data))[143] = -NAN;
    d = sample(x, row, NULL); /* a row without slot and target: padding of a graph */
    assert_int_equal(d.error, 0);
    row[1].slot = 3;
    d = sample(x, row, NULL);
    assert_int_equal(d.error, -EIO);
    if (!fixture_cuda()) assert_int_equal(d.token[0], 41); /* a GPU is unusable then */
    fixture_close(&r);
}

static void
the_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens(void **state)
{
    struct fixture r;
    struct tensor x;
    struct sample_row row[2] = { plain, plain };
    uint32_t *seen;
    int32_t token[] = { 3, 9, 40, 64, 5 };
    uint32_t slot[5] = { 0 };
    int32_t pos[5] = { 0 };
    struct segment segment[] = { { .slot = 1, .first_token = 0, .n_tokens = 4, .first_pos = 0 },
                                 { .slot = 0, .first_token = 4, .n_tokens = 1, .first_pos = 7 } };
    struct step_tokens rows = { .n_tokens = 5 };
    struct token_history h;
    struct drawn d;
    float *f;

    (void)state;
    fixture_open(&r, "auto", 1);
    rows.token = fixture_copy(&r, token, sizeof token);
    rows.pos = fixture_copy(&r, pos, sizeof pos);
    rows.slot = fixture_copy(&r, slot, sizeof slot);
    seen = fixture_bytes(&r, 2 * 3 * sizeof *seen);
    memset(HOST(seen), 0, 12);
    h = (struct token_history){ .seen = seen, .seen_words = 3 };
    const struct segment *segments = fixture_copy(&r, segment, sizeof segment);

    fixture_send(&r);
    assert_int_equal(r.op->step.mark_tokens(r.lane, h, rows, segments, 2), 0);
    fixture_wait(&r);
    assert_int_equal(HOST(seen)[0], 1 << 5);          /* from position 7 on: added */
    assert_int_equal(HOST(seen)[3], 1 << 3 | 1 << 9); /* from position 0: cleared first */
    assert_int_equal(HOST(seen)[4], 1 << 8);
    assert_int_equal(HOST(seen)[5], 1);
    x = fixture_tensor(&r, DT_F32, 2, 90, 90, 0.1f);
    f = HOST(x.data);
    for (int i = 0; i < 90; i++) f[i] = f[90 + i] = -5;
    f[9] = 6, f[10] = 5;                  /* 6 / 1.5 is below 5 */
    f[90 + 64] = -1, f[90 + 65] = -1.25f; /* -1 * 1.5 is below -1.25 */
    row[0].slot = row[1].slot = 1;
    row[0].repetition = row[1].repetition = 1.5f;
    row[0].want_logprob = true;
    d = sample_with("auto", 1, x, row, NULL, h);
    assert_int_equal(d.token[0], 10);
    assert_int_equal(d.token[1], 65);
    row[1].repetition = 1;
    row[0].slot = SLOT_NONE;
    d = sample_with("auto", 1, x, row, NULL, h);
    assert_int_equal(d.token[0], 9);
    assert_int_equal(d.token[1], 64);
    fixture_close(&r);
}

enum { READ = 600 };

/* Draws the n tokens that a slot has read, from few different ones, and a row's use of them. */
static void
draw_history(struct sample_row *row, int32_t *read, uint32_t n, uint32_t vocab)
{
    uint32_t some = 1 + test_below(test_below(2) ? 6 : 300), step = 1 + test_below(vocab);

    for (uint32_t i = 0; i < n; i++) read[i] = (int32_t)(test_below(some) * step % vocab);
    row->position = test_below(n + 1);
    row->first_new = test_below(row->position + 1);
    if (test_below(2)) row->presence_penalty = 0.5f * (float)test_below(5) - 1;
    if (test_below(2)) row->frequency_penalty = 0.3f * (float)test_below(5) - 0.6f;
    if (vocab > 2 * some && test_below(2)) row->no_repeat_ngram = 1 + test_below(4);
}

static void
penalties_and_suppressed_ngrams_follow_the_history_of_the_slot(void **state)
{
    enum { VOCAB = 9000, TOPS = 300 };
    static float x[VOCAB], want[VOCAB];

    (void)state;
    for (int n = 0; n < fixture_rounds(40); n++) {
        static int32_t read[2][READ];
        uint32_t id[VOCAB], size;
        struct sample_row row = plain;
        double total = 0;
        struct fixture r;
        struct sample s;

        row.slot = 1;
        row.n_top = TOPS;
        draw_history(&row, read[1], READ, VOCAB);
        for (uint32_t i = 0; i < VOCAB; i++) x[i] = want[i] = fixture_normal();
        for (uint32_t i = 0; i < VOCAB; i++) {
            uint32_t times = 0;

            for (uint32_t k = row.first_new; k < row.position; k++)
                times += read[1][k] == (int32_t)i;
            if (times) want[i] -= row.presence_penalty + (float)times * row.frequency_penalty;
        }
        size = row.no_repeat_ngram;
        for (uint32_t i = 0; size && i + size <= row.position; i++)
            if (!memcmp(read[1] + i, read[1] + row.position + 1 - size, (size - 1) * 4))
                want[read[1][i + size - 1]] = -INFINITY;
        fixture_open(&r, "auto", 1);
        s = (struct sample){ .logits = { .data = fixture_copy(&r, x, sizeof x),
                                         .dtype = DT_F32,
                                         .dim = { 1, VOCAB, 1, 1 },
                                         .stride = VOCAB },
                             .row = fixture_copy(&r, &row, sizeof row),
                             .n = 1,
                             .history = { .token = fixture_copy(&r, read, sizeof read),
                                          .stride = READ },
                             .last = fixture_bytes(&r, 2 * sizeof(int32_t)),
                             .token = fixture_bytes(&r, sizeof(int32_t)),
                             .logprob = fixture_bytes(&r, sizeof(float)),
                             .top = fixture_bytes(&r, TOPS * sizeof(struct top)) };
        fixture_send(&r);
        assert_int_equal(r.op->sample(r.lane, &s), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < VOCAB; i++) id[i] = i, total += exp((double)want[i]);
        order_by = want;
        qsort(id, VOCAB, sizeof *id, better_first);
        for (uint32_t i = 0; i < TOPS; i++) {
            assert_int_equal(HOST(s.top)[i].id, id[i]);
            assert_true(fabs((double)HOST(s.top)[i].logprob - ((double)want[id[i]] - log(total))) <
                        2e-5);
        }
        fixture_close(&r);
    }
}

static void
suppressed_tokens_are_never_chosen_and_forced_tokens_always(void **state)
{
    int32_t suppressed[N_SUPPRESSED] = { 1, 7, 50, 49 };
    struct sample_row row[3] = { plain, plain, plain };
    struct fixture r;
    struct tensor x;
    struct drawn d;
    float *f;

    (void)state;
    fixture_open(&r, "auto", 1);
    x = fixture_tensor(&r, DT_F32, 3, 51, 51, 0.1f);
    f = HOST(x.data);
    f[50] = 30, f[7] = 20, f[20] = 10;
    f[51 + 3] = NAN;
    row[0].first_suppressed = 1;
    row[0].n_suppressed = 2;
    row[0].n_top = 3;
    row[1].force = 3;
    row[1].want_logprob = true;
    row[1].temperature = 1;
    row[1].slot = 4;
    row[2].first_suppressed = 2;
    row[2].n_suppressed = 2;
    /* the forced token is applied last and overrides the suppressed one, as in transformers */
    row[2].force = 50;
    d = sample(x, row, suppressed);
    assert_int_equal(d.token[0], 20);
    assert_int_equal(d.top[0].id, 20);
    assert_true(d.top[0].logprob > -0.01f);
    assert_int_equal(d.token[1], 3);
    assert_true(d.logprob[1] == 0); /* a forced token has log-probability 0 */
    assert_int_equal(d.last[4], 3);
    assert_int_equal(d.token[2], 50);
    fixture_close(&r);
}

/* Words for 64 of 70 tokens: the last six have no bit. */
static void
a_disallowed_token_is_not_chosen_and_has_no_probability(void **state)
{
    enum { VOCAB = 70, WORDS = 2, ROWS = 5 };
    const uint32_t bits[3][WORDS] = { { 0, 0 }, { 1u << 4 | 1u << 31, 1u << 9 }, { 0, 1 } };
    int32_t suppressed[N_SUPPRESSED] = { 4 };
    struct sample_row row[ROWS] = { plain, plain, plain, plain, plain };
    struct fixture r;
    struct drawn *there;
    struct sample s;
    float *f;

    (void)state;
    fixture_open(&r, "auto", 1);
    there = fixture_bytes(&r, sizeof *there);
    s = (struct sample){ .logits = fixture_tensor(&r, DT_F32, ROWS, VOCAB, VOCAB, 0.1f),
                         .allowed = fixture_copy(&r, bits, sizeof bits),
                         .allowed_words = WORDS,
                         .suppressed = fixture_copy(&r, suppressed, sizeof suppressed),
                         .n = ROWS,
                         .token = there->token,
                         .logprob = there->logprob,
                         .top = there->top };
    f = HOST((float *)s.logits.data);
    for (uint32_t i = 0; i < ROWS; i++) {
        f[i * VOCAB + 66] = 30, f[i * VOCAB + 5] = 20, f[i * VOCAB + 4] = 10;
        row[i].allowed = 1;
        row[i].first_top = 4 * i;
    }
    row[0].n_top = 4;
    row[1].allowed = ALLOW_ALL; /* with constrained rows in the same call */
    row[2].n_suppressed = 1;    /* both: 4 is suppressed, 31 or 41 remains */
    row[3].allowed = 2;         /* the only one left, whatever its weight */
    row[3].temperature = 1;
    row[3].top_p = 0.5f;
    row[3].want_logprob = true;
    row[4].force = 66; /* the forced token is applied last and overrides allowed */
    s.row = fixture_copy(&r, row, sizeof row);
    fixture_send(&r);
    assert_int_equal(r.op->sample(r.lane, &s), 0);
    fixture_wait(&r);
    assert_int_equal(r.op->lane.error(r.lane), 0);
    assert_int_equal(HOST(s.token)[0], 4);
    assert_int_equal(HOST(s.top)[0].id, 4);
    assert_true(HOST(s.top)[0].logprob > -0.001f);
    assert_true(isfinite(HOST(s.top)[2].logprob));
    assert_true(isinf(HOST(s.top)[3].logprob));
    assert_int_equal(HOST(s.token)[1], 66);
    assert_true(HOST(s.token)[2] == 31 || HOST(s.token)[2] == 41);
    assert_int_equal(HOST(s.token)[3], 32);
    assert_true(HOST(s.logprob)[3] == 0);
    assert_int_equal(HOST(s.token)[4], 66);
    fixture_close(&r);
}

static void
logprobs_are_listed_best_first_lowest_id_on_ties(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(30); n++) {
        uint32_t vocab = 1 + test_below(n % 2 ? 12 : MAX_VOCAB), id[MAX_VOCAB];
        struct sample_row row[2] = { plain, plain };
        double total = 0;
        struct fixture r;
        struct tensor x;
        struct drawn d;
        float *f;

        fixture_open(&r, "auto", 1);
        x = fixture_tensor(&r, DT_F32, 2, vocab, vocab, 3);
        f = HOST(x.data);
        for (uint32_t i = 0; i < vocab; i++) { /* many ties */
            if (n % 3 == 0) f[i] = roundf(f[i]);
            f[vocab + i] = f[i];
        }
        row[0].n_top = 8;
        row[0].temperature = 0.7f;
        row[1].target = (int32_t)test_below(vocab);
        row[1].n_top = 1;
        row[1].first_top = 8;
        row[1].slot = 2;
        d = sample(x, row, NULL);
        for (uint32_t i = 0; i < vocab; i++) id[i] = i, total += exp(f[i]);
        order_by = f;
        qsort(id, vocab, sizeof *id, better_first);
        for (uint32_t i = 0; i < 8 && i < vocab; i++) {
            assert_int_equal(d.top[i].id, id[i]);
            assert_true(fabs(d.top[i].logprob - (f[id[i]] - log(total))) < 2e-5);
        }
        for (uint32_t i = vocab; i < 8; i++) assert_int_equal(d.top[i].id, -1);
        assert_true(fabs(d.logprob[0] - (f[d.token[0]] - log(total))) < 2e-5);
        assert_int_equal(d.top[8].id, id[0]);
        /* A target is returned without sampling. */
        assert_int_equal(d.token[1], row[1].target);
        assert_true(fabs(d.logprob[1] - (f[row[1].target] - log(total))) < 2e-5);
        assert_int_equal(d.last[2], 0x7f7f7f7f);
        fixture_close(&r);
    }
}

/* Draws of one row at new positions: all from the reference's candidates, with their probabilities
 * (chi-square over candidates expected five times or more). */
static void
draws_follow_top_k_top_p_and_min_p_of_transformers(void **state)
{
    uint32_t draws = 64 * (uint32_t)fixture_rounds(100);

    (void)state;
    for (int n = 0; n < 24; n++) {
        uint32_t vocab = 2 + test_below(n % 2 ? 40 : 3000), id[MAX_VOCAB], count[MAX_VOCAB] = { 0 };
        struct sample_row row[64], r1 = plain;
        double p[MAX_VOCAB], chi = 0, free_terms = 0, rest = 0, rest_seen = 0;
        struct fixture r;
        struct tensor x;
        float *f;

        fixture_open(&r, "auto", 1);
        x = fixture_tensor(&r, DT_F32, 64, vocab, vocab, 2);
        f = HOST(x.data);
        if (n % 3 == 0)
            for (uint32_t i = 0; i < vocab; i++) f[i] = roundf(f[i]);
        for (uint32_t i = 1; i < 64; i++) memcpy(f + i * vocab, f, vocab * sizeof(float));
        r1.temperature = 0.5f + (float)test_below(100) / 60;
        if (n % 2) r1.top_k = 1 + test_below(vocab);
        if (n / 2 % 2) r1.top_p = (float)(1 + test_below(999)) / 1000;
        if (n / 4 % 2) r1.min_p = (float)test_below(300) / 1000;
        r1.seed = test_below(1000);
        ref_candidates(f, vocab, &r1, id, p);
        for (uint32_t i = 0; i < draws; i += 64) {
            struct drawn d;

            for (uint32_t j = 0; j < 64; j++) {
                row[j] = r1;
                row[j].position = i + j;
            }
            d = sample(x, row, NULL);
            for (uint32_t j = 0; j < 64; j++) {
                uint32_t t = (uint32_t)d.token[j];

                assert_true(t < vocab);
                if (p[t] == 0)
                    fail_msg("case %d: token %u of %u (top_k %u top_p %g min_p %g) was cut", n, t,
                             vocab, r1.top_k, (double)r1.top_p, (double)r1.min_p);
                count[t]++;
            }
        }
        for (uint32_t i = 0; i < vocab; i++) {
            double want = p[i] * draws;

            if (want < 5) {
                rest += want, rest_seen += count[i];
                continue;
            }
            chi += (count[i] - want) * (count[i] - want) / want;
            free_terms++;
        }
        if (rest >= 5) chi += (rest_seen - rest) * (rest_seen - rest) / rest, free_terms++;
        /* Above five standard deviations of a chi-square with that many terms. */
        if (chi > free_terms + 5 * sqrt(2 * free_terms) + 10)
            fail_msg("case %d: chi-square %.1f over %.0f terms", n, chi, free_terms);
        fixture_close(&r);
    }
}

static void
equal_seed_output_and_position_draw_the_same_token(void **state)
{
    enum { VOCAB = 2777 };
    struct sample_row row[64];
    struct fixture r;
    struct tensor x;
    struct drawn all, ref, alone;
    uint32_t same_seed = 0;

    (void)state;
    fixture_open(&r, "auto", 1);
    x = fixture_tensor(&r, DT_F32, 64, VOCAB, VOCAB, 1);
    for (uint32_t i = 0; i < 64; i++) {
        row[i] = plain;
        row[i].temperature = 1 + (float)test_below(10) / 10;
        row[i].top_k = test_below(2) ? 500 : 0;
        row[i].top_p = test_below(2) ? 0.9f : 1;
        row[i].seed = i;
        row[i].output = test_below(4);
        row[i].position = test_below(1000);
        row[i].n_top = 4;
        row[i].first_top = 4 * i;
    }
    all = sample_with("auto", 4, x, row, NULL, none);
    ref = sample_with("scalar", 1, x, row, NULL, none);
    assert_memory_equal(&all, &ref, sizeof all);
    for (uint32_t i = 0; i < 64; i++) {
        struct sample_row one = row[i];

        one.first_top = 0;
        alone = sample_with("auto", 1, tensor_rows(x, i, 1), &one, NULL, none);
        assert_int_equal(alone.token[0], all.token[i]);
        assert_int_equal(bits_of_float(alone.logprob[0]), bits_of_float(all.logprob[i]));
        assert_memory_equal(alone.top, all.top + 4 * i, 4 * sizeof *all.top);
        one.output += 4; /* another stream of the same request */
        alone = sample_with("auto", 1, tensor_rows(x, i, 1), &one, NULL, none);
        same_seed += alone.token[0] == all.token[i];
    }
    assert_true(same_seed < 8);
    fixture_close(&r);
}

/* Any parameters, with logits that have ties, plateaus, NaN and infinities. */
static void
random_row(float *x, uint32_t vocab, struct sample_row *row, uint32_t n_suppressed)
{
    static const float temperature[] = { 0, 1, 0.7f, 0.01f, 5, 1e-20f };
    static const float top_p[] = { 1, 1, 0.9f, 0.5f, 0.999999f, 0 };
    static const float min_p[] = { 0, 0, 0, 0.05f, 1e-4f, 1 };
    float std = (float)(1 + test_below(80)) / 8;
    uint32_t kind = test_below(9), step = test_below(3);

    for (uint32_t i = 0; i < vocab; i++) {
        x[i] = std * fixture_normal();
        if (step == 1) x[i] = roundf(x[i]);
        if (kind == 0) x[i] = 1.5f;
        if (kind == 1 && test_below(2)) x[i] = -0.0f;
        if (kind == 2 && i && test_below(3)) x[i] = NAN;
        if (kind == 3) x[i] = -(float)i / 100;
        if (kind == 4 && i % 1024 != 5) x[i] -= 1000;
    }
    if (kind == 5) x[test_below(vocab)] = INFINITY;
    if (kind == 6) x[test_below(vocab)] = 200;
    row->temperature = temperature[test_below(ARRAY_LEN(temperature))];
    row->top_p = top_p[test_below(ARRAY_LEN(top_p))];
    row->min_p = min_p[test_below(ARRAY_LEN(min_p))];
    row->top_k = test_below(2) ? 0 : 1 + test_below(test_below(2) ? 64 : vocab);
    row->repetition = test_below(3) ? 1 : 1.3f;
    row->force = test_below(12) ? -1 : (int32_t)test_below(vocab);
    row->target = test_below(8) ? -1 : (int32_t)test_below(vocab);
    row->n_suppressed = vocab < 100 ? 0 : test_below(n_suppressed + 1);
    row->want_logprob = test_below(2);
    row->seed = test_below(UINT32_MAX);
    row->output = test_below(4);
    row->position = test_below(100000);
}

/* The score of a beam candidate: the changed log-probability, not normalized again. */
static double
ref_worth(const struct sample_row *row, const float *x, uint32_t vocab, uint32_t id,
          const struct logit_bias *logit_bias, const int32_t *suppressed, const uint32_t *seen)
{
    double max = -INFINITY, sum = 0, worth;

    if (row->force >= 0) return id == (uint32_t)row->force ? 0 : -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)x[i] - max);
    worth = (double)x[id] - max - log(sum);
    if (seen[id / 32] >> id % 32 & 1) worth *= (double)row->repetition;
    for (uint32_t i = 0; i < row->n_logit_bias; i++)
        if ((uint32_t)logit_bias[i].id == id) worth += (double)logit_bias[i].add;
    for (uint32_t i = 0; i < row->n_suppressed; i++)
        if ((uint32_t)suppressed[i] == id) worth = -INFINITY;
    return worth;
}

static void
a_beams_candidates_are_log_probabilities_that_are_changed_and_not_normalised_again(void **state)
{
    enum { ROWS = 8, VOCAB = 5000, TOPS = 40 };
    static const struct logit_bias logit_bias[] = { { 7, 3 }, { 4999, -1 }, { 1024, 8 } };
    static const int32_t suppressed[] = { 12, 4096, 3 };
    static float x[ROWS * VOCAB];
    static uint32_t seen[ROWS][VOCAB / 32 + 1];
    struct sample_row row[ROWS];

    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        struct fixture r;
        struct sample s;
        uint32_t vocab = round % 2 ? VOCAB : 20;

        for (uint32_t i = 0; i < ROWS; i++) {
            row[i] = plain;
            row[i].slot = i;
            row[i].beam = i != 3;
            row[i].n_top = TOPS;
            row[i].first_top = i * TOPS;
            if (i % 2) row[i].n_logit_bias = ARRAY_LEN(logit_bias);
            if (i % 4 > 1) row[i].n_suppressed = ARRAY_LEN(suppressed);
            if (i > 4) row[i].repetition = 1.5f;
            if (i == 7) row[i].force = 19;
            for (uint32_t k = 0; k < vocab; k++) x[i * vocab + k] = 4 * fixture_normal();
            for (uint32_t k = 0; k < vocab / 32; k++)
                seen[i][k] = i > 4 ? test_below(UINT32_MAX) : 0;
        }
        fixture_open(&r, "auto", 2);
        s = (struct sample){ .logits = { .data = fixture_copy(&r, x, sizeof(float) * ROWS * vocab),
                                         .dtype = DT_F32,
                                         .dim = { ROWS, vocab, 1, 1 },
                                         .stride = vocab },
                             .row = fixture_copy(&r, row, sizeof row),
                             .suppressed = fixture_copy(&r, suppressed, sizeof suppressed),
                             .logit_bias = fixture_copy(&r, logit_bias, sizeof logit_bias),
                             .beams = true,
                             .n = ROWS,
                             .history = { .seen = fixture_copy(&r, seen, sizeof seen),
                                          .seen_words = VOCAB / 32 + 1 },
                             .last = fixture_bytes(&r, ROWS * sizeof(int32_t)),
                             .token = fixture_bytes(&r, ROWS * sizeof(int32_t)),
                             .logprob = fixture_bytes(&r, ROWS * sizeof(float)),
                             .top = fixture_bytes(&r, ROWS * TOPS * sizeof(struct top)) };
        fixture_send(&r);
        assert_int_equal(r.op->sample(r.lane, &s), 0);
        fixture_wait(&r);
        for (uint32_t i = 0; i < ROWS; i++) {
            const struct top *t = HOST(s.top) + i * TOPS;
            double least = INFINITY;
            uint32_t better = 0, n = MIN((uint32_t)TOPS, vocab);

            if (i == 3) continue;
            for (uint32_t k = 0; k < n; k++) {
                double want = ref_worth(&row[i], x + i * vocab, vocab, (uint32_t)t[k].id,
                                        logit_bias, suppressed, seen[i]);

                assert_true(k == 0 || t[k].logprob <= t[k - 1].logprob);
                if (want > -INFINITY) {
                    assert_true(fabs((double)t[k].logprob - want) < 4e-5);
                } else {
                    assert_true(t[k].logprob == -INFINITY);
                }
                least = want;
            }
            for (uint32_t k = 0; k < vocab; k++)
                better += ref_worth(&row[i], x + i * vocab, vocab, k, logit_bias, suppressed,
                                    seen[i]) > least + 1e-4;
            assert_true(better < n);
            for (uint32_t k = n; k < TOPS; k++) assert_int_equal(t[k].id, -1);
            assert_int_equal(HOST(s.token)[i], t[0].id);
            assert_true(HOST(s.logprob)[i] == t[0].logprob);
        }
        fixture_close(&r);
    }
}

static void
every_device_samples_the_same_token_for_any_parameters(void **state)
{
    enum { ROWS = 16, WIDEST = 40000, WORDS = WIDEST / 32 + 1 };
    static const uint32_t width[] = { 1, 7, 100, 1000, 1024, 1025, 5000, 8192, 32128, WIDEST };
    static float x[ROWS * (WIDEST + 4)];
    static struct top top[2][ROWS * 1024];
    static uint32_t seen[ROWS * WORDS], allowed[3 * WORDS];
    static int32_t read[ROWS][READ];
    struct gpu *cpu;
    struct lane *lane;
    struct err e;

    (void)state;
    assert_int_equal(gpu_open(&cpu, &(struct gpu_options){ .device = "cpu", .isa = "scalar" }, &e),
                     0);
    assert_int_equal(gpu_ops(cpu)->lane.open(cpu, 1, &lane, &e), 0);
    for (uint64_t n = 0; n < (uint64_t)fixture_rounds(60); n++) {
        uint32_t vocab = width[n % 6 ? test_below(8) : test_below(ARRAY_LEN(width))];
        uint32_t stride = vocab + test_below(5), n_top = 0, words = WORDS - test_below(100);
        struct sample_row row[ROWS];
        int32_t suppressed[N_SUPPRESSED], token[ROWS], last[ROWS];
        struct logit_bias logit_bias[N_SUPPRESSED];
        float logprob[ROWS];
        struct fixture r;
        struct sample s, t;

        memset(top, 0x7f, sizeof top);
        memset(last, 0x7f, sizeof last);
        for (uint32_t i = 0; i < N_SUPPRESSED; i++) {
            suppressed[i] = (int32_t)(1 + test_below(vocab + 1));
            logit_bias[i] = (struct logit_bias){ (int32_t)(i * vocab / N_SUPPRESSED +
                                                           test_below(vocab / N_SUPPRESSED + 1)),
                                                 fixture_normal() };
        }
        for (uint32_t i = 0; i < ROWS * WORDS; i++)
            seen[i] = test_below(3) ? 0 : test_below(UINT32_MAX) & test_below(UINT32_MAX);
        /* Bitmaps: one allows all but few, one allows few, others are random; each allows at least
         * one id. */
        for (uint32_t i = 0; i < 3 * words; i++) {
            allowed[i] = i < words ? ~(1u << test_below(32)) : 1u << test_below(32);
            if (i >= 2 * words && test_below(2)) allowed[i] = 0;
            if (i % words == 0) allowed[i] |= 1;
        }
        for (uint32_t i = 0; i < ROWS; i++) {
            row[i] = plain;
            random_row(x + i * stride, vocab, &row[i], N_SUPPRESSED);
            if (test_below(5)) row[i].slot = i;
            if (test_below(3) == 0) row[i].allowed = test_below(3);
            draw_history(&row[i], read[i], READ, vocab);
            /* a token must be left */
            if (row[i].allowed != ALLOW_ALL || vocab < 100) row[i].no_repeat_ngram = 0;
            row[i].n_logit_bias = vocab < 100 || test_below(3) ? 0 : test_below(N_SUPPRESSED + 1);
            row[i].n_top = test_below(2) ? 0 : test_below(test_below(2) ? 20 : 1025);
            row[i].first_top = n_top;
            n_top += row[i].n_top;
        }
        fixture_open(&r, "auto", 2);
        s = (struct sample){ .logits = { .data = fixture_copy(&r, x, sizeof(float) * ROWS * stride),
                                         .dtype = DT_F32,
                                         .dim = { ROWS, vocab, 1, 1 },
                                         .stride = stride },
                             .row = fixture_copy(&r, row, sizeof row),
                             .suppressed = fixture_copy(&r, suppressed, sizeof suppressed),
                             .logit_bias = fixture_copy(&r, logit_bias, sizeof logit_bias),
                             .allowed = fixture_copy(&r, allowed, sizeof allowed),
                             .allowed_words = words,
                             .n = ROWS,
                             .history = { .seen = fixture_copy(&r, seen, sizeof seen),
                                          .seen_words = WORDS,
                                          .token = fixture_copy(&r, read, sizeof read),
                                          .stride = READ },
                             .last = fixture_copy(&r, last, sizeof last),
                             .token = fixture_bytes(&r, sizeof token),
                             .logprob = fixture_bytes(&r, sizeof logprob),
                             .top = fixture_copy(&r, top[0], sizeof top[0]) };
        t = s;
        t.logits.data = x;
        t.row = row, t.suppressed = suppressed, t.logit_bias = logit_bias, t.allowed = allowed,
        t.history.seen = seen, t.history.token = read[0];
        t.last = last, t.token = token;
        t.logprob = logprob, t.top = top[1];
        fixture_send(&r);
        assert_int_equal(r.op->sample(r.lane, &s), 0);
        fixture_wait(&r);
        assert_int_equal(gpu_ops(cpu)->sample(lane, &t), 0);
        assert_int_equal(gpu_ops(cpu)->lane.mark(lane, n + 1), 0);
        while (gpu_ops(cpu)->lane.done(lane) < n + 1) usleep(50);
        assert_int_equal(r.op->lane.error(r.lane), 0);
        for (uint32_t i = 0; i < ROWS; i++) {
            const struct top *a = HOST(s.top) + row[i].first_top, *b = top[1] + row[i].first_top;

            if (HOST(s.token)[i] != token[i])
                fail_msg(
                    "case %u row %u of %u wide: token %d, the CPU's %d (temperature %g top_k %u "
                    "top_p %g min_p %g)",
                    (unsigned)n, i, vocab, HOST(s.token)[i], token[i], (double)row[i].temperature,
                    row[i].top_k, (double)row[i].top_p, (double)row[i].min_p);
            assert_true(HOST(s.logprob)[i] == logprob[i] ||
                        fabsf(HOST(s.logprob)[i] - logprob[i]) <=
                            2e-5f + 3e-7f * fabsf(logprob[i]));
            for (uint32_t j = 0; j < row[i].n_top; j++) {
                if (a[j].id == b[j].id &&
                    (a[j].logprob == b[j].logprob ||
                     fabsf(a[j].logprob - b[j].logprob) <= 2e-5f + 3e-7f * fabsf(b[j].logprob)))
                    continue;
                fail_msg("case %u row %u of %u wide: the best but %u is %d with %.9g, the CPU's %d "
                         "with %.9g",
                         (unsigned)n, i, vocab, j, a[j].id, (double)a[j].logprob, b[j].id,
                         (double)b[j].logprob);
            }
        }
        assert_memory_equal(HOST(s.last), last, sizeof last);
        assert_memory_equal(HOST(s.top) + n_top, top[1] + n_top,
                            sizeof *s.top * (ROWS * 1024 - n_top));
        fixture_close(&r);
    }
    gpu_ops(cpu)->lane.close(lane);
    gpu_close(cpu);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(temperature_zero_takes_the_best_lowest_id_on_ties),
        fixture_test(a_nan_is_never_chosen_and_an_all_nan_row_fails),
        fixture_test(
            the_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens),
        fixture_test(penalties_and_suppressed_ngrams_follow_the_history_of_the_slot),
        fixture_test(suppressed_tokens_are_never_chosen_and_forced_tokens_always),
        fixture_test(a_disallowed_token_is_not_chosen_and_has_no_probability),
        fixture_test(logprobs_are_listed_best_first_lowest_id_on_ties),
        fixture_test(top_p_keeps_no_tie_beyond_an_exact_share),
        fixture_test(draws_follow_top_k_top_p_and_min_p_of_transformers),
        fixture_test(equal_seed_output_and_position_draw_the_same_token),
        fixture_test(
            a_beams_candidates_are_log_probabilities_that_are_changed_and_not_normalised_again),
        fixture_test(every_device_samples_the_same_token_for_any_parameters),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
