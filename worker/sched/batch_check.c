/* batch_check.c - checks a batch of another process against this worker's limits: see batch.h. */
#include "worker/sched/batch.h"

#define BAD_BATCH(e, ...) err_set(e, -EBADMSG, "invalid batch: " __VA_ARGS__)

static bool
is_token(const struct batch_limits *w, token_id t)
{
    return t >= 0 && (uint32_t)t < w->vocab;
}

/* True for a token id, TOKEN_FROM_LAST, and TOKEN_DRAFT() of a possible draft. */
static bool
is_input(const struct batch_limits *w, token_id t)
{
    return is_token(w, t) || (t < 0 && t >= TOKEN_DRAFT(MAX_DRAFT));
}

static bool
is_bucket(const struct batch_limits *w, uint32_t bucket, uint32_t n_tokens)
{
    bool known = bucket == 0;

    for (uint32_t i = 0; i < w->n_buckets; i++) known = known || w->bucket[i] == bucket;
    return known && (bucket == 0 || (bucket >= n_tokens && bucket <= w->max_tokens));
}

/* True if the block that starts at slice `at` lies in its tier (device arena or host memory). */
static bool
is_block(const struct batch_limits *w, uint8_t tier, uint32_t group, slice_id at)
{
    const struct kv_group *g = &w->kv->group[group];
    uint64_t bytes = tier == TIER_HOST ? w->kv->host_bytes : w->kv->arena_bytes;
    uint64_t first = (uint64_t)at * g->slice_bytes, block = kv_block_bytes(g);

    return at != SLICE_NONE && block <= bytes && first <= bytes - block;
}

static int
check_segment(const struct batch *b, const struct batch_limits *w, uint32_t i, struct err *e)
{
    const struct batch_segment *r = &b->segment[i];

    if (r->slot >= w->kv->n_slots)
        return BAD_BATCH(e, "segment %u has slot %u of only %u", i, r->slot, w->kv->n_slots);
    if ((uint64_t)r->first_pos + r->n_tokens > w->max_len)
        return BAD_BATCH(e, "segment %u: %u positions from %d on exceed max_model_len %u", i,
                         r->n_tokens, r->first_pos, w->max_len);
    for (uint32_t k = r->first_token; k < r->first_token + r->n_tokens; k++)
        if (!is_input(w, b->token[k]) || b->pos[k] < 0 || (uint32_t)b->pos[k] >= w->max_len)
            return BAD_BATCH(e, "token %u has id %d or position %d out of range", k, b->token[k],
                             b->pos[k]);
    if ((uint64_t)r->enc_token + r->enc_tokens > w->max_enc_tokens ||
        r->cross_tokens > w->max_source)
        return BAD_BATCH(e,
                         "segment %u has encoder states %u + %u of %u, and an input of %u tokens",
                         i, r->enc_token, r->enc_tokens, w->max_enc_tokens, r->cross_tokens);
    return 0;
}

static int
check_source(const struct batch *b, const struct batch_limits *w, uint32_t i, struct err *e)
{
    const struct batch_encode *c = &b->encode[i];

    if (c->slot >= w->kv->n_slots || (uint64_t)c->enc_token + c->n_tokens > w->max_enc_tokens)
        return BAD_BATCH(e, "encoder input %u has slot %u of %u and encoder states %u + %u of %u",
                         i, c->slot, w->kv->n_slots, c->enc_token, c->n_tokens, w->max_enc_tokens);
    if ((uint32_t)c->first_layer + c->n_layers > w->n_enc_layers)
        return BAD_BATCH(e, "encoder input %u has layers %u to %u, but the encoder has %u", i,
                         c->first_layer, c->first_layer + c->n_layers, w->n_enc_layers);
    for (uint32_t k = c->first_token; k < c->first_token + c->n_tokens && c->first_layer == 0; k++)
        if (!is_token(w, b->token[k]) || b->pos[k] < 0 || (uint32_t)b->pos[k] >= w->max_source)
            return BAD_BATCH(e, "encoder token %u has id %d or position %d out of range", k,
                             b->token[k], b->pos[k]);
    return 0;
}

static int
check_edit(const struct batch *b, const struct batch_limits *w, uint32_t i, struct err *e)
{
    const struct kv_edit *d = &b->edit[i];
    bool fits = d->slot < w->kv->n_slots;

    if (d->op == EDIT_CLEAR && fits) return 0;
    fits = fits && d->group < w->kv->n_groups;
    if (fits && d->op == EDIT_SET)
        fits = d->entry < w->kv->group[d->group].max_entries &&
               (d->at == SLICE_NONE || is_block(w, TIER_DEVICE, d->group, d->at));
    else if (fits)
        fits = d->entry < w->kv->n_slots && d->entry != d->slot;
    if (fits) return 0;
    return BAD_BATCH(
        e, "table edit %u out of range: operation %u, KV group %u, slot %u, entry %u, slice %u", i,
        d->op, d->group, d->slot, d->entry, d->at);
}

static int
check_copy(const struct batch *b, const struct batch_limits *w, uint32_t i, struct err *e)
{
    const struct kv_copy *c = &b->copy[i];
    bool fits = c->group < w->kv->n_groups && c->from_tier <= TIER_HOST &&
                c->to_tier <= TIER_HOST && c->n_tokens <= w->kv->tokens_per_block &&
                is_block(w, c->from_tier, c->group, c->from) &&
                is_block(w, c->to_tier, c->group, c->to);

    if (fits && c->from_tier == c->to_tier) { /* the blocks must not overlap */
        const struct kv_group *g = &w->kv->group[c->group];
        uint64_t apart = c->from > c->to ? c->from - c->to : c->to - c->from;

        fits = apart * g->slice_bytes >= kv_block_bytes(g);
    }
    if (fits) return 0;
    return BAD_BATCH(e, "copy %u out of range: KV group %u, slice %u of tier %u to %u of tier %u",
                     i, c->group, c->from, c->from_tier, c->to, c->to_tier);
}

int
batch_check(const struct batch *b, const struct batch_limits *w, struct err *e)
{
    uint64_t rows = 0, sources = 0, states = 0;

    if (b->lane >= w->n_lanes || b->partition >= w->n_partitions ||
        b->n_segments > w->kv->n_slots || b->n_encode > w->kv->n_slots)
        return BAD_BATCH(e, "out of range: lane %u, partition %u, %u segments, %u encoder inputs",
                         b->lane, b->partition, b->n_segments, b->n_encode);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        TRY(check_segment(b, w, i, e));
        rows += b->segment[i].n_tokens;
        states += b->segment[i].enc_tokens;
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        TRY(check_source(b, w, i, e));
        sources += b->encode[i].n_tokens;
    }
    if (rows > w->max_tokens || sources > w->max_enc_tokens || states > w->max_enc_tokens ||
        !is_bucket(w, b->bucket, (uint32_t)rows))
        return BAD_BATCH(
            e, "out of range: %llu tokens in graph size %u, %llu encoder tokens, %llu states",
            (unsigned long long)rows, b->bucket, (unsigned long long)sources,
            (unsigned long long)states);
    for (uint32_t i = 0; i < b->n_edits; i++) TRY(check_edit(b, w, i, e));
    for (uint32_t i = 0; i < b->n_copies; i++) TRY(check_copy(b, w, i, e));
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane >= w->n_lanes || b->wait[i].lane == b->lane)
            return BAD_BATCH(e, "dependency %u of lane %u is on the invalid lane %u", i, b->lane,
                             b->wait[i].lane);
    return 0;
}
