/* test_exec.c - batches made by hand against small models with random weights. */
#include "gpu/device.h"
#include "tests/exec/tiny_exec.h"
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The linker sends every allocation of this program here (--wrap); libraries keep theirs. */
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
two_steps_out_give_what_one_at_a_time_gives(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        open_model(LLAMA, (struct hand_options){ .twice = twice, .max_tokens = 7 });
        for (uint32_t i = 0; i < 5; i++) sit(i, 3 + 9 * i, 20);
        hand_run(&h);
        take(twice ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

static void
an_encoder_in_layer_slices_gives_what_it_gives_whole(void **state)
{
    (void)state;
    for (uint32_t layers = 0; layers < 3; layers++) {
        open_model(T5, (struct hand_options){ .enc_layers = layers });
        for (uint32_t i = 0; i < 4; i++) {
            struct hand_slot *s = sit(i, 1 + i, 12);

            s->source = SOURCE;
            s->n_source = 3 * (i + 1);
        }
        hand_run(&h);
        take(layers ? &b : &a);
        if (layers) assert_memory_equal(&a, &b, sizeof a);
    }
}

static void
another_source_gives_other_tokens(void **state)
{
    (void)state;
    open_model(T5, (struct hand_options){ 0 });
    for (uint32_t i = 0; i < 2; i++) {
        struct hand_slot *s = sit(i, 1, 12);

        s->token[0] = 0;
        s->source = SOURCE + i;
        s->n_source = 6;
    }
    hand_run(&h);
    take(&a);
    assert_memory_not_equal(a.logprob[0], a.logprob[1], sizeof a.logprob[0]);
}

static void
forced_tokens_come_first_and_last_whatever_the_logits(void **state)
{
    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 6, 5);
    sit(1, 6, 5)->how.forced_bos = 250;
    sit(2, 6, 5)->how.forced_eos = 251;
    sit(3, 6, 1)->how.forced_bos = 250;
    h.slot[3].how.forced_eos = 251;
    for (uint32_t i = 1; i < 4; i++) memcpy(h.slot[i].token, h.slot[0].token, 6 * sizeof(token_id));
    hand_run(&h);
    take(&a);
    assert_int_not_equal(a.token[0][6], 250);
    assert_int_equal(a.token[1][6], 250);
    assert_int_equal(a.token[2][6], a.token[0][6]);
    assert_int_not_equal(a.token[2][9], 251);
    assert_int_equal(a.token[2][10], 251);
    assert_int_equal(a.token[3][6], 251); /* both at once: the end wins */
}

static void
end_tokens_do_not_come_before_the_minimum(void **state)
{
    enum { VOCAB = 300, NEW = 6, MIN = 3 };
    static float lp[(6 + NEW) * VOCAB];
    struct hand_slot *s;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 6, 1);
    hand_run(&h);
    h.slot[0].active = false;
    s = sit(1, 6, NEW);
    memcpy(s->token, h.slot[0].token, 6 * sizeof(token_id));
    s->lp = lp;
    s->how.logprobs = VOCAB;
    s->how.eos[0] = 299;
    s->how.eos[1] = h.slot[0].token[6]; /* it would come at once */
    s->how.n_eos = 2;
    s->how.min_new = MIN;
    hand_run(&h);
    for (uint32_t k = 0; k < NEW; k++)
        for (uint32_t i = 0; i < VOCAB; i++)
            assert_int_equal(isinf(lp[(5 + k) * VOCAB + i]) != 0,
                             k < MIN && (i == 299 || i == (uint32_t)s->how.eos[1]));
    assert_int_not_equal(s->token[6], s->how.eos[1]);
    hand_close(&h);
}

static void
a_repetition_penalty_counts_prompt_and_generated_tokens(void **state)
{
    struct hand_slot *s;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .twice = true, .max_tokens = 5 });
    s = sit(3, 12, 40);
    s->how.repetition_penalty = 1e6f;
    sit(4, 12, 40);
    hand_run(&h);
    for (uint32_t i = 12; i < 52; i++)
        for (uint32_t k = 0; k < i; k++) assert_int_not_equal(s->token[i], s->token[k]);
    /* the next request in the slot begins with a clean history */
    memcpy(a.token[0], s->token, sizeof s->token);
    s->planned = 0;
    hand_run(&h);
    assert_memory_equal(a.token[0], s->token, sizeof s->token);
    hand_close(&h);
}

static void
a_drawn_token_depends_on_seed_output_and_position_alone(void **state)
{
    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    for (uint32_t i = 0; i < 4; i++) {
        struct hand_slot *s = sit(i, 9, 30);

        memcpy(s->token, h.slot[0].token, 9 * sizeof(token_id));
        s->how.temperature = 1;
        s->how.seed = 1234 + (i == 2);
        s->how.output = i == 3;
    }
    hand_run(&h);
    take(&a);
    assert_memory_equal(a.token[0], a.token[1], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[2], sizeof a.token[0]);
    assert_memory_not_equal(a.token[0], a.token[3], sizeof a.token[0]);
    open_model(LLAMA, (struct hand_options){ .max_tokens = 2, .twice = true });
    sit(7, 9, 30)->how.temperature = 1;
    memcpy(h.slot[7].token, a.token[0], 9 * sizeof(token_id));
    h.slot[7].how.seed = 1234;
    hand_run(&h);
    take(&b);
    assert_memory_equal(a.token[0], b.token[7], sizeof a.token[0]);
}

/* So hot that every token is as likely as the next: what differs from draw to draw is the noise. */
static void
noise_is_another_at_every_position(void **state)
{
    struct hand_slot *s;
    uint32_t same = 0;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    s = sit(0, 9, 40);
    s->how.temperature = 1e9f;
    hand_run(&h);
    for (uint32_t k = 10; k < 49; k++) same += s->token[k] == s->token[k - 1];
    assert_true(same < 5);
    hand_close(&h);
}

/* More rows of logits than are held at once: this vocabulary allows 64. */
static void
log_probabilities_of_a_long_prompt_come_in_pieces(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hand_slot *s;

        open_model(WIDE, (struct hand_options){ .max_tokens = i ? 50 : 200 });
        s = sit(0, 150, 2);
        s->all = true;
        s->how.prompt_logprobs = 5;
        hand_run(&h);
        take(i ? &b : &a);
    }
    assert_memory_equal(&a, &b, sizeof a);
    for (uint32_t k = 1; k < 152; k++) assert_true(a.logprob[0][k] < 0);
}

static void
a_slot_moves_to_another_lane_behind_the_step_it_waits_for(void **state)
{
    enum { N = 400 }; /* long enough for the other lane to overtake */
    const struct batch_result *r;
    struct err e = { 0 };
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .max_tokens = N });
    sit(0, N, 3);
    hand_run(&h);
    take(&a);
    open_model(LLAMA, (struct hand_options){ .n_lanes = 2, .max_tokens = N });
    sit(0, N, 3);
    exec_set_sampling(h.x, 0, &h.slot[0].how);
    /* the prompt on lane 0, then a token on lane 1, then one on lane 0 */
    for (uint32_t k = 0; k < 3; k++) {
        unsigned lane = k % 2;

        t = hand_batch(&h, lane);
        hand_edits(&h, t, 0, N + k);
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
    r = hand_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N]);
    r = hand_finish(&h, 1);
    assert_int_equal(r->token[0], a.token[0][N + 1]);
    r = hand_finish(&h, 0);
    assert_int_equal(r->token[0], a.token[0][N + 2]);
    hand_close(&h);
}

/* The device's, but for what ranks would do together, and with steps that are not done before they
 * may be. */
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
    g->device = &group;
}

/* Tokens of that lane's own slot, which wait for nobody: how many steps the device was told to wait
 * for. */
static unsigned
waits_of(unsigned lane, uint8_t partition)
{
    struct batch *t = hand_batch(&h, lane);
    struct err e = { 0 };

    exec_set_sampling(h.x, lane, &h.slot[lane].how);
    hand_edits(&h, t, lane, 8);
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

/* On units that they share two lanes of each rank could wait for the other lane of the other rank,
 * for ever. */
static void
a_step_of_ranks_waits_for_other_lanes_steps_on_its_units_and_for_no_others(void **state)
{
    const struct exec_part apart[MAX_LANES] = { { 0, 3 }, { 3, 5 } },
                           over[MAX_LANES] = { { 0, 4 }, { 3, 5 } };
    struct err e = { 0 };

    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        open_model(LLAMA,
                   (struct hand_options){ .n_lanes = 2, .units = 8, .opened = act_in_a_group });
        sit(0, 8, 1);
        sit(1, 8, 1);
        assert_int_equal(exec_set_partition(h.x, 1, apart, &e), 0);
        assert_int_equal(exec_set_partition(h.x, 2, over, &e), 0);
        h.gpu->ranks = ranks;
        held = true;
        assert_int_equal(waits_of(0, 0), 0);
        assert_int_equal(waits_of(1, 1), ranks - 1); /* the first has all units */
        held = false;
        hand_finish(&h, 0);
        hand_finish(&h, 1);
        held = true;
        assert_int_equal(waits_of(1, 1), 0); /* what is finished is not waited for */
        assert_int_equal(waits_of(0, 1), 0);
        assert_int_equal(waits_of(0, 2), ranks - 1);
        held = false;
        hand_finish(&h, 0);
        hand_finish(&h, 0);
        hand_finish(&h, 1);
        h.gpu->ranks = 1;
        hand_close(&h);
    }
}

/* Seat 0's tokens, prompt and generated, are known; now a slot is given one of them at its
 * position. */
enum { WALKED = 20, WALKED_TO = 26 };

static struct gpu_ops counter; /* the device's, but for copy_blocks */
static int (*copies)(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                     uint32_t n, struct block_size size);
static unsigned n_launches;
static struct block_size last_size; /* of the last of them */

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
    g->device = &counter;
    n_launches = 0;
}

static void
walk_slot_0(void)
{
    open_model(LLAMA, (struct hand_options){ .tokens_per_block = 8, .opened = counts_copies });
    sit(0, WALKED, WALKED_TO - WALKED);
    hand_run(&h);
    for (uint32_t i = 1; i < 4; i++) exec_set_sampling(h.x, i, &h.slot[0].how);
}

/* The log-probability of what comes next. */
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
    return hand_finish(&h, 0)->logprob[0];
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
        t->copy[t->n_copies++] = (struct kv_copy){ .from = hand_block(&h, 0, from, i),
                                                   .to = hand_block(&h, 0, to, i),
                                                   .after = after };
}

static void
a_slot_with_a_copied_table_row_reads_the_same_blocks(void **state)
{
    struct batch *t;
    slice_id other;

    (void)state;
    walk_slot_0();
    other = hand_block(&h, 0, 3, 0);
    t = hand_batch(&h, 0);
    edit_entry(t, 1, 0, other); /* overwritten by the row */
    edit_row(t, 1, 0);
    edit_row(t, 2, 1); /* a copy of the copy */
    edit_row(t, 3, 2);
    edit_entry(t, 2, 1, other);                                   /* and then one of its own */
    t->edit[t->n_edits++] = (struct kv_edit){ .op = EDIT_CLEAR }; /* the manifest's */
    edit_entry(t, 2, 2, other);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3); /* each reads what the one before it wrote */
    assert_true(next_of(hand_batch(&h, 0), 3, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    t = hand_batch(&h, 0);
    edit_row(t, 2, 3);
    edit_row(t, 3, 1); /* 3 is read before it is written */
    assert_true(next_of(t, 2, WALKED + 2) == h.slot[0].logprob[WALKED + 3]);
    hand_close(&h);
}

static void
what_is_written_into_a_copied_block_is_not_seen_in_the_other(void **state)
{
    struct batch *t;
    token_id was;

    (void)state;
    walk_slot_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 1); /* all of them at once */
    was = h.slot[0].token[WALKED];
    h.slot[0].token[WALKED] = (was + 1) % 200;
    next_of(hand_batch(&h, 0), 1, WALKED); /* its own block has another token's K and V now */
    h.slot[0].token[WALKED] = was;
    assert_true(next_of(hand_batch(&h, 0), 0, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    hand_close(&h);
}

/* Of the last block four tokens count: those of a slot that goes on from there. */
static void
of_a_block_no_more_is_copied_than_its_tokens_that_count(void **state)
{
    struct batch *t;

    (void)state;
    walk_slot_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    t->n_copies = CEIL_DIV(WALKED, 8);
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(last_size.used, last_size.pitch);

    t = hand_batch(&h, 0);
    hand_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 2, 0, /* after= */ false);
    t->n_copies = CEIL_DIV(WALKED, 8);
    for (uint32_t i = 0; i < t->n_copies; i++)
        t->copy[i].n_tokens = (uint16_t)MIN(WALKED - 8 * i, 8u);
    n_launches = 0;
    assert_true(next_of(t, 2, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 1); /* as many of each as of the one with most */
    assert_int_equal(last_size.used, last_size.pitch);

    t = hand_batch(&h, 0);
    t->copy[t->n_copies++] = (struct kv_copy){ .from = hand_block(&h, 0, 0, 2),
                                               .to = hand_block(&h, 0, 3, 2),
                                               .n_tokens = WALKED % 8 };
    edit_row(t, 3, 0);
    edit_entry(t, 3, 2, hand_block(&h, 0, 3, 2));
    assert_true(next_of(t, 3, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(last_size.used, last_size.pitch / 8 * (WALKED % 8));
    hand_close(&h);
}

/* A block may be given back and taken again within a batch: read for one copy, written by the next.
 * */
static void
block_copies_are_done_in_order(void **state)
{
    struct batch *t;

    (void)state;
    walk_slot_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    hand_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 1, 0, /* after= */ false);
    copy_blocks(t, 2, 1, /* after= */ false);
    copy_blocks(t, 1, 3, /* after= */ false); /* nothing was ever written there */
    assert_true(next_of(t, 2, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 3);
    hand_close(&h);
}

static void
a_copy_that_comes_after_the_step_has_what_the_step_wrote(void **state)
{
    struct batch *t;
    float next;

    (void)state;
    walk_slot_0();
    t = hand_batch(&h, 0);
    hand_edits(&h, t, 1, WALKED_TO);
    hand_edits(&h, t, 2, WALKED_TO);
    copy_blocks(t, 2, 1, /* after= */ true);
    copy_blocks(t, 1, 0, /* after= */ false);
    h.slot[0].token[WALKED] ^= 1; /* slot 1 writes another one's K and V there */
    next_of(t, 1, WALKED);
    next = next_of(hand_batch(&h, 0), 1, WALKED + 1);
    assert_true(next_of(hand_batch(&h, 0), 2, WALKED + 1) == next);
    assert_true(next != h.slot[0].logprob[WALKED + 2]);
    hand_close(&h);
}

/* Saved and given to another within one batch, fetched and saved again within the next. */
static void
blocks_go_to_the_host_and_come_back_as_they_were(void **state)
{
    const uint32_t n = CEIL_DIV(WALKED_TO, 8);
    struct batch *t;
    uint32_t block;

    (void)state;
    walk_slot_0();
    block = h.kv.group[0].n_layers * h.kv.group[0].n_parts;
    assert_true((uint64_t)2 * n * block * h.kv.group[0].slice_bytes <= HAND_HOST);
    t = hand_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++) {
        t->copy[t->n_copies++] = (struct kv_copy){ .to_tier = TIER_HOST,
                                                   .from = hand_block(&h, 0, 0, i),
                                                   .to = i * block };
        t->copy[t->n_copies++] = (struct kv_copy){ .from = hand_block(&h, 0, 3, i),
                                                   .to = hand_block(&h, 0, 0, i) };
    }
    hand_edits(&h, t, 1, WALKED_TO);
    hand_edits(&h, t, 2, WALKED_TO);
    next_of(t, 2, WALKED);
    assert_int_equal(n_launches, 2); /* all that is saved, then what is written there */
    t = hand_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++) {
        t->copy[t->n_copies++] = (struct kv_copy){ .from_tier = TIER_HOST,
                                                   .from = i * block,
                                                   .to = hand_block(&h, 0, 1, i) };
        t->copy[t->n_copies++] = (struct kv_copy){ .to_tier = TIER_HOST,
                                                   .after = true,
                                                   .from = hand_block(&h, 0, 1, i),
                                                   .to = (n + i) * block };
    }
    assert_true(next_of(t, 1, WALKED) == h.slot[0].logprob[WALKED + 1]);
    assert_int_equal(n_launches, 4);
    assert_true(next_of(hand_batch(&h, 0), 0, WALKED) != h.slot[0].logprob[WALKED + 1]);
    t = hand_batch(&h, 0);
    for (uint32_t i = 0; i < n; i++)
        t->copy[t->n_copies++] = (struct kv_copy){ .from_tier = TIER_HOST,
                                                   .from = (n + i) * block,
                                                   .to = hand_block(&h, 0, 0, i) };
    assert_true(next_of(t, 0, WALKED + 1) == h.slot[0].logprob[WALKED + 2]);
    hand_close(&h);
}

static void
a_result_stays_through_one_more_start(void **state)
{
    const struct batch_result *r;
    struct err e = { 0 };
    token_id token;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    sit(0, 1, 1);
    exec_set_sampling(h.x, 0, &h.slot[0].how);
    for (uint32_t k = 0; k < 4; k++) {
        struct batch *t = hand_batch(&h, 0);

        hand_edits(&h, t, 0, 1 + k);
        t->token[0] = k ? TOKEN_FROM_LAST : 4;
        t->pos[0] = (int32_t)k;
        t->segment[0] = (struct batch_segment){ .n_tokens = 1,
                                                .first_pos = t->pos[0],
                                                .flags = SEGMENT_SAMPLE };
        t->n_tokens = t->n_segments = t->n_logits = 1;
        if (k == 2) {
            r = hand_finish(&h, 0);
            token = r->token[0];
        }
        if (k == 3) hand_finish(&h, 0);
        assert_int_equal(exec_start(h.x, t, &e), 0);
        h.started[0]++;
        if (k == 2) {
            assert_int_equal(r->step, 1);
            assert_int_equal(r->token[0], token);
        }
    }
    hand_finish(&h, 0);
    hand_finish(&h, 0);
    assert_int_equal(exec_finish(h.x, 0, &r), -EAGAIN);
    hand_close(&h);
}

static const struct arch *real;
static struct look {
    uint32_t n_single_token, n_segments;
    struct segment segment[HAND_SLOTS];
} look[64];
static unsigned n_looks;

/* The family's, after the runs that it is given were copied to where they can be looked at
 * afterwards. */
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
a_step_says_how_many_runs_of_one_row_come_first(void **state)
{
    struct arch looking;
    unsigned n_mixed = 0;

    (void)state;
    open_model(LLAMA, (struct hand_options){ .max_tokens = 16 });
    real = h.m->arch;
    looking = *real;
    looking.forward = forward_looking;
    h.m->arch = &looking;
    for (uint32_t i = 0; i < 6; i++) sit(i, 1 + 7 * i, 12);
    n_looks = 0;
    hand_run(&h);
    hand_close(&h);
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

static uint32_t n_short, n_none; /* steps whose last layer ends with fewer rows, and with none */

static int
forward_counting_few(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    n_short += s->few != NULL;
    n_none += s->few && !s->n_logit_rows;
    return real->forward(m, s, first, n);
}

static void
rows_that_nobody_draws_from_end_in_the_last_layer_and_change_nothing(void **state)
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

            open_model(config[i], (struct hand_options){ .max_tokens = 24 });
            real = h.m->arch;
            assert_true(real->ends_with_logit_rows);
            arch = *real;
            arch.ends_with_logit_rows = few;
            arch.forward = forward_counting_few;
            h.m->arch = &arch;
            for (uint32_t k = 0; k < 6; k++) {
                struct hand_slot *slot = sit(k, 86 - 17 * k, 12);

                slot->late = 3 * k;
                slot->how.temperature = 0.8f;
            }
            h.slot[2].all = true;
            n_short = n_none = 0;
            hand_run(&h);
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
what_is_not_there_yet_is_refused_by_name(void **state)
{
    struct batch *t;

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    t = hand_batch(&h, 0);
    t->n_tokens = t->n_segments = t->n_logits = 1;
    t->token[0] = t->pos[0] = 0;
    t->segment[0] = (struct batch_segment){ .n_tokens = 1, .flags = SEGMENT_SAMPLE, .n_draft = 1 };
    refuses(t, "draft");
    t->segment[0].n_draft = 0;
    t->n_copies = HAND_SLOTS * MAX_GROUPS + 1;
    refuses(t, "copies");
    hand_close(&h);
}

static void
another_kv_dtype_than_the_groups_were_made_for_is_a_sentence(void **state)
{
    struct exec_config c = { .max_tokens = 4, .max_seqs = 1, .n_lanes = 1, .kv_dtype = DT_BF16 };
    struct exec *x = NULL;
    struct err e = { 0 };

    (void)state;
    open_model(LLAMA, (struct hand_options){ 0 });
    assert_int_equal(exec_open(&x, &c, h.gpu, h.m, &h.kv, &e), -EINVAL);
    assert_non_null(strstr(e.text, "bf16"));
    hand_close(&h);
}

static void
stepping_allocates_nothing(void **state)
{
    void *volatile seen;

    (void)state;
    open_model(T5, (struct hand_options){ .twice = true, .n_lanes = 2, .enc_layers = 2 });
    for (uint32_t i = 0; i < 6; i++) {
        struct hand_slot *s = sit(i, 20, 20);

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
    hand_run(&h);
    counting = false;
    assert_int_equal(n_allocations, 0);
    counting = true;
    seen = malloc(1);
    counting = false;
    free(seen);
    assert_int_equal(n_allocations, 1); /* so it would have been seen */
    hand_close(&h);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_out_give_what_one_at_a_time_gives),
        cmocka_unit_test(an_encoder_in_layer_slices_gives_what_it_gives_whole),
        cmocka_unit_test(another_source_gives_other_tokens),
        cmocka_unit_test(forced_tokens_come_first_and_last_whatever_the_logits),
        cmocka_unit_test(end_tokens_do_not_come_before_the_minimum),
        cmocka_unit_test(a_repetition_penalty_counts_prompt_and_generated_tokens),
        cmocka_unit_test(a_drawn_token_depends_on_seed_output_and_position_alone),
        cmocka_unit_test(noise_is_another_at_every_position),
        cmocka_unit_test(log_probabilities_of_a_long_prompt_come_in_pieces),
        cmocka_unit_test(a_slot_moves_to_another_lane_behind_the_step_it_waits_for),
        cmocka_unit_test(
            a_step_of_ranks_waits_for_other_lanes_steps_on_its_units_and_for_no_others),
        cmocka_unit_test(a_slot_with_a_copied_table_row_reads_the_same_blocks),
        cmocka_unit_test(what_is_written_into_a_copied_block_is_not_seen_in_the_other),
        cmocka_unit_test(of_a_block_no_more_is_copied_than_its_tokens_that_count),
        cmocka_unit_test(block_copies_are_done_in_order),
        cmocka_unit_test(a_copy_that_comes_after_the_step_has_what_the_step_wrote),
        cmocka_unit_test(blocks_go_to_the_host_and_come_back_as_they_were),
        cmocka_unit_test(a_result_stays_through_one_more_start),
        cmocka_unit_test(a_step_says_how_many_runs_of_one_row_come_first),
        cmocka_unit_test(rows_that_nobody_draws_from_end_in_the_last_layer_and_change_nothing),
        cmocka_unit_test(what_is_not_there_yet_is_refused_by_name),
        cmocka_unit_test(another_kv_dtype_than_the_groups_were_made_for_is_a_sentence),
        cmocka_unit_test(stepping_allocates_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
