/* test_fork.c - forked and reordered slots: shared blocks, and each slot reads its own tokens. */
#include "tests/kv/kv_fixture.h"

enum { BEAMS = 4, BLOCK = 4, LENGTH = 100, EDITS = 4096, UNITS = 4096 };

/* Beams on a simulated device: the token at each position of each block. */
struct search {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t slot[BEAMS], n, source;
    uint32_t token[BEAMS][LENGTH];           /* expected tokens of each beam */
    slice_id row[MAX_GROUPS][BEAMS][LENGTH]; /* as the edits set them */
    uint32_t holds[UNITS][BLOCK];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[64];
    struct kv_out out;
    uint64_t step;
};

static void
open_search(struct search *s, uint32_t n_groups)
{
    static const struct kv_group groups[] = { { .kind = KV_FULL, .n_layers = 1 },
                                              { .kind = KV_WINDOW, .window = 9, .n_layers = 1 },
                                              { .kind = KV_CROSS, .n_layers = 2 } };
    struct err e;

    memset(s, 0, sizeof *s);
    memset(s->row, 0xff, sizeof s->row);
    s->c = (struct kv_config){ .n_slots = BEAMS,
                               .n_lanes = 1,
                               .n_groups = n_groups,
                               .tokens_per_block = BLOCK,
                               .arena_bytes = 400 * 512 };
    for (uint32_t g = 0; g < n_groups; g++) {
        s->c.group[g] = group(groups[g].kind, groups[g].window, 0);
        s->c.group[g].n_layers = groups[g].n_layers;
    }
    s->mem = calloc(1, kv_bytes(&s->c));
    s->kv = kv_init(s->mem, &s->c, &e);
    assert_non_null(s->kv);
    for (uint32_t i = 0; i < BEAMS; i++) s->slot[i] = i;
    s->out =
        (struct kv_out){ .edit = s->edit, .max_edits = EDITS, .copy = s->copy, .max_copies = 64 };
}

static void
close_search(struct search *s)
{
    for (uint32_t i = 0; i < BEAMS; i++) kv_drop(s->kv, i);
    kv_check(s->kv);
    free(s->mem);
}

static uint32_t
used(const struct search *s)
{
    struct kv_count n;
    uint32_t sum = 0;

    for (uint32_t p = 0; p < kv_n_pools(s->kv); p++) {
        kv_count(s->kv, p, &n);
        sum += n.used;
    }
    return sum;
}

/* Returns the index of a simulated block; all slices have one size. */
static uint32_t *
holds(struct search *s, uint32_t at)
{
    assert_in_range(at, 0, UNITS - 1);
    return s->holds[at];
}

/* Applies copies, then edits, as the device does before a step's work. */
static void
apply(struct search *s)
{
    for (uint32_t i = 0; i < s->out.n_copies; i++) {
        const struct kv_copy *c = &s->copy[i];
        uint32_t *to = holds(s, c->to), *from = holds(s, c->from);

        for (uint32_t k = 0; k < BLOCK; k++) to[k] = k < c->n_tokens ? from[k] : 0;
    }
    for (uint32_t i = 0; i < s->out.n_edits; i++) {
        const struct kv_edit *e = &s->edit[i];

        assert_int_equal(e->op, EDIT_SET);
        s->row[e->group][e->slot][e->entry] = e->at;
    }
    s->out.n_edits = s->out.n_copies = 0;
    kv_check(s->kv);
}

/* Asserts that the beam reads its own tokens at every visible position. */
static void
look(struct search *s, uint32_t beam)
{
    for (uint32_t g = 0; g < s->c.n_groups; g++) {
        const struct kv_group *k = &s->c.group[g];
        uint32_t from = k->kind == KV_WINDOW && s->n >= k->window ? s->n - k->window + 1 : 0;

        if (k->kind == KV_CROSS) continue;
        for (uint32_t pos = from; pos < s->n; pos++)
            assert_int_equal(holds(s, s->row[g][beam][pos / BLOCK])[pos % BLOCK],
                             s->token[beam][pos]);
    }
}

/* Writes positions first .. end - 1 of a beam. */
static void
compute(struct search *s, uint32_t beam, uint32_t first, uint32_t end)
{
    kv_trim(s->kv, beam, first, &s->out);
    kv_grow(s->kv, 0, beam, end, &s->out);
    kv_fence(s->kv, beam, 0, s->step);
    apply(s);
    for (uint32_t g = 0; g < s->c.n_groups; g++)
        for (uint32_t pos = first; s->c.group[g].kind != KV_CROSS && pos < end; pos++)
            holds(s, s->row[g][beam][pos / BLOCK])[pos % BLOCK] = s->token[beam][pos];
}

static void
begin(struct search *s, uint32_t n_prompt, uint32_t len, uint32_t source)
{
    struct kv_need need = kv_need(s->kv, len, source, n_prompt);

    s->step = 1;
    assert_int_equal(kv_reserve(s->kv, 0, &need), 0);
    need = kv_fork_need(s->kv, len, n_prompt, 1, /* beam= */ true);
    for (uint32_t i = 1; i < BEAMS; i++) assert_int_equal(kv_reserve(s->kv, i, &need), 0);
    kv_cross(s->kv, 0, 0, source, &s->out);
    for (uint32_t i = 0; i < n_prompt; i++) s->token[0][i] = 1000 + i;
    compute(s, 0, 0, n_prompt);
    s->n = n_prompt;
    s->step++;
    for (uint32_t i = 1; i < BEAMS; i++) {
        memcpy(s->token[i], s->token[0], sizeof s->token[0]);
        kv_fork(s->kv, 0, s->step, 0, i, n_prompt, n_prompt, &s->out);
        apply(s);
    }
    for (uint32_t i = 0; i < BEAMS; i++) look(s, i);
}

static void
beams_share_full_blocks_and_the_encoder_input(void **state) /* K-13 */
{
    struct search s;

    (void)state;
    open_search(&s, 1);
    begin(&s, 9, 20, 0);
    assert_int_equal(used(&s), 6);
    close_search(&s);
    open_search(&s, 1);
    begin(&s, 8, 20, 0);
    assert_int_equal(used(&s), 2);
    close_search(&s);
    open_search(&s, 3);
    begin(&s, 8, 20, 9);
    assert_int_equal(used(&s), 2 + 2 + 3);
    assert_int_equal(kv_entry(s.kv, 0, 2, 2), kv_entry(s.kv, 3, 2, 2));
    close_search(&s);
}

static void
each_beam_reads_its_own_tokens_after_any_reorder(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t prompt = 1 + test_below(15);
        struct search s;

        open_search(&s, 1 + test_below(3));
        begin(&s, prompt, 90, 6);
        while (s.n < 89) {
            uint32_t old[BEAMS][LENGTH];
            uint8_t parent[BEAMS];

            s.step++;
            for (uint32_t i = 0; i < BEAMS; i++) {
                s.token[i][s.n] = 1 + test_below(1000000);
                compute(&s, i, s.n, s.n + 1);
            }
            s.n++;
            s.step++;
            memcpy(old, s.token, sizeof old);
            for (uint32_t i = 0; i < BEAMS; i++) {
                parent[i] = (uint8_t)test_below(BEAMS);
                memcpy(s.token[i], old[parent[i]], sizeof old[0]);
            }
            kv_reorder(s.kv, 0, s.step, s.slot, parent, BEAMS, s.n, &s.out);
            apply(&s);
            for (uint32_t i = 0; i < BEAMS; i++) look(&s, i);
            kv_done(s.kv, 0, s.step);
        }
        close_search(&s);
    }
}

/* Parents as sched/beam_search.c places them: a parent continues itself. A crash leaves the reorder
 * half done: the tables of some slots, no copies, and a partly written block at a copy's
 * destination. */
static void
repeated_reorder_gives_the_same_result_after_a_crash(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        struct search s;

        open_search(&s, 1 + test_below(3));
        begin(&s, 1 + test_below(15), 90, 6);
        while (s.n < 89) {
            uint8_t parent[BEAMS];

            s.step++;
            for (uint32_t i = 0; i < BEAMS; i++) {
                s.token[i][s.n] = 1 + test_below(1000000);
                compute(&s, i, s.n, s.n + 1);
            }
            s.n++;
            for (uint32_t i = 0; i < BEAMS; i++) parent[i] = (uint8_t)i;
            for (uint32_t i = 0, to = test_below(BEAMS); i < BEAMS; i++)
                if (i != to && test_below(2)) parent[i] = (uint8_t)to;
            for (uint32_t i = 0; i < BEAMS; i++)
                if (parent[i] != i) memcpy(s.token[i], s.token[parent[i]], sizeof s.token[0]);
            s.step++;
            kv_reorder(s.kv, 0, s.step, s.slot, parent, BEAMS, s.n, &s.out);
            for (uint32_t i = 0; i < s.out.n_copies; i++)
                memset(holds(&s, s.copy[i].to), 0xee, BLOCK * sizeof(uint32_t));
            s.out.n_copies = 0;
            apply(&s);
            s.step++;
            kv_reorder(s.kv, 0, s.step, s.slot, parent, BEAMS, s.n, &s.out);
            apply(&s);
            for (uint32_t i = 0; i < BEAMS; i++) look(&s, i);
            kv_done(s.kv, 0, s.step);
        }
        close_search(&s);
    }
}

static void
reorder_cost_depends_on_changed_blocks_only(void **state)
{
    static const uint8_t same[BEAMS] = { 2, 2, 2, 2 };
    struct search s;

    (void)state;
    open_search(&s, 1);
    begin(&s, 81, 90, 0);
    s.step++;
    kv_reorder(s.kv, 0, s.step, s.slot, same, BEAMS, 81, &s.out);
    assert_in_range(s.out.n_edits, 0, BEAMS);
    assert_int_equal(s.out.n_copies, BEAMS - 1);
    apply(&s);
    close_search(&s);
}

static void
beams_reserve_the_blocks_they_do_not_share(void **state)
{
    struct kv_need need, fork;
    struct search s;
    struct kv_count n;

    (void)state;
    open_search(&s, 1);
    kv_count(s.kv, 0, &n);
    s.kv = (free(s.mem), NULL);
    s.c.arena_bytes = 256 * (1 + 10 + 3 * 3); /* scratch; 40 positions; 12 more per further beam */
    s.c.slab_bytes = 0;
    s.mem = calloc(1, kv_bytes(&s.c));
    s.kv = kv_init(s.mem, &s.c, &(struct err){ 0 });
    need = kv_need(s.kv, 40, 0, 28);
    fork = kv_fork_need(s.kv, 40, 28, 1, /* beam= */ true);
    assert_int_equal(kv_reserve(s.kv, 0, &need), 0);
    for (uint32_t i = 1; i < BEAMS; i++) assert_int_equal(kv_reserve(s.kv, i, &fork), 0);
    kv_check(s.kv);
    for (uint32_t i = 0; i < BEAMS; i++) kv_drop(s.kv, i);
    free(s.mem);
    open_search(&s, 1);
    begin(&s, 28, 40, 0);
    for (s.n = 28; s.n < 40; s.n++, s.step++)
        for (uint32_t i = 0; i < BEAMS; i++) compute(&s, i, s.n, s.n + 1);
    assert_int_equal(used(&s), 7 + 4 * 3);
    close_search(&s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beams_share_full_blocks_and_the_encoder_input),
        cmocka_unit_test(each_beam_reads_its_own_tokens_after_any_reorder),
        cmocka_unit_test(repeated_reorder_gives_the_same_result_after_a_crash),
        cmocka_unit_test(reorder_cost_depends_on_changed_blocks_only),
        cmocka_unit_test(beams_reserve_the_blocks_they_do_not_share),
    };

    test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
