/* test_mamba2.c - conv and scan against doubles, several sequences in steps of any size, and rule 1
 * of gpu/README.md: a row's bits depend on its history only, for any steps.
 *
 * A job is a list of steps. A step has segments of some slots, then padding rows. States start as
 * NaN: position 0 must not read them.
 */
#include "tests/gpu/ref_attend.h"
#include "tests/test.h"

#include <math.h>

enum { ROUNDS = 30, SLOTS = 3, ENTRIES = 4, MAX_STEPS = 512, LENGTH = 60 };

struct job {
    uint32_t length[SLOTS], n_steps, n_tokens, first[MAX_STEPS], n_segments[MAX_STEPS];
    int32_t *pos;
    uint32_t *slot;
    struct segment *segment; /* [MAX_STEPS][SLOTS] first_token counts from the start of the step */
    uint32_t row[SLOTS][LENGTH];
    struct kv_view state;
};

/* most: rows of a segment; 0: any. */
static void
plan(struct fixture *r, struct job *j, const uint32_t length[SLOTS], uint32_t most)
{
    uint32_t done[SLOTS] = { 0 }, rows = 0, left = 0;

    memset(j, 0, sizeof *j);
    j->pos = fixture_bytes(r, MAX_STEPS * SLOTS * sizeof *j->pos * 20);
    j->slot = fixture_bytes(r, MAX_STEPS * SLOTS * sizeof *j->slot * 20);
    j->segment = fixture_bytes(r, MAX_STEPS * SLOTS * sizeof *j->segment);
    for (uint32_t s = 0; s < SLOTS; s++) left += j->length[s] = length[s];
    for (; left > 0; j->n_steps++) {
        uint32_t n_segments = 0;

        assert_true(j->n_steps < MAX_STEPS);
        j->first[j->n_steps] = rows;
        for (uint32_t s = 0; s < SLOTS; s++) {
            uint32_t n = length[s] - done[s];

            if (n == 0 || (test_below(3) == 0 && most != 1)) continue;
            n = most ? MIN(n, most) : between(1, n);
            HOST(j->segment)
            [j->n_steps * SLOTS + n_segments++] =
                (struct segment){ .slot = s,
                                  .first_token = rows - j->first[j->n_steps],
                                  .n_tokens = n,
                                  .first_pos = (int32_t)done[s],
                                  .kv_len = done[s] + n };
            for (uint32_t i = 0; i < n; i++, rows++, done[s]++, left--) {
                HOST(j->pos)[rows] = (int32_t)done[s];
                HOST(j->slot)[rows] = s;
                j->row[s][done[s]] = rows;
            }
        }
        for (uint32_t i = test_below(2); i > 0; i--, rows++) {
            HOST(j->pos)[rows] = 0;
            HOST(j->slot)[rows] = SLOT_NONE;
        }
        j->n_segments[j->n_steps] = n_segments;
    }
    j->n_tokens = j->first[j->n_steps] = rows;
}

static void
new_states(struct fixture *r, struct job *j, uint32_t bytes)
{
    slice_id *table = fixture_bytes(r, SLOTS * ENTRIES * sizeof *table);

    j->state.slice_bytes = ROUND_UP(bytes, 128u);
    j->state.base = fixture_bytes(r, (size_t)SLOTS * 2 * j->state.slice_bytes);
    j->state.table_stride = ENTRIES;
    j->state.table = table + 1; /* of a layer that is not the first */
    for (uint32_t s = 0; s < SLOTS; s++) HOST(table)[s * ENTRIES + 1] = 2 * (SLOTS - 1 - s) + 1;
}

static struct step_tokens
rows_of(const struct job *j, uint32_t step)
{
    return (struct step_tokens){ .n_tokens = j->first[step + 1] - j->first[step],
                                 .n_segments = j->n_segments[step],
                                 .pos = j->pos + j->first[step],
                                 .slot = j->slot + j->first[step],
                                 .segment = j->segment + step * SLOTS };
}

static void
do_conv(struct fixture *r, const struct job *j, const struct conv *all)
{
    for (uint32_t i = 0; i < j->n_steps; i++) {
        struct step_tokens rows = rows_of(j, i);
        struct conv c = *all;

        c.x = tensor_rows(all->x, j->first[i], rows.n_tokens);
        c.y = tensor_rows(all->y, j->first[i], rows.n_tokens);
        c.state = j->state;
        assert_int_equal(r->op->conv(r->lane, &c, rows), 0);
    }
}

static void
do_scan(struct fixture *r, const struct job *j, const struct scan *all)
{
    for (uint32_t i = 0; i < j->n_steps; i++) {
        struct step_tokens rows = rows_of(j, i);
        struct scan s = *all;

        s.x = tensor_rows(all->x, j->first[i], rows.n_tokens);
        s.y = tensor_rows(all->y, j->first[i], rows.n_tokens);
        s.gate = tensor_rows(all->gate, j->first[i], rows.n_tokens);
        s.dt = tensor_rows(all->dt, j->first[i], rows.n_tokens);
        s.state = j->state;
        assert_int_equal(r->op->scan(r->lane, &s, rows), 0);
    }
}

static void
draw_lengths(uint32_t length[SLOTS])
{
    for (uint32_t s = 0; s < SLOTS; s++) length[s] = test_below(4) ? between(1, LENGTH - 1) : 0;
    length[0] = MAX(length[0], 1u);
}

/* States of unused slots keep their content. */
static void
check_padding(const struct job *j, struct tensor y)
{
    for (uint32_t i = 0; i < j->n_tokens; i++)
        if (HOST(j->slot)[i] == SLOT_NONE) assert_true(isnan(at(y, i, 0)));
}

static void
conv_sees_the_last_inputs_of_its_sequence(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        uint32_t channels = wide() ? 64 * between(1, 9) : between(1, 90), taps = between(1, 8);
        uint32_t length[SLOTS];
        struct conv c = { .n_taps = taps };
        struct job j;
        struct fixture r;

        open_any(&r);
        draw_lengths(length);
        plan(&r, &j, length, n % 4);
        new_states(&r, &j, 4 * taps * channels);
        c.x = fixture_tensor(&r, r.act, j.n_tokens, channels, channels + test_below(5), 1);
        c.y = fixture_output(&r, j.n_tokens, channels, channels + test_below(5));
        c.w = fixture_tensor(&r, DT_F32, channels, taps, taps, 1);
        if (n % 2) c.bias = fixture_tensor(&r, DT_F32, 1, channels, channels, 1);
        fixture_send(&r);
        do_conv(&r, &j, &c);
        fixture_wait(&r);
        for (uint32_t s = 0; s < SLOTS; s++)
            for (uint32_t t = 0; t < j.length[s]; t++)
                for (uint32_t k = 0; k < channels; k++) {
                    double sum = c.bias.data ? at(c.bias, 0, k) : 0, size = fabs(sum), y;

                    for (uint32_t i = 0; i < taps && i <= t; i++) {
                        double v = at(c.x, j.row[s][t - i], k) * at(c.w, k, taps - 1 - i);

                        sum += v;
                        size += fabs(v);
                    }
                    y = sum / (1 + exp(-sum));
                    near(at(c.y, j.row[s][t], k), y, 2 * size, c.y.dtype);
                }
        check_padding(&j, c.y);
        fixture_close(&r);
    }
}

static struct scan
new_scan(struct fixture *r, uint32_t rows, bool large)
{
    static const uint32_t dims[] = { 16, 64, 128, 3, 20, 160, 256, 300 };
    struct scan s = { .n_groups = between(1, 3),
                      .head_dim = dims[test_below(large ? 3 : 8)],
                      .state_dim = dims[test_below(large ? 3 : 8)],
                      .dt_min = test_below(2) ? 0 : 0.3f,
                      .dt_max = test_below(2) ? INFINITY : 0.9f };
    uint32_t inner, wide_x;

    s.n_heads = s.n_groups * between(1, 3);
    inner = s.n_heads * s.head_dim;
    wide_x = inner + 2 * s.n_groups * s.state_dim;
    s.x = fixture_tensor(r, r->act, rows, wide_x, wide_x + test_below(5), 1);
    s.gate = fixture_tensor(r, r->act, rows, inner, inner + test_below(5), 2);
    s.dt = fixture_tensor(r, r->act, rows, s.n_heads, s.n_heads + test_below(5), 3);
    s.y = fixture_output(r, rows, inner, inner);
    s.dt_bias = fixture_tensor(r, DT_F32, 1, s.n_heads, s.n_heads, 1);
    s.a_log = fixture_tensor(r, DT_F32, 1, s.n_heads, s.n_heads, 1);
    s.d = fixture_tensor(r, DT_F32, 1, s.n_heads, s.n_heads, 1);
    s.state_at = 128;
    return s;
}

static uint32_t
state_bytes(const struct scan *s)
{
    return s->state_at + 4 * s->n_heads * s->head_dim * s->state_dim;
}

/* One element of a head, over the whole sequence of a slot. */
static void
check_element(const struct scan *s, const struct job *j, uint32_t slot, uint32_t head, uint32_t d)
{
    uint32_t inner = s->n_heads * s->head_dim, group = head / (s->n_heads / s->n_groups);
    uint32_t col = head * s->head_dim + d, b = inner + group * s->state_dim;
    uint32_t c = b + s->n_groups * s->state_dim;
    double state[512] = { 0 }, size[512] = { 0 }, a = -exp(at(s->a_log, 0, head));

    for (uint32_t t = 0; t < j->length[slot]; t++) {
        uint32_t row = j->row[slot][t];
        double raw = at(s->dt, row, head) + at(s->dt_bias, 0, head), x = at(s->x, row, col);
        double dt = fmin(fmax(log1p(exp(raw)), (double)s->dt_min), (double)s->dt_max);
        double gate = at(s->gate, row, col), y = at(s->d, 0, head) * x, most = fabs(y);

        gate = gate / (1 + exp(-gate));
        for (uint32_t n = 0; n < s->state_dim; n++) {
            double add = dt * x * at(s->x, row, b + n), decay = exp(dt * a);

            state[n] = state[n] * decay + add;
            size[n] = size[n] * decay * (1 + 1e-1) + 2 * fabs(add);
            y += state[n] * at(s->x, row, c + n);
            most += size[n] * fabs(at(s->x, row, c + n));
        }
        near(at(s->y, row, col), y * gate, 4 * most * fabs(gate), s->y.dtype);
    }
}

static void
scan_computes_the_recurrence_row_by_row(void **state)
{
    (void)state;
    for (int n = 0; n < fixture_rounds(ROUNDS); n++) {
        uint32_t length[SLOTS];
        struct scan s;
        struct job j;
        struct fixture r;

        open_any(&r);
        draw_lengths(length);
        plan(&r, &j, length, n % 4);
        s = new_scan(&r, j.n_tokens, n % 2);
        new_states(&r, &j, state_bytes(&s));
        fixture_send(&r);
        do_scan(&r, &j, &s);
        fixture_wait(&r);
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            for (uint32_t i = 0; i < 30; i++)
                check_element(&s, &j, slot, test_below(s.n_heads), test_below(s.head_dim));
        check_padding(&j, s.y);
        fixture_close(&r);
    }
}

/* The same sequences in other steps: y by sequence and position. */
static void
gather(const struct job *j, struct tensor y, struct tensor to)
{
    for (uint32_t s = 0, row = 0; s < SLOTS; s++)
        for (uint32_t t = 0; t < j->length[s]; t++, row++)
            for (uint32_t k = 0; k < y.dim[1]; k++) set(to, row, k, (float)at(y, j->row[s][t], k));
}

/* Copies row `row` of the first plan's x to its position in this plan. */
static void
scatter(const struct job *from, const struct job *to, struct tensor x, struct tensor ret)
{
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t t = 0; t < to->length[s]; t++)
            for (uint32_t k = 0; k < x.dim[1]; k++)
                set(ret, to->row[s][t], k, (float)at(x, from->row[s][t], k));
}

static void
a_row_has_the_same_bits_in_steps_of_any_size(void **state)
{
    static const struct {
        const char *isa;
        uint32_t threads, most;
    } manner[] = { { "scalar", 1, LENGTH }, { "auto", 3, 0 }, { "auto", 1, 1 }, { "auto", 2, 4 } };

    (void)state;
    for (int n = 0; n < fixture_rounds(8); n++) {
        struct tensor want_conv = NO_TENSOR, want_scan = NO_TENSOR;
        uint32_t length[SLOTS], all = 0;
        struct job first, j;
        struct fixture keep;
        struct scan s;
        struct conv c = { .n_taps = 4 };

        fixture_open(&keep, "scalar", 1);
        draw_lengths(length);
        for (uint32_t i = 0; i < SLOTS; i++) all += length[i];
        plan(&keep, &first, length, 5);
        s = new_scan(&keep, first.n_tokens, false);
        c.x = s.x;
        c.w = fixture_tensor(&keep, DT_F32, s.x.dim[1], 4, 4, 1);
        for (size_t i = 0; i < ARRAY_LEN(manner); i++) {
            struct tensor got_conv = fixture_empty(&keep, keep.act, all, s.x.dim[1], s.x.dim[1]);
            struct tensor got_scan = fixture_empty(&keep, keep.act, all, s.y.dim[1], s.y.dim[1]);
            struct scan my_s = s;
            struct conv my_c = c;
            struct fixture r;

            plan(&keep, &j, length, manner[i].most);
            my_s.x = fixture_tensor(&keep, keep.act, j.n_tokens, s.x.dim[1], s.x.dim[1], 1);
            my_s.gate = fixture_tensor(&keep, keep.act, j.n_tokens, s.y.dim[1], s.y.dim[1], 1);
            my_s.dt = fixture_tensor(&keep, keep.act, j.n_tokens, s.n_heads, s.n_heads, 1);
            my_s.y = fixture_output(&keep, j.n_tokens, s.y.dim[1], s.y.dim[1]);
            my_c.y = fixture_output(&keep, j.n_tokens, s.x.dim[1], s.x.dim[1]);
            my_c.x = my_s.x;
            scatter(&first, &j, s.x, my_s.x);
            scatter(&first, &j, s.gate, my_s.gate);
            scatter(&first, &j, s.dt, my_s.dt);
            new_states(&keep, &j, state_bytes(&s) + 4 * 4 * s.x.dim[1]);
            fixture_open(&r, manner[i].isa, manner[i].threads);
            fixture_send(&r);
            do_conv(&r, &j, &my_c);
            my_s.state_at = 3 * 4 * s.x.dim[1]; /* after the inputs that conv keeps */
            do_scan(&r, &j, &my_s);
            fixture_wait(&r);
            fixture_close(&r);
            gather(&j, my_c.y, got_conv);
            gather(&j, my_s.y, got_scan);
            if (i == 0) {
                want_conv = got_conv;
                want_scan = got_scan;
            } else if (!same_bits(want_conv, got_conv) || !same_bits(want_scan, got_scan)) {
                fail_msg("runs of at most %u rows, %s, %u threads, differ", manner[i].most,
                         manner[i].isa, manner[i].threads);
            }
        }
        fixture_close(&keep);
    }
}

/* A step may start with empty segments (gpu.h: n_single_token). Their slots may have no state
 * yet. */
static void
an_empty_segment_keeps_its_state(void **state)
{
    uint32_t length[SLOTS] = { 3, 3, 0 };
    struct conv c = { .n_taps = 4 };
    slice_id *table;
    struct job j;
    struct scan s;
    struct fixture r;

    (void)state;
    open_any(&r);
    do {
        plan(&r, &j, length, 3);
    } while (j.n_steps > 1);
    s = new_scan(&r, j.n_tokens, false);
    c.x = s.x;
    c.y = fixture_output(&r, j.n_tokens, s.x.dim[1], s.x.dim[1]);
    c.w = fixture_tensor(&r, DT_F32, s.x.dim[1], 4, 4, 1);
    new_states(&r, &j, state_bytes(&s) + 4 * 4 * s.x.dim[1]);
    table = fixture_host(j.state.table);
    table[0] = SLICE_NONE;
    for (uint32_t i = 0; i < j.n_segments[0]; i++) HOST(j.segment)[i].n_tokens = 0;
    for (uint32_t i = 0; i < j.n_tokens; i++) HOST(j.slot)[i] = SLOT_NONE;
    fixture_send(&r);
    do_conv(&r, &j, &c);
    s.state_at = 3 * 4 * s.x.dim[1];
    do_scan(&r, &j, &s);
    fixture_wait(&r);
    assert_int_equal(r.op->lane.error(r.lane), 0);
    for (size_t i = 0; i < SLOTS * 2 * j.state.slice_bytes / sizeof(float); i++)
        assert_true(isnan(((const float *)fixture_host(j.state.base))[i]));
    fixture_close(&r);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(conv_sees_the_last_inputs_of_its_sequence),
        fixture_test(scan_computes_the_recurrence_row_by_row),
        fixture_test(a_row_has_the_same_bits_in_steps_of_any_size),
        fixture_test(an_empty_segment_keeps_its_state),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
