/* test_partition_ctl.c - lanes, partitions and operator selections; the device is a fake. */
#include "worker/ops/partition_ctl.h"

#include "base/clock.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { UNITS = 132 };

static struct partition_ctl s;
static struct scheduler_limits l;
static struct exec_part set_parts[MAX_LANES]; /* as last set on the device */
static unsigned set_partition;
static int device_error;
static struct exec_rate rate[MAX_PARTITIONS][2]; /* measured rates; all 0: not measured */

struct exec_rate
exec_rate(const struct exec *x, unsigned partition, unsigned lane)
{
    (void)x;
    return rate[partition][lane];
}

struct exec_partition_times
exec_partition_times(const struct exec *x)
{
    (void)x;
    return (struct exec_partition_times){ 0 };
}

int
exec_set_partition(struct exec *x, unsigned partition, const struct exec_part part[MAX_LANES],
                   struct err *e)
{
    (void)x;
    set_partition = partition;
    memcpy(set_parts, part, sizeof set_parts);
    return device_error < 0 ? err_set(e, device_error, "error set by the test") : device_error;
}

static struct model_options
keys(uint32_t mode, const char *context_sm)
{
    struct model_options k = { .split_mode = mode, .split_itl_target = 50 * NSEC_MS };

    snprintf(k.split_context_sm, sizeof k.split_context_sm, "%s", context_sm);
    return k;
}

static int
plan(const struct model_options *k, uint32_t units, struct gpu_parts parts, struct exec_config *x,
     struct err *e)
{
    l.max_seqs = 4;
    l.max_tokens = 40;
    l.max_len = 100;
    *x = (struct exec_config){ 0 };
    return partition_ctl_plan(&s, k, parts, units, &l, x, e);
}

static const struct gpu_parts h200 = { .least = 16, .grain = 8 };

static void
each_phase_has_its_lanes_in_every_split_mode(void **state)
{
    enum { E = WORK_ENCODER, C = WORK_PREFILL, G = WORK_DECODE };
    static const struct {
        uint32_t mode, encoder;
        uint16_t n_layers;
        const char *context_sm;
        uint8_t n_lanes, work[MAX_LANES];
    } cases[] = {
        { SPLIT_OFF, SPLIT_ENCODER_SHARED, 6, "", 1, { E | C | G } },
        { SPLIT_OFF, SPLIT_ENCODER_OWN, 6, "", 2, { C | G, E } },
        { SPLIT_OFF, SPLIT_ENCODER_OWN, 0, "", 1, { E | C | G } },
        { SPLIT_FIXED, SPLIT_ENCODER_SHARED, 6, "64", 2, { E | C, G } },
        { SPLIT_FIXED, SPLIT_ENCODER_OWN, 6, "0.5", 3, { C, G, E } },
        { SPLIT_AUTO, SPLIT_ENCODER_OWN, 6, "", 3, { C, G, E } },
        { SPLIT_FIXED, SPLIT_ENCODER_SHARED, 6, "1.0", 1, { E | C | G } },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_options k = keys(cases[i].mode, cases[i].context_sm);
        struct exec_config x;
        struct err e;

        k.split_encoder = cases[i].encoder;
        l = (struct scheduler_limits){ .n_enc_layers = cases[i].n_layers };
        assert_int_equal(plan(&k, UNITS, h200, &x, &e), 0);
        assert_int_equal(l.n_lanes, cases[i].n_lanes);
        assert_int_equal(x.n_lanes, cases[i].n_lanes);
        assert_memory_equal(l.lane_work, cases[i].work, cases[i].n_lanes);
        for (unsigned n = 0; n < x.n_lanes; n++) assert_int_equal(x.lane_units[n], UNITS);
        assert_int_equal(x.n_partitions > 0, (cases[i].work[0] & G) == 0);
    }
}

static void
two_parts_of_a_partition_cover_the_device_without_overlap(void **state)
{
    struct model_options k = keys(SPLIT_FIXED, "72");
    struct exec_config x;
    struct err e;

    (void)state;
    assert_int_equal(plan(&k, UNITS, h200, &x, &e), 0);
    assert_int_equal(x.n_partitions, MAX_PARTITIONS);
    for (unsigned i = 1; i < x.n_partitions; i++) {
        const struct exec_part *p = x.part[i];

        assert_int_equal(p[0].first, 0);
        assert_int_equal(p[1].first, p[0].n);
        assert_int_equal(p[0].n + p[1].n, UNITS);
        assert_true(p[0].n >= h200.least && p[1].n >= h200.least);
        assert_memory_equal(&p[2], &p[0], sizeof p[0]); /* the encoder lane has the prefill part */
    }
    assert_int_equal(x.part[s.state.partition][0].n, 72);
}

static void
context_limits_apply_to_the_prefill_lane_only(void **state)
{
    struct model_options k = keys(SPLIT_FIXED, "64");
    struct exec_config x;
    struct err e;

    (void)state;
    k.split_context_max_tokens = 30;
    k.split_context_max_seqs = 3;
    assert_int_equal(plan(&k, UNITS, h200, &x, &e), 0);
    assert_int_equal(l.lane_tokens[0], 30);
    assert_int_equal(l.lane_seqs[0], 3);
    assert_int_equal(l.lane_tokens[1], 0);
    assert_int_equal(l.lane_seqs[1], 0);
    k.split_context_max_tokens = -1;
    k.split_context_max_seqs = 0;
    assert_int_equal(plan(&k, UNITS, h200, &x, &e), 0);
    assert_int_equal(l.lane_tokens[0], 0);
    assert_int_equal(l.lane_seqs[0], 0);
}

static void
indivisible_device_is_refused_with_the_reason(void **state)
{
    const struct gpu_parts none = { .why = "its driver is of 1999" };
    struct model_options k = keys(SPLIT_AUTO, "");
    struct exec_config x;
    struct err e;

    (void)state;
    assert_int_equal(plan(&k, UNITS, none, &x, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "split.mode: its driver is of 1999"));
    assert_int_equal(plan(&k, 16, h200, &x, &e), -EINVAL);
    assert_non_null(strstr(e.text, "16 device units cannot be divided"));
    k.split_mode = SPLIT_OFF;
    assert_int_equal(plan(&k, UNITS, none, &x, &e), 0);
    assert_int_equal(partition_ctl_select(&s, SPLIT_AUTO, 0, 0, &e), -ENOTSUP);
    assert_int_equal(partition_ctl_select(&s, SPLIT_OFF, 0, 0, &e), 0); /* already off */
    assert_non_null(strstr(e.text, "units of this worker's device cannot be divided"));
}

struct partition_fixture {
    struct kv_config c;
    void *mem;
    struct scheduler *sched;
};

static void
serve(struct partition_fixture *b, const char *context_sm)
{
    static const struct step_costs costs = { .weights = 1000000, .row_flops = 1e6 };
    struct model_options k = keys(SPLIT_FIXED, context_sm);
    struct exec_config x;
    struct kv *kv;
    struct err e;

    l = (struct scheduler_limits){ 0 };
    if (plan(&k, UNITS, h200, &x, &e) < 0) fail_msg("%s", e.text);
    b->c = (struct kv_config){
        .n_groups = 1, .n_slots = 4, .tokens_per_block = 10, .arena_bytes = 1 << 20
    };
    b->c.n_lanes = l.n_lanes;
    b->c.group[0] = (struct kv_group){
        .kind = KV_FULL, .n_layers = 1, .n_parts = 2, .slice_bytes = 128, .max_entries = 10
    };
    b->mem = calloc(1, kv_bytes(&b->c));
    kv = kv_init(b->mem, &b->c, &e);
    if (!kv || scheduler_new(&b->sched, &l, kv, &e) < 0) fail_msg("%s", e.text);
    partition_ctl_open(&s, NULL, b->sched, &b->c, &costs, &l, k.split_itl_target);
    device_error = 0;
    set_partition = 0;
}

static void
end(struct partition_fixture *b)
{
    scheduler_free(b->sched);
    free(b->mem);
}

static void
selection_takes_effect_at_the_next_update(void **state)
{
    unsigned before;
    struct partition_fixture b;
    struct err e;

    (void)state;
    serve(&b, "64");
    before = partition_ctl_state(&s).partition;
    assert_int_not_equal(before, 0);
    assert_int_equal(partition_ctl_select(&s, SPLIT_FIXED, 40, 92, &e), 0);
    assert_int_equal(partition_ctl_state(&s).partition, before);
    assert_int_equal(set_partition, 0);
    partition_ctl_update(&s);
    assert_int_not_equal(partition_ctl_state(&s).partition, before);
    assert_int_equal(set_partition, partition_ctl_state(&s).partition);
    assert_int_equal(set_parts[0].first, 0);
    assert_int_equal(set_parts[0].n, 40);
    assert_int_equal(set_parts[1].first, 40);
    assert_int_equal(set_parts[1].n, 92);
    assert_int_equal(partition_ctl_state(&s).n_changes, 1);
    assert_int_equal(partition_ctl_select(&s, SPLIT_OFF, 0, 0, &e), 0);
    assert_int_equal(partition_ctl_state(&s).mode, SPLIT_FIXED);
    partition_ctl_update(&s);
    assert_int_equal(partition_ctl_state(&s).mode, SPLIT_OFF);
    assert_int_equal(partition_ctl_state(&s).partition, 0);
    end(&b);
}

static void
selection_of_an_impossible_partition_changes_nothing(void **state)
{
    static const uint32_t odd[][2] = { { 41, 91 }, { 40, 40 }, { 8, 124 }, { 0, 132 } };
    unsigned before;
    struct partition_fixture b;
    struct err e;

    (void)state;
    serve(&b, "64");
    before = partition_ctl_state(&s).partition;
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        assert_int_equal(partition_ctl_select(&s, SPLIT_FIXED, odd[i][0], odd[i][1], &e), -EINVAL);
        partition_ctl_update(&s);
        assert_int_equal(partition_ctl_state(&s).partition, before);
        assert_int_equal(partition_ctl_state(&s).mode, SPLIT_FIXED);
        assert_int_equal(set_partition, 0);
    }
    end(&b);
}

static void
failed_partition_leaves_the_device_whole(void **state)
{
    struct partition_fixture b;
    struct err e;

    (void)state;
    serve(&b, "64");
    device_error = -ENOMEM;
    assert_int_equal(partition_ctl_select(&s, SPLIT_FIXED, 40, 92, &e), 0);
    partition_ctl_update(&s);
    assert_int_not_equal(set_partition, 0);
    assert_int_equal(partition_ctl_state(&s).partition, 0);
    end(&b);
}

/* Rates of an H200 as its worker logs them: bytes/s and FLOP/s of the whole device, then of each
 * part. */
static void
set_measured_rates(void)
{
    static const double rates[MAX_PARTITIONS][4] = { { 3.68e12, 770e12 },
                                                     { 3.64e12, 418e12, 3.96e12, 365e12 },
                                                     { 3.63e12, 476e12, 3.66e12, 315e12 },
                                                     { 3.57e12, 523e12, 3.39e12, 258e12 },
                                                     { 3.58e12, 671e12, 1.41e12, 56e12 } };

    for (unsigned r = 0; r < MAX_PARTITIONS; r++)
        for (unsigned i = 0; i < 2; i++)
            rate[r][i] = (struct exec_rate){ rates[r][2 * i], rates[r][2 * i + 1] };
}

/* Opens the controller with these rates, clears them, and returns the log. */
static const char *
serve_and_log(struct partition_fixture *b)
{
    static char text[4096];
    FILE *file = tmpfile();
    int err = dup(STDERR_FILENO);
    size_t n;

    assert_true(file && err >= 0);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    serve(b, "64");
    dup2(err, STDERR_FILENO);
    close(err);
    rewind(file);
    n = fread(text, 1, sizeof text - 1, file);
    text[n] = 0;
    fclose(file);
    memset(rate, 0, sizeof rate);
    return text;
}

static unsigned
count_of(const char *text, const char *what)
{
    unsigned n = 0;

    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

/* Estimated share of the device's bandwidth for decode and of its arithmetic for prefill. */
static struct part_share
estimated_share(unsigned partition)
{
    static const struct step_cost bytes = { .kv = 1e12 }, flop = { .attend = 1e15 };
    const struct step_time *t = &s.split.time;

    return (struct part_share){
        step_time_of(t, STEP_DECODE, 0, &bytes) / step_time_of(t, STEP_DECODE, partition, &bytes),
        step_time_of(t, STEP_PREFILL, 0, &flop) / step_time_of(t, STEP_PREFILL, partition, &flop)
    };
}

static bool
near(double x, double want)
{
    return fabs(x - want) < 1e-3; /* false for NaN */
}

static void
measured_rates_are_the_first_estimate_of_auto(void **state)
{
    const char *text;
    struct partition_fixture b;

    (void)state;
    set_measured_rates();
    text = serve_and_log(&b);
    assert_int_equal(count_of(text, "TFLOP/s"), MAX_PARTITIONS - 1);
    assert_int_equal(count_of(text, "implausible"), 0);
    assert_true(near(estimated_share(1).read, .8) &&
                near(estimated_share(1).compute, .8 * 418 / 770));
    assert_true(near(estimated_share(4).read, .8 * 1.41 / 3.68) &&
                near(estimated_share(4).compute, .8 * 671 / 770));
    end(&b);
}

/* Rates of 0, negative, NaN, infinite, far too large, far too small, and a part above the whole,
 * for the device and each part. The other partitions keep their measured shares. */
static void
implausible_measurement_is_logged_and_replaced_by_unit_shares(void **state)
{
    static const double odd[] = { 0, -1, NAN, INFINITY, 1e30, 1e-30, 8, .002 };

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(odd); k++)
        for (unsigned at = 0; at < 6; at++) {
            unsigned partition = at / 2 ? 3 : 0, lane = at / 2 == 2;
            const char *text;
            double *x;
            struct partition_fixture b;

            set_measured_rates();
            x = at % 2 ? &rate[partition][lane].compute : &rate[partition][lane].read;
            if (odd[k] == 8 && partition == 0) continue; /* plausible for a whole device */
            *x *= odd[k];
            text = serve_and_log(&b);
            assert_int_equal(count_of(text, "TFLOP/s"), MAX_PARTITIONS - 1);
            assert_int_equal(count_of(text, "implausible"), partition ? 1 : MAX_PARTITIONS - 1);
            for (unsigned r = 1; r < MAX_PARTITIONS; r++) {
                const struct partition *is = &s.state.partition_list.partition[r];
                struct part_share t = estimated_share(r);

                if (partition && r != partition) {
                    assert_true(t.compute > .4 && t.compute < .8);
                    assert_false(near(t.compute, (double)is->prefill_units / UNITS));
                    continue;
                }
                assert_true(near(t.read, (double)is->decode_units / UNITS));
                assert_true(near(t.compute, (double)is->prefill_units / UNITS));
            }
            end(&b);
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_phase_has_its_lanes_in_every_split_mode),
        cmocka_unit_test(two_parts_of_a_partition_cover_the_device_without_overlap),
        cmocka_unit_test(context_limits_apply_to_the_prefill_lane_only),
        cmocka_unit_test(indivisible_device_is_refused_with_the_reason),
        cmocka_unit_test(selection_takes_effect_at_the_next_update),
        cmocka_unit_test(selection_of_an_impossible_partition_changes_nothing),
        cmocka_unit_test(failed_partition_leaves_the_device_whole),
        cmocka_unit_test(measured_rates_are_the_first_estimate_of_auto),
        cmocka_unit_test(implausible_measurement_is_logged_and_replaced_by_unit_shares),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
