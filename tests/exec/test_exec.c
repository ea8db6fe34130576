/* test_exec.c - hand-written batches on small models with random weights. */
#include "gpu/device.h"
#include "tests/exec/tiny_exec.h"
#include "tests/test.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* Linked with --wrap: counts the allocations of this program, not those of libraries. */
static _Atomic bool counting;
static _Atomic unsigned n_allocations;
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);

void *
__wrap_malloc(size_t n)
{
    if (counting) n_allocations++;
    return __real_malloc(n);
}

void *
__wrap_calloc(size_t n, size_t each)
{
    if (counting) n_allocations++;
    return __real_calloc(n, each);
}

void *
__wrap_realloc(void *p, size_t n)
{
    if (counting) n_allocations++;
    return __real_realloc(p, n);
}

static struct made a, b;

static void
two_steps_in_flight_equal_single_steps(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        open_model(LLAMA, (struct harness_options){ .twice = twice, .max_tokens = 7 });
        for (uint32_t i = 0; i < 5; i++) start_slot(i, 3 + 9 * i, 20);
        harness_run(&h);
        take(twice ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

static void
encoder_in_layer_slices_equals_the_whole_encoder(void **state)
{
    (void)state;
    for (uint32_t layers = 0; layers < 3; layers++) {
        open_model(T5, (struct harness_options){ .enc_layers = layers });
        for (uint32_t i = 0; i < 4; i++) {
            struct harness_slot *s = start_slot(i, 1 + i, 12);

            s->source = SOURCE;
            s->n_source = 3 * (i + 1);
        }
        harness_run(&h);
        take(layers ? &b : &a);
        if (layers) assert_memory_equal(&a, &b, sizeof a);
    }
}

static void
different_encoder_input_gives_different_tokens(void **state)
{
    (void)state;
    open_model(T5, (struct harness_options){ 0 });
    for (uint32_t i = 0; i < 2; i++) {
        struct harness_slot *s = start_slot(i, 1, 12);

        s->token[0] = 0;
        s->source = SOURCE + i;
        s->n_source = 6;
    }
    harness_run(&h);
    take(&a);
    assert_memory_not_equal(a.logprob[0], a.logprob[1], sizeof a.logprob[0]);
}

static void
forced_tokens_override_logits_at_first_and_last_position(void **state)
{
    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    start_slot(0, 6, 5);
    start_slot(1, 6, 5)->how.forced_bos = 250;
    start_slot(2, 6, 5)->how.forced_eos = 251;
    start_slot(3, 6, 1)->how.forced_bos = 250;
    h.slot[3].how.forced_eos = 251;
    for (uint32_t i = 1; i < 4; i++) memcpy(h.slot[i].token, h.slot[0].token, 6 * sizeof(token_id));
    harness_run(&h);
    take(&a);
    assert_int_not_equal(a.token[0][6], 250);
    assert_int_equal(a.token[1][6], 250);
    assert_int_equal(a.token[2][6], a.token[0][6]);
    assert_int_not_equal(a.token[2][9], 251);
    assert_int_equal(a.token[2][10], 251);
    assert_int_equal(a.token[3][6], 251); /* both apply: forced_eos wins */
}

static void
end_tokens_are_suppressed_before_min_tokens(void **state)
{
    enum { VOCAB = 300, NEW = 6, MIN = 3 };
    static float lp[(6 + NEW) * VOCAB];
    struct harness_slot *s;

    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    start_slot(0, 6, 1);
    harness_run(&h);
    h.slot[0].active = false;
    s = start_slot(1, 6, NEW);
    memcpy(s->token, h.slot[0].token, 6 * sizeof(token_id));
    s->lp = lp;
    s->how.logprobs = VOCAB;
    s->how.eos[0] = 299;
    s->how.eos[1] = h.slot[0].token[6]; /* would be sampled first */
    s->how.n_eos = 2;
    s->how.min_new = MIN;
    harness_run(&h);
    for (uint32_t k = 0; k < NEW; k++)
        for (uint32_t i = 0; i < VOCAB; i++)
            assert_int_equal(isinf(lp[(5 + k) * VOCAB + i]) != 0,
                             k < MIN && (i == 299 || i == (uint32_t)s->how.eos[1]));
    assert_int_not_equal(s->token[6], s->how.eos[1]);
    harness_close(&h);
}

static void
repetition_penalty_covers_prompt_and_generated_tokens(void **state)
{
    struct harness_slot *s;

    (void)state;
    open_model(LLAMA, (struct harness_options){ .twice = true, .max_tokens = 5 });
    s = start_slot(3, 12, 40);
    s->how.repetition_penalty = 1e6f;
    start_slot(4, 12, 40);
    harness_run(&h);
    for (uint32_t i = 12; i < 52; i++)
        for (uint32_t k = 0; k < i; k++) assert_int_not_equal(s->token[i], s->token[k]);
    /* the next request in the slot has no history */
    memcpy(a.token[0], s->token, sizeof s->token);
    s->planned = 0;
    harness_run(&h);
    assert_memory_equal(a.token[0], s->token, sizeof s->token);
    harness_close(&h);
}

static void
sampled_token_depends_on_seed_output_and_position_only(void **state)
{
    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    for (uint32_t i = 0; i < 4; i++) {
        struct harness_slot *s = start_slot(i, 9, 30);

        memcpy(s->token, h.slot[0].token, 9 * sizeof(token_id));
        s->how.temperature = 1;
        s->how.seed = 1234 + (i == 2);
        s->how.output = i == 3;
    }
    harness_run(&h);
    take(&a);
    assert_memory_equal(a.token[0], a.token[1], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[2], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[3], sizeof a.token[0]);
    open_model(LLAMA, (struct harness_options){ .max_tokens = 2, .twice = true });
    start_slot(7, 9, 30)->how.temperature = 1;
    memcpy(h.slot[7].token, a.token[0], 9 * sizeof(token_id));
    h.slot[7].how.seed = 1234;
    harness_run(&h);
    take(&b);
    assert_memory_equal(a.token[0], b.token[7], sizeof a.token[0]);
}

/* A temperature that makes all tokens equally likely, so only the noise decides. */
static void
sampling_noise_differs_at_every_position(void **state)
{
    struct harness_slot *s;
    uint32_t same = 0;

    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    s = start_slot(0, 9, 40);
    s->how.temperature = 1e9f;
    harness_run(&h);
    for (uint32_t k = 10; k < 49; k++) same += s->token[k] == s->token[k - 1];
    assert_true(same < 5);
    harness_close(&h);
}

/* More logit rows than a piece has: this vocabulary allows 64. */
static void
prompt_log_probabilities_are_computed_in_pieces(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct harness_slot *s;

        open_model(WIDE, (struct harness_options){ .max_tokens = i ? 50 : 200 });
        s = start_slot(0, 150, 2);
        s->all = true;
        s->how.prompt_logprobs = 5;
        harness_run(&h);
        take(i ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
    for (uint32_t k = 1; k < 152; k++) assert_true(a.logprob[0][k] < 0);
}

static void
slot_moves_to_another_lane_after_the_awaited_step(void **state)
{
    enum { N = 400 }; /* long enough for the other lane to overtake */
    const struct batch_result *r;
    struct err e = { 0 };
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct harness_options){ .max_tokens = N });
    start_slot(0, N, 3);
    harness_run(&h);
    take(&a);
    open_model(LLAMA, (struct harness_options){ .n_lanes = 2, .max_tokens = N });
    start_slot(0, N, 3);
    exec_set_sampling(h.x, 0, &h.slot[0].how);
    /* the prompt on lane 0, then a token on lane 1, then one on lane 0 */
    for (uint32_t k = 0; k < 3; k++) {
        unsigned lane = k % 2;

        t = harness_batch(&h, lane);
        harness_edits(&h, t, 0, N + k);
        t->n_tokens = k ? 1 : N;
        for (uint32_t i = 0; i < t->n_tokens; i++) {
            t->token[i] = k ? TOKEN_FROM_LAST : h.slot[0].token[i];
            t->pos[i] = (int32_t)(k ? N - 1 + k : i);
        }
        t->segment[0] = (struct batch_segment){ .n_tokens = t->n_tokens,
                                                .first_pos = t->pos[0],
                                                .flags = SEGMENT_SAMPLE };
        t->n_segments = t->n_logits = 1;
        if (k) {
            t->wait[0] = (struct step_dependency){ .lane = (uint8_t)(1 - lane),
                                                   .step = h.started[1 - lane] };
            t->n_waits = 1;
        }
        assert_int_equal(exec_start(h.x, t, &e), 0);
        h.started[lane]++;
    }
    r = harness_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N]);
    r = harness_finish(&h, 1);
    assert_int_equal(r->token[0], a.token[0][N + 1]);
    r = harness_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N + 2]);
    harness_close(&h);
}

/* The device's ops without collectives, and with steps that stay in flight. */
static struct gpu_ops group;
static int (*behind)(struct lane *l, const struct lane *other, uint64_t step);
static uint64_t (*done)(const struct lane *l);
static unsigned n_waits;
static _Atomic bool held;

static int
wait_and_count(struct lane *l, const struct lane *other, uint64_t step)
{
    n_waits++;
    return behind(l, other, step);
}

static uint64_t
done_unless_held(const struct lane *l)
{
    return held ? 0 : done(l);
}

static int
no_sum(struct lane *l, struct tensor x)
{
    (void)l;
    (void)x;
    return 0;
}

static int
no_residual(struct lane *l, const struct residual *r)
{
    (void)l;
    (void)r;
    return 0;
}

static void
act_in_a_group(struct gpu *g)
{
    group = *g->device;
    behind = group.lane.after;
    done = group.lane.done;
    group.lane.after = wait_and_count;
    group.lane.done = done_unless_held;
    group.collective.all_reduce = no_sum;
    group.residual = no_residual;
    harness_replace_ops(g, &group);
}

/* Runs tokens of the lane's own slot. Returns the number of steps that the device waits for. */
static unsigned
waits_of(unsigned lane, uint8_t partition)
{
    struct batch *t = harness_batch(&h, lane);
    struct err e = { 0 };

    exec_set_sampling(h.x, lane, &h.slot[lane].how);
    harness_edits(&h, t, lane, 8);
    for (uint32_t i = 0; i < 8; i++) {
        t->token[i] = h.slot[lane].token[i];
        t->pos[i] = (int32_t)i;
    }
    t->n_tokens = 8;
    t->segment[0] = (struct batch_segment){ .slot = lane, .n_tokens = 8 };
    t->n_segments = 1;
    t->partition = partition;
    n_waits = 0;
    if (exec_start(h.x, t, &e) < 0) fail_msg("%s", e.text);
    h.started[lane]++;
    return n_waits;
}

/* On shared units two lanes of two ranks could deadlock: launch.c. */
static void
a_step_of_ranks_waits_for_other_lanes_steps_on_its_units_and_for_no_others(void **state)
{
    const struct exec_part apart[MAX_LANES] = { { 0, 3 }, { 3, 5 } },
                           over[MAX_LANES] = { { 0, 4 }, { 3, 5 } };
    struct err e = { 0 };

    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        open_model(LLAMA,
                   (struct harness_options){ .n_lanes = 2, .units = 8, .opened = act_in_a_group });
        start_slot(0, 8, 1);
        start_slot(1, 8, 1);
        assert_int_equal(exec_set_partition(h.x, 1, apart, &e), 0);
        assert_int_equal(exec_set_partition(h.x, 2, over, &e), 0);
        h.gpu->ranks = ranks;
        held = true;
        assert_int_equal(waits_of(0, 0), 0);
        assert_int_equal(waits_of(1, 1), ranks - 1); /* the first has all units */
        held = false;
        harness_finish(&h, 0);
        harness_finish(&h, 1);
        held = true;
        assert_int_equal(waits_of(1, 1), 0); /* finished steps need no wait */
        assert_int_equal(waits_of(0, 1), 0);
        assert_int_equal(waits_of(0, 2), ranks - 1);
        held = false;
        harness_finish(&h, 0);
        harness_finish(&h, 0);
        harness_finish(&h, 1);
        h.gpu->ranks = 1;
        harness_close(&h);
    }
}

/* Slot 0's tokens are known; gives a slot one of them at its position. */
enum { WALKED = 20, WALKED_TO = 26 };

static struct gpu_ops counter; /* the device's ops except copy_blocks */
static int (*copies)(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                     uint32_t n, struct block_size size);
static unsigned n_launches;
static struct block_size last_size; /* of the last copy */

static int
copy_and_count(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
               uint32_t n, struct block_size size)
{
    n_launches++;
    last_size = size;
    return copies(l, copy, same, n, size);
}

static void
counts_copies(struct gpu *g)
{
    counter = *g->device;
    copies = counter.mem.copy_blocks;
    counter.mem.copy_blocks = copy_and_count;
    harness_replace_ops(g, &counter);
    n_launches = 0;
}

static void
walk_slot_0(void)
{
    open_model(LLAMA, (struct harness_options){ .tokens_per_block = 8, .opened = counts_copies });
    start_slot(0, WALKED, WALKED_TO - WALKED);
    harness_run(&h);
    for (uint32_t i = 1; i < 4; i++) exec_set_sampling(h.x, i, &h.slot[0].how);
}

/* The log-probability of the next token. */
static float
next_of(struct batch *t, uint32_t slot, uint32_t position)
{
    struct err e = { 0 };

    t->token[0] = h.slot[0].token[position];
    t->pos[0] = (int32_t)position;
    t->segment[0] = (struct batch_segment){
        .slot = slot, .n_tokens = 1, .first_pos = t->pos[0], .flags = SEGMENT_SAMPLE
    };
    t->n_tokens = t->n_segments = t->n_logits = 1;
    if (exec_start(h.x, t, &e) < 0) fail_msg("%s", e.text);
    h.started[0]++;
    return harness_finish(&h, 0)->logprob[0];
}

static void
edit_row(struct batch *t, uint32_t to, uint32_t from)
{
    t->edit[t->n_edits++] = (struct kv_edit){ .op = EDIT_COPY, .slot = to, .entry = from };
}

static void
edit_entry(struct batch *t, uint32_t slot, uint32_t entry, slice_id at)
{
    t->edit[t->n_edits++] =
        (struct kv_edit){ .op = EDIT_SET, .slot = slot, .entry = entry, .at = at };
}

static void
copy_blocks(struct batch *t, uint32_t to, uint32_t from, bool after)
{
    for (uint32_t i = 0; i < CEIL_DIV(WALKED_TO, 8); i++)
        t->copy[t->n_copies++] = (struct kv_copy){ .from = harness_block(&h, 0, from, i),
                                                   .to = harness_block(&h, 0, to, i),
                                                   .after = after };
}

static void
slot_with_a_copied_table_row_reads_the_same_blocks(void **state)
{
    struct batch *t;
    slice_id other;

    (void)state;
    walk_slot_0();
    other = harness_block(&h, 0, 3, 0);
    t = harness_batch(&h, 0);
    edit_entry(t, 1, 0, other); /* overwritten by the row copy */
    edit_row(t, 1, 0);
    edit_row(t, 2, 1); /* a copy of the copy */
    edit_row(t, 3, 2);
    edit_entry(t, 2, 1, other);                                   /* then its own entry */
    t->edit[t->n_edits++] = (struct kv_edit){ .op = EDIT_CLEAR }; /* manifest only */
    edit_entry(t, 2, 2, other);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3); /* each reads what the previous one wrote */
    assert_true(next_of(harness_batch(&h, 0), 3, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    t = harness_batch(&h, 0);
    edit_row(t, 2, 3);
    edit_row(t, 3, 1); /* 3 is read before it is written */
    assert_true(next_of(t, 2, WALKED + 2) == h.slot[0].logprob[WALKED + 3]);
    harness_close(&h);
}

static void
writes_to_a_copied_block_do_not_change_the_original(void **state)
{
    struct batch *t;
    token_id was;

    (void)state;
    walk_slot_0();
    t = harness_batch(&h, 0);
    harness_edits(&h, t, 1, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 1); /* all copies in one launch */
    was = h.slot[0].token[WALKED];
    h.slot[0].token[WALKED] = (was + 1) % 200;
    next_of(harness_batch(&h, 0), 1,
            WALKED); /* the slot's own block has K and V of another token */
    h.slot[0].token[WALKED] = was;
    assert_true(next_of(harness_batch(&h, 0), 0, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    harness_close(&h);
}

/* The copy needs 4 tokens of the last block. */
static void
block_copy_is_limited_to_the_tokens_in_use(void **state)
{
    struct batch *t;

    (void)state;
    walk_slot_0();
    t = harness_batch(&h, 0);
    harness_edits(&h, t, 1, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    t->n_copies = CEIL_DIV(WALKED, 8);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(last_size.used, last_size.pitch);

    t = harness_batch(&h, 0);
    harness_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 2, 0, /* after= */ false);
    t->n_copies = CEIL_DIV(WALKED, 8);
    for (uint32_t i = 0; i < t->n_copies; i++)
        t->copy[i].n_tokens = (uint16_t)MIN(WALKED - 8 * i, 8u);
    n_launches = 0;
    assert_true(next_of(t, 2, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 1); /* all copies have the largest number of tokens */
    assert_int_equal(last_size.used, last_size.pitch);

    t = harness_batch(&h, 0);
    t->copy[t->n_copies++] = (struct kv_copy){ .from = harness_block(&h, 0, 0, 2),
                                               .to = harness_block(&h, 0, 3, 2),
                                               .n_tokens = WALKED % 8 };
    edit_row(t, 3, 0);
    edit_entry(t, 3, 2, harness_block(&h, 0, 3, 2));
    assert_true(next_of(t, 3, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(last_size.used, last_size.pitch / 8 * (WALKED % 8));
    harness_close(&h);
}

/* A block may be freed and allocated within a batch: one copy reads it, the next writes it. */
static void
block_copies_are_done_in_order(void **state)
{
    struct batch *t;

    (void)state;
    walk_slot_0();
    t = harness_batch(&h, 0);
    harness_edits(&h, t, 1, WALKED_TO);
    harness_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    copy_blocks(t, 2, 1, /* after= */ false);
    copy_blocks(t, 1, 3, /* after= */ false); /* never written */
    assert_true(next_of(t, 2, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3);
    harness_close(&h);
}

static void
copy_after_the_step_contains_the_steps_writes(void **state)
{
    struct batch *t;
    float next;

    (void)state;
    walk_slot_0();
    t = harness_batch(&h, 0);
    harness_edits(&h, t, 1, WALKED_TO);
    harness_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 2, 1, /* after= */ true);
    copy_blocks(t, 1, 0, /* after= */ false);
    h.slot[0].token[WALKED] ^= 1; /* slot 1 writes K and V of another token there */
    next_of(t, 1, WALKED);
    next = next_of(harness_batch(&h, 0), 1, WALKED + 1);
    assert_true(next_of(harness_batch(&h, 0), 2, WALKED + 1) == next);
    assert_true(next != h.slot[0].logprob[WALKED + 2]);
    harness_close(&h);
}

/* Offloaded and reassigned within one batch, onboarded and offloaded again within the next. */
static void
blocks_are_offloaded_and_onboarded_unchanged(void **state)
{
    const uint32_t n = CEIL_DIV(WALKED_TO, 8);
    struct batch *t;
    uint32_t block;

    (void)state;
    walk_slot_0();
    block = h.kv.group[0].n_layers * h.kv.group[0].n_parts;
    assert_true((uint64_t)2 * n * block * h.kv.group[0].slice_bytes <= HARNESS_HOST);
    t = harness_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++) {
        t->copy[t->n_copies++] = (struct kv_copy){ .to_tier = TIER_HOST,
                                                   .from = harness_block(&h, 0, 0, i),
                                                   .to = i * block };
        t->copy[t->n_copies++] = (struct kv_copy){ .from = harness_block(&h, 0, 3, i),
                                                   .to = harness_block(&h, 0, 0, i) };
    }
    harness_edits(&h, t, 1, WALKED_TO);
    harness_edits(&h, t, 2, WALKED_TO);
    next_of(t, 2, WALKED);
    assert_int_equal(n_launches, 2); /* all offloads, then the writes */
    t = harness_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++) {
        t->copy[t->n_copies++] = (struct kv_copy){ .from_tier = TIER_HOST,
                                                   .from = i * block,
                                                   .to = harness_block(&h, 0, 1, i) };
        t->copy[t->n_copies++] = (struct kv_copy){ .to_tier = TIER_HOST,
                                                   .after = true,
                                                   .from = harness_block(&h, 0, 1, i),
                                                   .to = (n + i) * block };
    }
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 4);
    assert_true(next_of(harness_batch(&h, 0), 0, WALKED) != h.slot[0].logprob[WALKED + 1]);
    t = harness_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++)
        t->copy[t->n_copies++] = (struct kv_copy){ .from_tier = TIER_HOST,
                                                   .from = (n + i) * block,
                                                   .to = harness_block(&h, 0, 0, i) };
    assert_true(next_of(t, 0, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    harness_close(&h);
}

static void
result_stays_valid_during_one_more_start(void **state)
{
    const struct batch_result *r;
    struct err e = { 0 };
    token_id token;

    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    start_slot(0, 1, 1);
    exec_set_sampling(h.x, 0, &h.slot[0].how);
    for (uint32_t k = 0; k < 4; k++) {
        struct batch *t = harness_batch(&h, 0);

        harness_edits(&h, t, 0, 1 + k);
        t->token[0] = k ? TOKEN_FROM_LAST : 4;
        t->pos[0] = (int32_t)k;
        t->segment[0] = (struct batch_segment){ .n_tokens = 1,
                                                .first_pos = t->pos[0],
                                                .flags = SEGMENT_SAMPLE };
        t->n_tokens = t->n_segments = t->n_logits = 1;
        if (k == 2) {
            r = harness_finish(&h, 0);
            token = r->token[0];
        }
        if (k == 3) harness_finish(&h, 0);
        assert_int_equal(exec_start(h.x, t, &e), 0);
        h.started[0]++;
        if (k == 2) {
            assert_int_equal(r->step, 1);
            assert_int_equal(r->token[0], token);
        }
    }
    harness_finish(&h, 0);
    harness_finish(&h, 0);
    assert_int_equal(exec_finish(h.x, 0, &r), -EAGAIN);
    harness_close(&h);
}

static const struct arch *real;
static struct look {
    uint32_t n_single_token, n_segments;
    struct segment segment[HARNESS_SLOTS];
} look[64];
static unsigned n_looks;

/* Calls the family's forward() after copying its segments for inspection. */
static int
forward_looking(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    struct look *k = &look[n_looks++];

    assert_true(n_looks <= ARRAY_LEN(look));
    k->n_single_token = s->rows.n_single_token;
    k->n_segments = s->rows.n_segments;
    assert_int_equal(s->cross.n_single_token, s->rows.n_single_token);
    TRY(m->op->mem.get(s->lane, k->segment, s->rows.segment, k->n_segments * sizeof *k->segment));
    return real->forward(m, s, first, n);
}

static void
step_states_the_number_of_leading_one_token_segments(void **state)
{
    struct arch looking;
    unsigned n_mixed = 0;

    (void)state;
    open_model(LLAMA, (struct harness_options){ .max_tokens = 16 });
    real = h.m->arch;
    looking = *real;
    looking.forward = forward_looking;
    h.m->arch = &looking;
    for (uint32_t i = 0; i < 6; i++) start_slot(i, 1 + 7 * i, 12);
    n_looks = 0;
    harness_run(&h);
    harness_close(&h);
    for (unsigned i = 0; i < n_looks; i++) {
        const struct look *k = &look[i];

        for (uint32_t r = 0; r < k->n_single_token; r++)
            assert_int_equal(k->segment[r].n_tokens, 1);
        if (k->n_single_token < k->n_segments)
            assert_true(k->segment[k->n_single_token].n_tokens > 1);
        n_mixed += k->n_single_token && k->n_single_token < k->n_segments;
    }
    assert_true(n_mixed > 3);
}

static uint32_t n_short, n_none; /* steps whose last layer has fewer rows; steps with none */

static int
forward_counting_few(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    n_short += s->few != NULL;
    n_none += s->few && !s->n_logit_rows;
    return real->forward(m, s, first, n);
}

static void
dropping_rows_without_logits_changes_no_results(void **state)
{
    static const char *const config[] = {
        LLAMA,
        "{\"model_type\": \"qwen3\", \"vocab_size\": 300, \"hidden_size\": 32,"
        " \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 512}",
        "{\"model_type\": \"gemma3_text\", \"vocab_size\": 300, \"hidden_size\": 48,"
        " \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 2, \"head_dim\": 8, \"max_position_embeddings\": 512,"
        " \"sliding_window\": 32, \"sliding_window_pattern\": 2,"
        " \"query_pre_attn_scalar\": 8}",
    };

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(config); i++) {
        for (int few = 0; few < 2; few++) {
            struct arch arch;

            open_model(config[i], (struct harness_options){ .max_tokens = 24 });
            real = h.m->arch;
            assert_true(real->ends_with_logit_rows);
            arch = *real;
            arch.ends_with_logit_rows = few;
            arch.forward = forward_counting_few;
            h.m->arch = &arch;
            for (uint32_t k = 0; k < 6; k++) {
                struct harness_slot *slot = start_slot(k, 86 - 17 * k, 12);

                slot->late = 3 * k;
                slot->how.temperature = 0.8f;
            }
            h.slot[2].all = true;
            n_short = n_none = 0;
            harness_run(&h);
            take(few ? &b : &a);
            assert_int_equal(n_none > 0, few);
            assert_int_equal(n_short > n_none, few);
        }
        assert_memory_equal(&a, &b, sizeof a);
    }
}

static void
refuses(struct batch *t, const char *word)
{
    struct err e = { 0 };

    assert_int_equal(exec_start(h.x, t, &e), -ENOTSUP);
    if (!strstr(e.text, word)) fail_msg("\"%s\" does not speak of %s", e.text, word);
}

static void
unimplemented_features_of_a_batch_are_refused_by_name(void **state)
{
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    t = harness_batch(&h, 0);
    t->n_tokens = t->n_segments = t->n_logits = 1;
    t->token[0] = t->pos[0] = 0;
    t->segment[0] = (struct batch_segment){ .n_tokens = 1, .flags = SEGMENT_SAMPLE, .n_draft = 1 };
    refuses(t, "draft");
    t->segment[0].n_draft = 0;
    t->n_copies = HARNESS_SLOTS * MAX_GROUPS + 1;
    refuses(t, "copies");
    harness_close(&h);
}

static void
kv_dtype_that_disagrees_with_the_groups_is_refused(void **state)
{
    struct exec_config c = { .max_tokens = 4, .max_seqs = 1, .n_lanes = 1, .kv_dtype = DT_BF16 };
    struct exec *x = NULL;
    struct err e = { 0 };

    (void)state;
    open_model(LLAMA, (struct harness_options){ 0 });
    assert_int_equal(exec_open(&x, &c, h.gpu, h.m, &h.kv, &e), -EINVAL);
    assert_non_null(strstr(e.text, "bf16"));
    harness_close(&h);
}

static void
stepping_allocates_nothing(void **state)
{
    void *volatile seen;

    (void)state;
    open_model(T5, (struct harness_options){ .twice = true, .n_lanes = 2, .enc_layers = 2 });
    for (uint32_t i = 0; i < 6; i++) {
        struct harness_slot *s = start_slot(i, 20, 20);

        s->source = SOURCE;
        s->n_source = 5;
        s->all = i == 3;
        s->how.prompt_logprobs = s->how.logprobs = 4;
        s->how.repetition_penalty = 1.5f;
        s->how.temperature = 0.7f;
        s->how.top_p = 0.9f;
        s->how.top_k = 20;
    }
    counting = true;
    harness_run(&h);
    counting = false;
    assert_int_equal(n_allocations, 0);
    counting = true;
    seen = malloc(1);
    counting = false;
    free(seen);
    assert_int_equal(n_allocations, 1); /* a failure would be visible */
    harness_close(&h);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_in_flight_equal_single_steps),
        cmocka_unit_test(encoder_in_layer_slices_equals_the_whole_encoder),
        cmocka_unit_test(different_encoder_input_gives_different_tokens),
        cmocka_unit_test(forced_tokens_override_logits_at_first_and_last_position),
        cmocka_unit_test(end_tokens_are_suppressed_before_min_tokens),
        cmocka_unit_test(repetition_penalty_covers_prompt_and_generated_tokens),
        cmocka_unit_test(sampled_token_depends_on_seed_output_and_position_only),
        cmocka_unit_test(sampling_noise_differs_at_every_position),
        cmocka_unit_test(prompt_log_probabilities_are_computed_in_pieces),
        cmocka_unit_test(slot_moves_to_another_lane_after_the_awaited_step),
        cmocka_unit_test(
            a_step_of_ranks_waits_for_other_lanes_steps_on_its_units_and_for_no_others),
        cmocka_unit_test(slot_with_a_copied_table_row_reads_the_same_blocks),
        cmocka_unit_test(writes_to_a_copied_block_do_not_change_the_original),
        cmocka_unit_test(block_copy_is_limited_to_the_tokens_in_use),
        cmocka_unit_test(block_copies_are_done_in_order),
        cmocka_unit_test(copy_after_the_step_contains_the_steps_writes),
        cmocka_unit_test(blocks_are_offloaded_and_onboarded_unchanged),
        cmocka_unit_test(result_stays_valid_during_one_more_start),
        cmocka_unit_test(step_states_the_number_of_leading_one_token_segments),
        cmocka_unit_test(dropping_rows_without_logits_changes_no_results),
        cmocka_unit_test(unimplemented_features_of_a_batch_are_refused_by_name),
        cmocka_unit_test(kv_dtype_that_disagrees_with_the_groups_is_refused),
        cmocka_unit_test(stepping_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
