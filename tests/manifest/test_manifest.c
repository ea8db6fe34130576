/* test_manifest.c - writing a manifest, and adopting or rejecting one of the previous worker. */
#include "tests/test.h"

#include "worker/kv/kv_reuse.h"
#include "worker/manifest/manifest.h"

enum { SLOTS = 4, ENTRIES = 16, BLOCK = 4, EDITS = 256 };
static const uint64_t fingerprint[2] = { 11, 12 }, kv_id[2] = { 21, 22 };
static const token_id prompt[] = { 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
static const token_id source[] = { 1, 2, 3, 4, 5 };

/* A full, a window and a cross group; the first two have one block size. */
struct site {
    struct kv_config c;
    struct kv *kv;
    struct manifest m;
    void *memory;
    struct manifest_found found[SLOTS];
    struct manifest_adopted adopted;
    bool reuse, host, small;
};

static void
open_kv(struct site *s)
{
    static const struct kv_group groups[] = {
        { .kind = KV_FULL, .n_layers = 1, .n_parts = 2, .slice_bytes = 128 },
        { .kind = KV_WINDOW, .window = 6, .n_layers = 1, .n_parts = 2, .slice_bytes = 128 },
        { .kind = KV_CROSS, .n_layers = 2, .n_parts = 2, .slice_bytes = 128 },
    };
    struct err e;

    s->c = (struct kv_config){ .n_groups = ARRAY_LEN(groups),
                               .n_slots = SLOTS,
                               .n_lanes = 1,
                               .tokens_per_block = BLOCK,
                               .slab_bytes = 1024,
                               .arena_bytes = (s->small ? 7 : 64) * 1024,
                               .host_bytes = s->host ? 64 * 512 : 0,
                               .reuse = s->reuse };
    for (uint32_t g = 0; g < ARRAY_LEN(groups); g++) {
        s->c.group[g] = groups[g];
        s->c.group[g].max_entries = ENTRIES;
    }
    s->kv = kv_init(calloc(1, kv_bytes(&s->c)), &s->c, &e);
    assert_non_null(s->kv);
}

/* Opens a site with the flags of *s; the rest of *s is 0. */
static void
open_site(struct site *s)
{
    open_kv(s);
    s->memory = calloc(1, manifest_bytes(&s->c));
    manifest_make(&s->m, s->memory, &s->c, fingerprint, kv_id);
}

static void
close_site(struct site *s)
{
    free(s->kv);
    free(s->memory);
    memset(s, 0, sizeof *s);
}

/* A test whose body has `s`, an open site. Flags of struct site may follow the name. */
#define SITE_TEST(name, ...) \
    static void name##_body(struct site *s); \
    static void name(void **state) \
    { \
        struct site s = { __VA_ARGS__ }; \
\
        (void)state; \
        open_site(&s); \
        name##_body(&s); \
        close_site(&s); \
    } \
    static void name##_body(struct site *s)

/* Runs the slot's next step: positions first .. end - 1. */
static void
step(struct site *s, uint32_t slot, uint32_t first, uint32_t end, bool done)
{
    static struct kv_edit edits[EDITS];
    struct kv_out out = { .edit = edits, .max_edits = EDITS };
    struct manifest_owner o = {
        .slot = slot, .id = 100 + slot, .n_cross = ARRAY_LEN(source), .n_tokens = 4
    };
    struct kv_need need = kv_need(s->kv, 40, ARRAY_LEN(source), 12);

    manifest_hash(prompt, o.n_tokens, o.tokens_hash);
    manifest_hash(source, o.n_cross, o.source_hash);
    kv_ends(s->kv, 0, &out);
    kv_ends_sent(s->kv, 0, end);
    if (first == 0) {
        assert_int_equal(kv_reserve(s->kv, slot, &need), 0);
        kv_cross(s->kv, 0, slot, ARRAY_LEN(source), &out);
    }
    kv_trim(s->kv, slot, first, &out);
    kv_grow(s->kv, 0, slot, end, &out);
    manifest_launch(&s->m, edits, out.n_edits, &o, first == 0);
    if (done) manifest_commit(&s->m, slot, end);
}

/* A replacement opens the manifest. Returns the number of adopted entries. */
static uint32_t
next_process(struct site *s)
{
    slice_id tables[3 * ENTRIES + 64];
    struct err e;
    uint32_t n;

    free(s->kv);
    open_kv(s);
    assert_int_equal(
        manifest_open(&s->m, s->memory, manifest_bytes(&s->c), &s->c, fingerprint, kv_id, &e), 0);
    s->adopted = manifest_adopt(&s->m, s->kv, true, s->found, tables);
    n = s->adopted.rows;
    kv_check(s->kv);
    return n;
}

static struct manifest_entry *
row(const struct site *s, uint32_t slot)
{
    return (void *)((char *)s->memory + s->m.h.row_at + (size_t)slot * s->m.h.row_bytes);
}

static _Atomic uint32_t *
entry(const struct site *s, uint32_t slot, uint32_t group, uint32_t i)
{
    return (_Atomic uint32_t *)(void *)((char *)row(s, slot) + s->m.h.group[group].table_at) + i;
}

SITE_TEST(adopted_slot_holds_the_same_blocks)
{
    slice_id before[3][ENTRIES];
    uint32_t first, resume;

    step(s, 1, 0, 6, true);
    step(s, 3, 0, 9, true);
    step(s, 1, 6, 11, true);
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < ENTRIES; i++) before[g][i] = kv_entry(s->kv, 1, g, i);
    assert_int_equal(next_process(s), 2);
    assert_int_equal(s->adopted.no_rows, 0);
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = 0; i < ENTRIES; i++)
            assert_int_equal(kv_entry(s->kv, 1, g, i), before[g][i]);
    assert_int_equal(kv_held(s->kv, 1, 0, &first), 3);
    assert_int_equal(kv_held(s->kv, 1, 2, &first), 2); /* the encoder input's: no encoder run */
    assert_int_equal(manifest_claim(s->found, SLOTS, 101, 0, prompt, 12, source, 5, &resume), 1);
    assert_int_equal(resume, 11);
    assert_int_equal(manifest_claim(s->found, SLOTS, 101, 0, prompt, 12, source, 5, &resume),
                     -ENOENT);
    assert_int_equal(manifest_claim(s->found, SLOTS, 103, 0, prompt, 8, source, 5, &resume), 3);
    assert_int_equal(resume, 7); /* all is committed: the last token is computed again */
}

SITE_TEST(entry_of_other_tokens_or_encoder_input_is_not_resumed)
{
    static const token_id others[] = { 5, 6, 7, 9, 9, 10 };
    uint32_t resume;

    for (uint32_t slot = 0; slot < SLOTS; slot++) step(s, slot, 0, 6, true);
    assert_int_equal(next_process(s), SLOTS);
    assert_int_equal(manifest_claim(s->found, SLOTS, 100, 0, others, 6, source, 5, &resume), 0);
    assert_int_equal(resume, 0);
    assert_int_equal(manifest_claim(s->found, SLOTS, 101, 0, prompt, 6, source, 4, &resume), 1);
    assert_int_equal(resume, 0);
    assert_int_equal(manifest_claim(s->found, SLOTS, 102, 0, prompt, 3, source, 5, &resume), 2);
    assert_int_equal(resume, 0);
    assert_int_equal(manifest_claim(s->found, SLOTS, 103, 0, prompt, 4, others, 5, &resume), 3);
    assert_int_equal(resume, 0);
}

SITE_TEST(edited_or_uncommitted_entries_are_not_adopted)
{
    struct kv_count n;

    step(s, 0, 0, 6, true);
    step(s, 1, 0, 6, false);
    row(s, 0)->seq++;
    assert_int_equal(next_process(s), 0);
    assert_int_equal(s->adopted.no_rows, 0);
    kv_count(s->kv, 0, &n);
    assert_int_equal(n.used, 0);
    assert_int_equal(row(s, 0)->id, 0); /* cleared before its blocks are reused */
    assert_int_equal(row(s, 1)->id, 0);
    assert_int_equal(row(s, 0)->seq & 1, 0);
}

SITE_TEST(dropped_slot_leaves_the_manifest_with_the_next_step)
{
    step(s, 0, 0, 6, true);
    kv_drop(s->kv, 0);
    assert_int_equal(row(s, 0)->id, 100);
    step(s, 2, 0, 2, true);
    assert_int_equal(row(s, 0)->id, 0);
    assert_int_equal(next_process(s), 1);
}

/* Returns true if the changed entry of slot 1 is rejected and slot 0 is adopted. */
static void
refused(struct site *s, const char *what)
{
    uint32_t n = next_process(s);

    if (n != 1 || s->adopted.no_rows != 1 || s->found[0].owner.id != 100 || s->found[1].owner.id)
        fail_msg("%s: %u rows adopted, %u refused", what, n, s->adopted.no_rows);
    close_site(s);
    open_site(s);
    step(s, 0, 0, 10, true);
    step(s, 1, 0, 10, true);
}

/* Slots 1 and 3 are the beams of request 7. */
static void
open_beams(struct site *s, uint32_t committed)
{
    open_site(s);
    for (uint32_t slot = 1; slot < 4; slot += 2) {
        struct manifest_owner o = {
            .slot = slot, .id = 7, .n_cross = 5, .n_tokens = 4, .member = slot / 2, .n_beams = 2
        };

        step(s, slot, 0, committed, true);
        manifest_hash(prompt, 4, o.tokens_hash);
        manifest_hash(source, 5, o.source_hash);
        manifest_launch(&s->m, NULL, 0, &o, 1);
        /* as before the change of owner */
        for (uint32_t g = 0; g < 3; g++) {
            uint32_t first, n = kv_held(s->kv, slot, g, &first);

            for (uint32_t i = 0; i < n; i++) *entry(s, slot, g, i) = kv_entry(s->kv, slot, g, i);
            row(s, slot)->end[g] = n;
        }
        manifest_commit(&s->m, slot, committed);
    }
}

static void
beam_search_is_adopted_whole_or_not_at_all(void **state)
{
    const uint32_t beams[] = { 1, 3 };
    const struct manifest_move decision[2][2] = {
        { { 5, -1, -0.5f, 0, 0, 0 }, { 6, 9, -0.7f, -2, 0, 1 } },
        { { 3, -1, -1.5f, 0, 1, 0 }, { 4, -1, -1.7f, 0, 1, 0 } }
    };
    struct manifest_move got[2];
    uint32_t slot[2];
    struct site s = { 0 };

    (void)state;
    for (int lacks = 0; lacks < 5; lacks++) {
        bool whole = lacks == 0;

        open_beams(&s, 5);
        for (uint32_t i = 0; i < 2; i++) manifest_put_decision(&s.m, beams, 2, i, decision[i]);
        manifest_put_decision(&s.m, beams, 2, 3, decision[0]); /* not the next one */
        if (lacks == 1) row(&s, 3)->seq++;                     /* being edited */
        if (lacks == 2) manifest_commit(&s.m, 3, 4);
        if (lacks == 3) row(&s, 3)->member = 0;
        if (lacks == 4) row(&s, 1)->n_decisions = 0;
        next_process(&s);
        assert_int_equal(manifest_claim_search(s.found, SLOTS, 7, 2, prompt, 4, source, 5, slot),
                         whole ? 2 : 0);
        if (whole) assert_memory_equal(slot, beams, sizeof beams);
        for (uint32_t i = 0; i < 2 && whole; i++) {
            manifest_decision(&s.m, slot, 2, i, got);
            for (uint32_t k = 0; k < 2; k++) {
                assert_int_equal(got[k].token, decision[i][k].token);
                assert_int_equal(got[k].ended_token, decision[i][k].ended_token);
                assert_int_equal(got[k].slot, decision[i][k].slot);
                assert_int_equal(got[k].ended_slot, decision[i][k].ended_slot);
                assert_true(got[k].score == decision[i][k].score);
                assert_true(got[k].ended_score == decision[i][k].ended_score);
            }
        }
        assert_int_equal(manifest_claim_search(s.found, SLOTS, 7, 2, prompt, 4, source, 5, slot),
                         0);
        assert_int_equal(manifest_forget(s.found, SLOTS, 7), whole ? -ENOENT : 1);
        close_site(&s);
    }
}

static void
restarted_beam_search_drops_the_old_decisions(void **state)
{
    const uint32_t beams[] = { 1, 3 };
    const struct manifest_move move[2] = { { 5, -1, -0.5f, 0, 0, 0 }, { 6, -1, -0.7f, 0, 0, 0 } };
    uint32_t slot[2];
    struct site s = { 0 };

    (void)state;
    open_beams(&s, 5);
    for (uint32_t i = 0; i < 2; i++) manifest_put_decision(&s.m, beams, 2, i, move);
    manifest_drop_decisions(&s.m, beams[0]);
    manifest_put_decision(&s.m, beams, 2, 2, move); /* the next one of the old search */
    assert_int_equal(row(&s, beams[0])->n_decisions, 0);
    manifest_put_decision(&s.m, beams, 2, 0, move);
    next_process(&s);
    assert_int_equal(manifest_claim_search(s.found, SLOTS, 7, 2, prompt, 4, source, 5, slot), 1);
    close_site(&s);
}

SITE_TEST(invalid_entries_are_rejected_whole)
{
    uint32_t at;

    step(s, 0, 0, 10, true);
    step(s, 1, 0, 10, true);
    *entry(s, 1, 0, 1) = *entry(s, 0, 0, 1);
    refused(s, "a block that is another row's");
    *entry(s, 1, 0, 1) = *entry(s, 1, 0, 0);
    refused(s, "a block that stands twice in a row");
    *entry(s, 1, 0, 0) = *entry(s, 1, 1, 0);
    refused(s, "a block that is in two groups");
    *entry(s, 1, 0, 2) = (uint32_t)(s->c.arena_bytes / 128);
    refused(s, "a block beyond the arena");
    at = *entry(s, 1, 0, 2);
    *entry(s, 1, 0, 2) = at + 1;
    refused(s, "half a block");
    *entry(s, 1, 0, 2) = *entry(s, 1, 2, 0);
    refused(s, "a block of another pool's slab");
    *entry(s, 1, 0, 2) = SLICE_NONE;
    refused(s, "a hole");
    *entry(s, 1, 0, 0) = kv_scratch(s->kv, 0);
    refused(s, "the block for padding");
    row(s, 1)->committed = 13;
    refused(s, "more written than there are blocks");
    row(s, 1)->end[0] = ENTRIES + 1;
    refused(s, "more blocks than a row has");
    row(s, 1)->end[1] = 2;
    refused(s, "a group that is shorter");
    row(s, 1)->first[0] = 1;
    refused(s, "a start that only a window may drop");
    row(s, 1)->first[1] = 2;
    refused(s, "a window that has gone too far");
    row(s, 1)->n_cross = 9;
    refused(s, "a source without its blocks");
}

SITE_TEST(manifest_of_another_model_arena_or_geometry_is_rejected)
{
    static const uint64_t other[2] = { 11, 13 };
    struct kv_config c;
    uint64_t bytes;
    struct err e;

    bytes = manifest_bytes(&s->c);
    assert_int_equal(manifest_open(&s->m, s->memory, bytes, &s->c, other, kv_id, &e), -EBADMSG);
    assert_int_equal(manifest_open(&s->m, s->memory, bytes, &s->c, fingerprint, other, &e),
                     -EBADMSG);
    assert_int_equal(manifest_open(&s->m, s->memory, bytes - 1, &s->c, fingerprint, kv_id, &e),
                     -EBADMSG);
    assert_int_equal(manifest_open(&s->m, s->memory, 100, &s->c, fingerprint, kv_id, &e), -EBADMSG);
    for (int i = 0; i < 5; i++) {
        c = s->c;
        if (i == 0) c.arena_bytes += c.slab_bytes;
        if (i == 1) c.tokens_per_block *= 2;
        if (i == 2) c.group[1].window++;
        if (i == 3) c.group[2].n_layers++;
        if (i == 4) c.n_groups--;
        assert_int_equal(manifest_open(&s->m, s->memory, bytes, &c, fingerprint, kv_id, &e),
                         -EBADMSG);
    }
    s->c.group[1].sinks = 1;
    bytes = manifest_bytes(&s->c);
    manifest_make(&s->m, s->memory, &s->c, fingerprint, kv_id);
    assert_int_equal(manifest_open(&s->m, s->memory, bytes, &s->c, fingerprint, kv_id, &e), 0);
    c = s->c;
    c.group[1].sinks = 2; /* equal blocks, other attention */
    assert_int_equal(manifest_open(&s->m, s->memory, bytes, &c, fingerprint, kv_id, &e), -EBADMSG);
    ((struct manifest_head *)s->memory)->version++;
    assert_int_equal(manifest_open(&s->m, s->memory, bytes, &s->c, fingerprint, kv_id, &e),
                     -EBADMSG);
}

SITE_TEST(adopted_slots_grow_and_other_blocks_are_free)
{
    struct kv_need need;
    static struct kv_edit edits[EDITS];
    struct kv_out out = { .edit = edits, .max_edits = EDITS };

    step(s, 0, 0, 10, true);
    step(s, 1, 0, 10, true);
    row(s, 0)->seq++;
    assert_int_equal(next_process(s), 1);
    need = kv_need(s->kv, 40, 5, 12);
    assert_int_equal(kv_resume(s->kv, 1, 3, &need), 0); /* the window is complete there */
    kv_start(s->kv, 0, 1, 1, &out);
    assert_int_equal(out.n_edits, kv_n_held(s->kv, 1));
    kv_trim(s->kv, 1, 10, &out);
    kv_grow(s->kv, 0, 1, 20, &out);
    kv_fence(s->kv, 1, 0, 1);
    manifest_launch(&s->m, edits, out.n_edits, NULL, 0);
    kv_check(s->kv);
    step(s, 0, 0, 12, true);
    kv_check(s->kv);
    assert_int_equal(next_process(s), 2);
    need = kv_need(s->kv, 40, 5, 12);
    assert_int_equal(kv_resume(s->kv, 1, 3, &need), -ENODATA); /* the window has moved */
    assert_int_equal(kv_resume(s->kv, 1, 10, &need), 0);
}

/* Admits a slot with the prompt of slot 0: it shares 2 blocks of the full group, the window blocks
 * of its next query, and the encoder input. */
static void
begin_alike(struct site *s, uint32_t slot)
{
    struct kv_text t = {
        .token = prompt, .n = ARRAY_LEN(prompt), .source = source, .n_source = ARRAY_LEN(source)
    };
    static struct kv_edit edits[EDITS];
    static struct kv_copy copies[8];
    struct kv_out out = { .edit = edits, .max_edits = EDITS, .copy = copies, .max_copies = 8 };
    struct manifest_owner o = { .slot = slot, .id = 100 + slot, .n_cross = 5, .n_tokens = 4 };
    struct kv_need need = kv_need(s->kv, 40, ARRAY_LEN(source), 12);
    struct kv_namespace space;
    struct kv_hit hit;

    kv_namespace(s->kv, 0, 0, source, ARRAY_LEN(source), &space);
    t.namespace = &space;
    kv_store(s->kv, 0, &t, 10);
    manifest_hash(prompt, o.n_tokens, o.tokens_hash);
    manifest_hash(source, o.n_cross, o.source_hash);
    assert_int_equal(kv_admit(s->kv, slot, &need, &t, &hit), 0);
    assert_int_equal(hit.n_tokens, 8);
    assert_true(hit.cross);
    kv_start(s->kv, 0, 100, slot, &out);
    kv_trim(s->kv, slot, 8, &out);
    kv_grow(s->kv, 0, slot, 12, &out);
    manifest_launch(&s->m, edits, out.n_edits, &o, 1);
    manifest_commit(&s->m, slot, 12);
}

SITE_TEST(entries_that_share_full_blocks_are_adopted, .reuse = true)
{
    uint32_t alone;

    step(s, 0, 0, 10, true);
    alone = kv_n_held(s->kv, 0);
    begin_alike(s, 1);
    assert_int_equal(next_process(s), 2);
    assert_int_equal(kv_entry(s->kv, 0, 0, 1), kv_entry(s->kv, 1, 0, 1));
    assert_int_equal(kv_entry(s->kv, 0, 2, 0), kv_entry(s->kv, 1, 2, 0));
    assert_int_equal(kv_n_held(s->kv, 0), alone);
    kv_drop(s->kv, 0);
    kv_check(s->kv);
    assert_int_equal(kv_entry(s->kv, 1, 0, 1), *entry(s, 1, 0, 1));
    kv_drop(s->kv, 1);
    kv_check(s->kv);
    /* a partial block is still written */
    *entry(s, 1, 0, 2) = *entry(s, 0, 0, 2);
    assert_int_equal(next_process(s), 1);
    assert_int_equal(s->adopted.no_rows, 1);
}

/* Returns the cached positions of a prompt of n tokens, and those in the host tier. */
static uint32_t
finds(const struct site *s, uint32_t n, uint32_t *on_host)
{
    struct kv_text t = { .token = prompt, .n = n, .source = source, .n_source = ARRAY_LEN(source) };
    struct kv_namespace space;
    struct kv_hit hit;

    kv_namespace(s->kv, 0, 0, source, ARRAY_LEN(source), &space);
    t.namespace = &space;
    kv_lookup(s->kv, &t, &hit);
    *on_host = hit.n_host[0];
    return hit.n_tokens;
}

/* Slot 0 computes 10 tokens of the prompt and is released. */
static void
compute_and_leave(struct site *s)
{
    static struct kv_edit edits[EDITS];
    struct kv_out out = { .edit = edits, .max_edits = EDITS };
    struct kv_text t = {
        .token = prompt, .n = 10, .source = source, .n_source = ARRAY_LEN(source)
    };
    struct kv_namespace space;

    s->reuse = true;
    open_site(s);
    step(s, 0, 0, 10, true);
    kv_done(s->kv, 0, 10);
    kv_namespace(s->kv, 0, 0, source, ARRAY_LEN(source), &space);
    t.namespace = &space;
    kv_release(s->kv, 0, &t, 10);
    kv_ends(s->kv, 0, &out);
    kv_ends_sent(s->kv, 0, 11);
    kv_done(s->kv, 0, 11);
    manifest_launch(&s->m, edits, out.n_edits, NULL, 0);
    manifest_put_nodes(&s->m, s->kv);
}

static struct manifest_node *
node(const struct site *s, uint32_t i)
{
    return (void *)((char *)s->memory + s->m.h.node_at + (size_t)i * s->m.h.node_bytes);
}

static _Atomic uint32_t *
place(const struct site *s, uint32_t i, uint32_t group, bool host)
{
    return (_Atomic uint32_t *)(void *)(node(s, i) + 1) + 2 * group + host;
}

/* Returns the node of the prompt's first 4 tokens. */
static uint32_t
first_node(const struct site *s)
{
    for (uint32_t i = 1; i < s->m.h.n_nodes; i++)
        if (node(s, i)->live && node(s, i)->n_tokens == BLOCK && *place(s, i, 0, false) &&
            !node(s, node(s, i)->parent)->n_tokens)
            return i;
    fail_msg("there is no such node");
    return 0;
}

static void
replacement_finds_the_same_prefixes(void **state)
{
    struct site s = { 0 };
    uint32_t on_host;

    (void)state;
    compute_and_leave(&s);
    assert_int_equal(finds(&s, 12, &on_host), 10);
    for (int death = 0; death < 3; death++) {
        next_process(&s);
        assert_int_equal(s.adopted.no_nodes, 0);
        assert_true(s.adopted.labels > 4); /* roots and blocks of prompt and encoder input */
        assert_int_equal(finds(&s, 12, &on_host), 10);
        assert_int_equal(kv_tree_n_exports(s.kv), 0); /* the manifest has it */
    }
    step(&s, 1, 0, 10, true); /* other tokens have other blocks */
    kv_check(s.kv);
    close_site(&s);
}

/* Gives all blocks to another slot; returns the number of offloaded blocks. */
static uint32_t
use_all_blocks(struct site *s, uint32_t i)
{
    static struct kv_edit edits[EDITS];
    static struct kv_copy copies[64];
    struct kv_out out = {
        .edit = edits, .max_edits = EDITS, .copy = copies, .max_copies = 64, .step = 20 + i
    };
    struct kv_need need = kv_need(s->kv, 36, 0, 36);
    uint32_t slot = 1;

    kv_drop(s->kv, slot);
    kv_ends(s->kv, 0, &out);
    kv_ends_sent(s->kv, 0, 20 + i);
    assert_int_equal(kv_reserve(s->kv, slot, &need), 0);
    kv_grow(s->kv, 0, slot, 36, &out);
    return out.n_copies;
}

static void
replacement_does_not_find_evicted_prefixes(void **state)
{
    struct site s = { .small = true };
    uint32_t on_host;

    (void)state;
    compute_and_leave(&s);
    for (uint32_t i = 1; i < 10; i++) {
        use_all_blocks(&s, i);
        kv_done(s.kv, 0, 20 + i);
    }
    assert_int_equal(finds(&s, 12, &on_host), 0);
    manifest_put_nodes(&s.m, s.kv);
    next_process(&s);
    assert_int_equal(s.adopted.no_nodes, 0);
    assert_int_equal(finds(&s, 12, &on_host), 0);
    close_site(&s);
}

static void
host_block_needs_its_copy_for_export_and_memory_for_adoption(void **state)
{
    struct site s = { .host = true, .small = true };
    slice_id tables[3 * ENTRIES + 64];
    uint32_t on_host, host_blocks = 0;
    struct err e;

    (void)state;
    compute_and_leave(&s);
    for (uint32_t i = 1; i < 10 && host_blocks == 0; i++) {
        host_blocks = use_all_blocks(&s, i);
        manifest_put_nodes(&s.m, s.kv);
        for (uint32_t k = 1; k < s.m.h.n_nodes; k++) assert_int_equal(*place(&s, k, 0, true), 0);
        kv_done(s.kv, 0, 20 + i);
    }
    assert_true(host_blocks > 0);
    manifest_put_nodes(&s.m, s.kv);
    next_process(&s);
    finds(&s, 12, &on_host);
    assert_true(on_host > 0);
    free(s.kv);
    open_kv(&s);
    assert_int_equal(
        manifest_open(&s.m, s.memory, manifest_bytes(&s.c), &s.c, fingerprint, kv_id, &e), 0);
    s.adopted = manifest_adopt(&s.m, s.kv, false, s.found, tables);
    assert_int_equal(s.adopted.no_nodes, 0);
    finds(&s, 12, &on_host);
    assert_int_equal(on_host, 0);
    assert_true(kv_tree_n_exports(s.kv) > 0); /* the next replacement must not adopt it either */
    manifest_put_nodes(&s.m, s.kv);
    next_process(&s);
    finds(&s, 12, &on_host);
    assert_int_equal(on_host, 0);
    close_site(&s);
}

static void
invalid_node_is_rejected_with_its_descendants(void **state)
{
    (void)state;
    for (int what = 0; what < 8; what++) {
        struct site s = { 0 };
        uint32_t on_host, i;

        compute_and_leave(&s);
        i = first_node(&s);
        if (what == 0) node(&s, i)->key[0]++;
        if (what == 1) node(&s, i)->parent = s.m.h.n_nodes;
        if (what == 2) node(&s, i)->parent = i;
        if (what == 3) node(&s, i)->n_tokens = BLOCK + 1;
        if (what == 4) *place(&s, i, 0, false) = 1 + kv_scratch(s.kv, 0);
        if (what == 5) *place(&s, i, 0, false) = *place(&s, i, 1, false);
        if (what == 6) *place(&s, i, 0, false) += 1;
        if (what == 7) node(&s, i)->seq |= 1;
        next_process(&s);
        assert_int_equal(finds(&s, 12, &on_host), 0);
        assert_int_equal(node(&s, i)->live, 0); /* cleared before its blocks are reused */
        close_site(&s);
    }
}

/* A token of a cached block was sampled but not delivered: another token may be sampled instead. */
SITE_TEST(block_that_a_slot_continues_in_leaves_the_tree, .reuse = true)
{
    struct kv_text t = {
        .token = prompt, .n = 12, .source = source, .n_source = ARRAY_LEN(source)
    };
    struct kv_need need;
    struct kv_namespace space;
    uint32_t on_host;

    step(s, 0, 0, 8, true);
    kv_namespace(s->kv, 0, 0, source, ARRAY_LEN(source), &space);
    t.namespace = &space;
    kv_store(s->kv, 0, &t, 8);
    manifest_put_nodes(&s->m, s->kv);
    assert_int_equal(next_process(s), 1);
    assert_int_equal(finds(s, 12, &on_host), 8);
    need = kv_need(s->kv, 40, ARRAY_LEN(source), 12);
    assert_int_equal(kv_resume(s->kv, 0, 7, &need), 0);
    kv_check(s->kv);
    assert_int_equal(finds(s, 12, &on_host), 4);
}

SITE_TEST(entry_may_start_behind_the_window)
{
    struct kv_edit edit = { .op = EDIT_SET, .group = 1, .slot = 2, .entry = 3, .at = 8 };
    struct manifest_owner o = { .slot = 2, .id = 7 };
    struct manifest_found found;
    slice_id tables[64];

    manifest_launch(&s->m, &edit, 1, &o, 1);
    manifest_commit(&s->m, 2, 16);
    assert_int_equal(manifest_read(&s->m, 2, tables, &found), 1);
    assert_int_equal(found.row.n_entries[1], 4);
    for (int i = 0; i < 3; i++) assert_int_equal(found.row.entry[1][i], SLICE_NONE);
    assert_int_equal(found.row.entry[1][3], 8);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adopted_slot_holds_the_same_blocks),
        cmocka_unit_test(entry_of_other_tokens_or_encoder_input_is_not_resumed),
        cmocka_unit_test(edited_or_uncommitted_entries_are_not_adopted),
        cmocka_unit_test(dropped_slot_leaves_the_manifest_with_the_next_step),
        cmocka_unit_test(beam_search_is_adopted_whole_or_not_at_all),
        cmocka_unit_test(restarted_beam_search_drops_the_old_decisions),
        cmocka_unit_test(invalid_entries_are_rejected_whole),
        cmocka_unit_test(manifest_of_another_model_arena_or_geometry_is_rejected),
        cmocka_unit_test(adopted_slots_grow_and_other_blocks_are_free),
        cmocka_unit_test(entries_that_share_full_blocks_are_adopted),
        cmocka_unit_test(replacement_finds_the_same_prefixes),
        cmocka_unit_test(replacement_does_not_find_evicted_prefixes),
        cmocka_unit_test(host_block_needs_its_copy_for_export_and_memory_for_adoption),
        cmocka_unit_test(invalid_node_is_rejected_with_its_descendants),
        cmocka_unit_test(block_that_a_slot_continues_in_leaves_the_tree),
        cmocka_unit_test(entry_may_start_behind_the_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
