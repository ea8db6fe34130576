/* fuzz_plan.c - batches of another process: those that batch_unpack() and batch_check() accept
 * touch only objects that exist, and those that they refuse would not.
 *
 * Bytes become a batch with mostly valid numbers. The batch is packed, sometimes corrupted, and
 * read as a rank reads it. The reference executes the step: it looks up every position, table
 * entry, slice and encoder state that the step would touch.
 */
#include "tests/fuzz/fuzz.h"

#include "base/base.h"
#include "worker/sched/batch.h"

enum { ROWS = 48, ENC_ROWS = 24, SLOTS = 6, EDITS = 12, COPIES = 8, VOCAB = 97, LEN = 60 };
enum { LAYERS = 5, LANES = 3, PARTITIONS = 5, BYTES = 8192 };

static const uint32_t buckets[] = { 1, 2, 4, 8, 16, 32, ROWS };
static struct kv_config kv = {
    .n_groups = 3,
    .n_slots = SLOTS,
    .n_lanes = LANES,
    .tokens_per_block = 4,
    .group = { { .kind = KV_FULL,
                 .n_layers = 3,
                 .n_parts = 2,
                 .slice_bytes = 128,
                 .max_entries = 15 },
               { .kind = KV_CROSS,
                 .n_layers = 2,
                 .n_parts = 2,
                 .slice_bytes = 384,
                 .max_entries = 6 },
               { .kind = KV_STATE,
                 .n_layers = 4,
                 .n_parts = 1,
                 .slice_bytes = 256,
                 .max_entries = 16 } },
    .arena_bytes = 100 * 128 + 64,
    .host_bytes = 40 * 128,
};
static const struct batch_limits bounds = {
    .kv = &kv,
    .n_lanes = LANES,
    .n_partitions = PARTITIONS,
    .max_tokens = ROWS,
    .max_enc_tokens = ENC_ROWS,
    .vocab = VOCAB,
    .max_len = LEN,
    .max_source = ENC_ROWS,
    .n_enc_layers = LAYERS,
    .bucket = buckets,
    .n_buckets = ARRAY_LEN(buckets),
};

/* Below n, rarely slightly above or far beyond. */
static uint32_t
some(struct in *in, uint32_t n)
{
    uint32_t v = byte(in);

    if (v < 244) return n ? v % n : 0;
    if (v < 252) return n + v - 246;
    return v & 1 ? UINT32_MAX - (v & 2) : byte(in) << 24 | byte(in) << 8;
}

/* ---- the reference: what the step would touch */

struct touched {
    bool wrong;
    uint8_t row[2 * (ROWS + ENC_ROWS)], logit[2 * (ROWS + ENC_ROWS)];
};

static void
must(struct touched *t, bool there)
{
    t->wrong = t->wrong || !there;
}

/* Checks the block slice by slice. */
static void
touch_block(struct touched *t, uint32_t group, uint32_t tier, slice_id at)
{
    const struct kv_group *g = &kv.group[group];
    uint64_t slices = (tier == TIER_HOST ? kv.host_bytes : kv.arena_bytes) / g->slice_bytes;
    uint32_t n = g->kind == KV_STATE ? 1 : g->n_layers * g->n_parts;

    for (uint32_t i = 0; i < n; i++) must(t, (uint64_t)at + i < slices);
}

static void
do_runs(struct touched *t, const struct batch *b)
{
    uint32_t n_tokens = 0, n_states = 0, n_known = 0;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];
        uint32_t logits = 0;

        must(t, r->slot < SLOTS);
        if (r->flags & SEGMENT_SAMPLE) logits = 1 + r->n_draft;
        if (r->flags & SEGMENT_PROMPT_LOGPROBS) logits = r->n_tokens;
        for (uint32_t k = 0; k < r->n_tokens; k++) {
            uint64_t row = (uint64_t)r->first_token + k, at = (uint64_t)(int64_t)r->first_pos + k;

            n_tokens++;
            must(t, row < b->n_tokens && at < LEN);
            if (t->wrong) return;
            must(t, !t->row[row]++);
            must(t, b->pos[row] >= 0 && b->pos[row] < LEN);
            if (b->token[row] >= 0)
                must(t, b->token[row] < VOCAB);
            else
                must(t, -b->token[row] <= 1 + MAX_DRAFT);
        }
        for (uint32_t k = 0; k < logits; k++) {
            must(t, (uint64_t)r->first_logit + k < b->n_logits);
            if (t->wrong) return;
            must(t, !t->logit[r->first_logit + k]++);
        }
        must(t, r->n_draft <= MAX_DRAFT && r->n_draft < r->n_tokens);
        if (r->flags & SEGMENT_MASK) {
            must(t, logits && r->n_tokens == 1u + r->n_draft && b->n_masks == b->n_logits);
            for (uint32_t k = 0; k < logits && !t->wrong; k++) {
                uint32_t sees = b->mask[r->first_logit + k];

                must(t, sees & 1u << k);
                for (uint32_t j = k + 1; j < 32; j++) must(t, !(sees & 1u << j));
            }
        }
        for (uint64_t k = 0; k < r->enc_tokens && !t->wrong; k++, n_states++)
            must(t, r->enc_token + k < ENC_ROWS && n_states < ENC_ROWS);
        /* The range must be valid even if it is empty. */
        must(t, r->enc_token <= ENC_ROWS && r->cross_tokens <= ENC_ROWS);
        if (t->wrong) return;
    }
    must(t, n_tokens <= ROWS && b->n_segments <= SLOTS);
    for (size_t i = 0; i < ARRAY_LEN(buckets); i++) n_known += buckets[i] == b->bucket;
    must(t, b->bucket == 0 || (n_known == 1 && b->bucket >= n_tokens));
}

static void
do_sources(struct touched *t, const struct batch *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_encode; i++) {
        const struct batch_encode *c = &b->encode[i];

        must(t, c->slot < SLOTS && c->n_layers > 0);
        for (uint32_t l = 0; l < c->n_layers; l++) must(t, c->first_layer + l < LAYERS);
        for (uint32_t k = 0; k < c->n_tokens && !t->wrong; k++) {
            uint64_t row = (uint64_t)c->first_token + k;

            must(t, row < b->n_tokens && (uint64_t)c->enc_token + k < ENC_ROWS && n++ < ENC_ROWS);
            if (t->wrong) return;
            must(t, !t->row[row]++);
            if (c->first_layer) continue;
            must(t, b->token[row] >= 0 && b->token[row] < VOCAB);
            must(t, b->pos[row] >= 0 && b->pos[row] < ENC_ROWS);
        }
    }
    must(t, b->n_encode <= SLOTS);
}

static void
do_moves(struct touched *t, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_edits && !t->wrong; i++) {
        const struct kv_edit *d = &b->edit[i];

        must(t, d->slot < SLOTS && d->op <= EDIT_CLEAR);
        if (d->op == EDIT_CLEAR) {
            must(t, d->group < MAX_GROUPS);
            continue;
        }
        must(t, d->group < kv.n_groups);
        if (t->wrong) return;
        if (d->op == EDIT_COPY) {
            must(t, d->entry < SLOTS && d->entry != d->slot);
        } else {
            must(t, d->entry < kv.group[d->group].max_entries);
            if (d->at != SLICE_NONE) touch_block(t, d->group, TIER_DEVICE, d->at);
        }
    }
    for (uint32_t i = 0; i < b->n_copies && !t->wrong; i++) {
        const struct kv_copy *c = &b->copy[i];
        uint32_t n;

        must(t, c->group < kv.n_groups && c->from_tier < 2 && c->to_tier < 2);
        must(t, c->n_tokens <= kv.tokens_per_block);
        if (t->wrong) return;
        touch_block(t, c->group, c->from_tier, c->from);
        touch_block(t, c->group, c->to_tier, c->to);
        n = kv.group[c->group].kind == KV_STATE ? 1 : kv.group[c->group].n_layers * 2;
        for (uint32_t k = 0; k < n && c->from_tier == c->to_tier; k++)
            must(t, (uint64_t)c->from + k != c->to && (uint64_t)c->to + k != c->from);
    }
    for (uint32_t i = 0; i < b->n_waits; i++)
        must(t, b->wait[i].lane < LANES && b->wait[i].lane != b->lane);
}

/* Checks the whole step; each token and logit row is used once. */
static bool
harmless(const struct batch *b)
{
    struct touched t = { .wrong = b->lane >= LANES || b->partition >= PARTITIONS };

    if (b->n_tokens > sizeof t.row || b->n_logits > sizeof t.logit) abort();
    do_runs(&t, b);
    if (!t.wrong) do_sources(&t, b);
    if (!t.wrong) do_moves(&t, b);
    for (uint32_t i = 0; i < b->n_tokens && !t.wrong; i++) must(&t, t.row[i] == 1);
    for (uint32_t i = 0; i < b->n_logits && !t.wrong; i++) must(&t, t.logit[i] == 1);
    return !t.wrong;
}

/* ---- a batch from bytes */

/* Makes the drafts a tree: a token attends to itself and to some earlier ones. */
static void
make_tree(struct batch *b, struct batch_segment *r, struct in *in)
{
    uint32_t spoilt = some(in, 30);

    r->flags |= SEGMENT_MASK;
    for (uint32_t i = 0; i < r->n_tokens && r->first_logit + i < b->max_tokens; i++)
        b->mask[r->first_logit + i] = 1u << i | (byte(in) & ((1u << i) - 1));
    if (spoilt == 30 && r->first_logit < b->max_tokens) b->mask[r->first_logit] = byte(in);
}

static void
make_runs(struct batch *b, struct in *in)
{
    b->n_segments = byte(in) % (SLOTS + 1);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        struct batch_segment *r = &b->segment[i];

        *r = (struct batch_segment){ .slot = some(in, SLOTS),
                                     .first_token = b->n_tokens,
                                     .n_tokens = 1 + byte(in) % 9,
                                     .first_pos = (int32_t)some(in, LEN - 9),
                                     .flags = (uint8_t)(byte(in) &
                                                        (SEGMENT_SAMPLE | SEGMENT_PROMPT_LOGPROBS)),
                                     .first_logit = b->n_logits,
                                     .enc_token = some(in, ENC_ROWS / 2),
                                     .enc_tokens = some(in, 9),
                                     .cross_tokens = some(in, ENC_ROWS) };
        if (byte(in) % 4 == 0) /* to the end, or one too far */
            r->first_pos = (int32_t)(LEN - r->n_tokens + byte(in) % 8 / 7);
        if (r->flags == SEGMENT_SAMPLE) r->n_draft = (uint16_t)(byte(in) % r->n_tokens);
        if (r->n_draft > MAX_DRAFT) r->n_draft = MAX_DRAFT;
        if (b->n_tokens + r->n_tokens > b->max_tokens) r->n_tokens = 1;
        if (r->n_draft >= r->n_tokens) r->n_draft = 0;
        if (r->n_draft && byte(in) % 2) make_tree(b, r, in);
        for (uint32_t k = 0; k < r->n_tokens && b->n_tokens < b->max_tokens; k++, b->n_tokens++) {
            uint32_t t = some(in, VOCAB + MAX_DRAFT + 1);

            b->token[b->n_tokens] = (token_id)(t - MAX_DRAFT - 1);
            b->pos[b->n_tokens] = (int32_t)some(in, LEN);
        }
        if (r->flags & SEGMENT_PROMPT_LOGPROBS)
            b->n_logits += r->n_tokens;
        else if (r->flags & SEGMENT_SAMPLE)
            b->n_logits += 1u + r->n_draft;
    }
}

static void
make_sources(struct batch *b, struct in *in)
{
    b->n_encode = byte(in) % 3;
    for (uint32_t i = 0; i < b->n_encode; i++) {
        struct batch_encode *c = &b->encode[i];

        *c = (struct batch_encode){ .slot = some(in, SLOTS),
                                    .first_token = b->n_tokens,
                                    .n_tokens = 1 + byte(in) % 8,
                                    .enc_token = some(in, ENC_ROWS - 8),
                                    .first_layer = (uint16_t)some(in, 3),
                                    .n_layers = (uint16_t)(1 + some(in, LAYERS - 2)) };
        if (b->n_tokens + c->n_tokens > b->max_tokens) c->n_tokens = 1;
        for (uint32_t k = 0; k < c->n_tokens && b->n_tokens < b->max_tokens; k++, b->n_tokens++) {
            b->token[b->n_tokens] = (token_id)some(in, VOCAB);
            b->pos[b->n_tokens] = (int32_t)some(in, ENC_ROWS);
        }
    }
}

static slice_id
some_block(struct in *in, uint32_t group, uint32_t tier)
{
    uint64_t bytes = tier == TIER_HOST ? kv.host_bytes : kv.arena_bytes;
    const struct kv_group *g = &kv.group[group % 3];

    return some(in, (uint32_t)((bytes - kv_block_bytes(g)) / g->slice_bytes + 1));
}

static void
make_moves(struct batch *b, struct in *in)
{
    b->n_edits = byte(in) % (EDITS + 1);
    for (uint32_t i = 0; i < b->n_edits; i++) {
        uint32_t op = byte(in) % 3, group = some(in, 3);
        uint32_t entries = kv.group[group % 3].max_entries;

        b->edit[i] = (struct kv_edit){ .op = (uint8_t)op,
                                       .group = (uint8_t)group,
                                       .slot = some(in, SLOTS),
                                       .entry = some(in, op == EDIT_SET ? entries : SLOTS),
                                       .at = byte(in) % 8 ? some_block(in, group, TIER_DEVICE)
                                                          : SLICE_NONE };
    }
    b->n_copies = byte(in) % (COPIES + 1);
    for (uint32_t i = 0; i < b->n_copies; i++) {
        struct kv_copy *c = &b->copy[i];

        *c = (struct kv_copy){ .group = (uint8_t)some(in, 3),
                               .from_tier = (uint8_t)some(in, 2),
                               .to_tier = (uint8_t)some(in, 2),
                               .after = byte(in) & 1,
                               .n_tokens = (uint16_t)some(in, 5) };
        c->from = some_block(in, c->group, c->from_tier);
        c->to = some_block(in, c->group, c->to_tier);
    }
    b->n_waits = byte(in) % LANES;
    for (uint32_t i = 0; i < b->n_waits; i++)
        b->wait[i] = (struct step_dependency){ .lane = (uint8_t)some(in, LANES), .step = byte(in) };
}

static void
make(struct batch *b, struct in *in)
{
    b->step = 1 + byte(in);
    b->lane = (uint8_t)some(in, LANES);
    b->partition = (uint8_t)some(in, PARTITIONS);
    b->bucket = byte(in) % 2 ? buckets[byte(in) % ARRAY_LEN(buckets)] : some(in, 2);
    b->n_tokens = b->n_logits = b->n_masks = 0;
    make_runs(b, in);
    b->n_logits += some(in, 1) % 3;
    for (uint32_t i = 0; i < b->n_segments && b->n_logits <= b->max_tokens; i++)
        if (b->segment[i].flags & SEGMENT_MASK) b->n_masks = b->n_logits;
    make_sources(b, in);
    make_moves(b, in);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEAN(batch_free_at) struct batch *b = batch_new(ROWS + ENC_ROWS, SLOTS + 1, EDITS, COPIES);
    CLEAN(batch_free_at) struct batch *c = batch_new(ROWS + ENC_ROWS, SLOTS + 1, EDITS, COPIES);
    uint8_t packed[BYTES];
    struct in in = { data, data + size };
    struct err e;
    int n, r;

    if (!b || !c) abort();
    make(b, &in);
    n = batch_pack(b, packed, sizeof packed);
    if (n < 0) abort();
    for (uint32_t spoil = byte(&in) % 4; spoil > 0 && in.p < in.end; spoil--) {
        uint32_t at = byte(&in) << 8;

        at |= byte(&in);
        packed[at % (uint32_t)n] ^= (uint8_t)byte(&in);
    }
    r = batch_unpack(c, packed, (size_t)n, &e);
    if (r < 0) {
        if (c->n_tokens || c->n_segments || c->n_edits || c->n_copies) abort(); /* partial batch */
        return 0;
    }
    if ((batch_check(c, &bounds, &e) == 0) != harmless(c)) abort();
    return 0;
}
