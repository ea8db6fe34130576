/* kv_fixture.c - see kv_fixture.h. */
#include "tests/kv/kv_fixture.h"

struct kv_group
group(enum kv_kind kind, uint32_t window, uint32_t max_blocks)
{
    return (struct kv_group){ .kind = kind,
                              .window = window,
                              .n_layers = 1,
                              .n_parts = 2,
                              .slice_bytes = 128,
                              .max_entries = 256,
                              .max_blocks = max_blocks };
}

struct kv_group
state_group(uint32_t n_layers, uint32_t slice_bytes, uint32_t interval)
{
    struct kv_group g = group(KV_STATE, 0, 0);

    g.n_layers = n_layers;
    g.n_parts = 1;
    g.slice_bytes = slice_bytes;
    g.interval = interval;
    return g;
}

static void
count_groups(struct kv_config *c)
{
    c->n_groups = 0;
    while (c->n_groups < MAX_GROUPS && c->group[c->n_groups].max_entries) c->n_groups++;
}

static void
open_kv(struct kv_fixture *b)
{
    struct err e;

    b->c.n_slots = FIXTURE_SLOTS;
    b->mem = calloc(1, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    assert_non_null(b->kv);
    kv_namespace(b->kv, 0, 0, NULL, 0, &b->namespace);
}

struct kv_fixture *
cache_of_config(uint32_t n_blocks, const struct kv_config *c)
{
    struct kv_fixture *b = calloc(1, sizeof *b);

    b->c = *c;
    b->c.reuse = true;
    b->c.extra_ids = true;
    b->c.fifo = n_blocks > 0; /* 0: elastic */
    if (!b->c.n_lanes) b->c.n_lanes = 1;
    if (!b->c.tokens_per_block) b->c.tokens_per_block = 4;
    if (!b->c.group[0].max_entries) b->c.group[0] = group(KV_FULL, 0, n_blocks);
    count_groups(&b->c);
    if (!b->c.arena_bytes) b->c.arena_bytes = (uint64_t)b->c.n_groups * (n_blocks + 1) * 256;
    open_kv(b);
    return b;
}

struct kv_fixture *
cache(uint32_t n_blocks)
{
    return cache_of(n_blocks, .copy_partial = true);
}

struct kv_fixture *
pool_of_config(uint32_t tokens, uint32_t n_blocks, const struct kv_config *c)
{
    struct kv_fixture *b = calloc(1, sizeof *b);

    b->c = *c;
    b->c.n_lanes = 2;
    b->c.tokens_per_block = tokens;
    b->c.arena_bytes = (uint64_t)n_blocks * 256;
    count_groups(&b->c);
    open_kv(b);
    return b;
}

void
cache_close(struct kv_fixture *b)
{
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) kv_drop(b->kv, i);
    kv_check(b->kv);
    free(b->mem);
    free(b);
}

uint32_t
n_free(const struct kv_fixture *b)
{
    struct kv_count n;

    kv_count(b->kv, 0, &n);
    return n.free + n.cached;
}

void
prompt(struct kv_fixture *b, uint32_t slot, const token_id *token, uint32_t n)
{
    struct fixture_slot *s = &b->slot[slot];

    memcpy(s->token, token, n * sizeof *token);
    s->n = n;
    s->cached = 0;
    s->text = (struct kv_text){
        .token = s->token, .extra = s->extra, .n = n, .namespace = &b->namespace
    };
}

void
prompt_of(struct kv_fixture *b, uint32_t slot, token_id first, uint32_t n, const token_id *more)
{
    token_id token[FIXTURE_LENGTH];

    for (uint32_t i = 0; i < n; i++) token[i] = first + (token_id)i;
    for (; more && *more >= 0; more++) token[n++] = *more;
    memset(b->slot[slot].extra, 0, sizeof b->slot[slot].extra);
    prompt(b, slot, token, n);
}

int
admit(struct kv_fixture *b, uint32_t slot, uint32_t more)
{
    struct fixture_slot *s = &b->slot[slot];
    struct kv_need need = kv_need(b->kv, s->n + more, s->text.n_source, s->n);
    int r = kv_admit(b->kv, slot, &need, &s->text, &s->hit);

    kv_check(b->kv);
    return r;
}

/* Runs one step, from the cached positions to the next snapshot position at most. */
static void
step_to(struct kv_fixture *b, uint32_t slot, uint32_t end)
{
    struct fixture_slot *s = &b->slot[slot];

    b->out.step = ++b->step;
    b->out.n_edits = b->out.n_copies = 0;
    kv_start(b->kv, 0, b->step, slot, &b->out);
    kv_check(b->kv);
    if (s->cached == s->hit.n_tokens) kv_cross(b->kv, 0, slot, s->text.n_source, &b->out);
    kv_trim(b->kv, slot, s->cached, &b->out);
    kv_grow(b->kv, 0, slot, end, &b->out);
    if (end == kv_border(b->kv, s->cached, s->n)) kv_snapshot(b->kv, 0, slot, end, &b->out);
    kv_fence(b->kv, slot, 0, b->step);
    kv_done(b->kv, 0, b->step);
    s->cached = end;
    kv_check(b->kv);
}

struct kv_out
empty_out(struct kv_fixture *b)
{
    return (struct kv_out){
        .edit = b->edit, .max_edits = FIXTURE_EDITS, .copy = b->copy, .max_copies = FIXTURE_COPIES
    };
}

void
start(struct kv_fixture *b, uint32_t slot)
{
    struct fixture_slot *s = &b->slot[slot];

    b->out = empty_out(b);
    for (s->cached = s->hit.n_tokens; s->cached < s->n;) {
        step_to(b, slot, MIN(s->n, kv_border(b->kv, s->cached, s->n)));
        if (s->cached < s->n) kv_store(b->kv, slot, &s->text, s->cached);
    }
}

uint32_t
add(struct kv_fixture *b, uint32_t slot, uint32_t more)
{
    assert_int_equal(admit(b, slot, more), 0);
    start(b, slot);
    return b->slot[slot].hit.n_tokens;
}

void
gen(struct kv_fixture *b, uint32_t slot, token_id t)
{
    b->slot[slot].token[b->slot[slot].n++] = t;
    b->slot[slot].text.n = b->slot[slot].n;
}

void
gen_plus(struct kv_fixture *b, uint32_t slot, token_id t)
{
    struct fixture_slot *s = &b->slot[slot];

    gen(b, slot, t);
    step_to(b, slot, s->cached + 1);
}

void
store(struct kv_fixture *b, uint32_t slot, uint32_t n)
{
    kv_store(b->kv, slot, &b->slot[slot].text, n);
    kv_check(b->kv);
}

void
release_at(struct kv_fixture *b, uint32_t slot, uint32_t n)
{
    kv_release(b->kv, slot, &b->slot[slot].text, n);
    kv_check(b->kv);
}

void
release(struct kv_fixture *b, uint32_t slot)
{
    release_at(b, slot, b->slot[slot].n - 1);
}

void
expect_ids(struct kv_fixture *b, uint32_t slot, uint32_t g, const token_id *id)
{
    uint32_t first, n = kv_held(b->kv, slot, g, &first);

    for (uint32_t i = first; i < first + n; i++, id++)
        assert_int_equal(kv_entry(b->kv, slot, g, i) / 2 - b->c.n_groups, (uint32_t)*id);
    assert_int_equal(*id, -1);
}
