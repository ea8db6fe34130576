/* exec_harness.c - see exec_harness.h. */
#include "tests/exec/exec_harness.h"

#include "gpu/device.h"
#include "tests/test.h"
#include "worker/arch/registry.h"
#include "worker/exec/graphs.h"

#include <math.h>
#include <poll.h>

enum { MAX_EDITS = 8192, ENC_ROWS = 1024, PARTITIONS = 3 };

#define OK(call) \
    do { \
        struct err ok_e = { .text = "no sentence" }, *e = &ok_e; \
        if ((call) < 0) fail_msg("%s: %s", #call, ok_e.text); \
    } while (0)

static void
open_kv(struct harness *h, struct err *e)
{
    uint64_t bytes = 0;

    if (model_groups(h->m, h->o.kv, h->o.tokens_per_block, &h->kv, e) < 0) fail_msg("%s", e->text);
    h->kv.n_slots = HARNESS_SLOTS;
    h->kv.n_lanes = h->o.n_lanes;
    for (uint32_t g = 0; g < h->kv.n_groups; g++) {
        const struct kv_group *k = &h->kv.group[g];

        bytes = ROUND_UP(bytes, (uint64_t)k->slice_bytes);
        h->at[g] = bytes;
        bytes += HARNESS_SLOTS * k->max_entries * kv_block_bytes(k);
    }
    if (gpu_ops(h->gpu)->mem.arena_make(h->gpu, "kv", bytes, &h->arena, e) < 0)
        fail_msg("%s", e->text);
    if (gpu_ops(h->gpu)->mem.host_open(h->gpu, HARNESS_HOST, &h->host, e) < 0)
        fail_msg("%s", e->text);
    for (uint32_t i = 0; i < h->host.n; i++)
        if (gpu_ops(h->gpu)->mem.host_make(h->gpu, &h->host, i, e) < 0 ||
            gpu_ops(h->gpu)->mem.host_map(h->gpu, &h->host, e) < 0)
            fail_msg("%s", e->text);
}

/* Partitions 1 and 2: minimal units for lane 0, then for lane 1. False: the device cannot be
 * partitioned. */
static bool
divide(const struct gpu *g, struct exec_config *c)
{
    const struct gpu_parts p = gpu_facts(g).parts;
    uint32_t units = gpu_facts(g).units, least = p.grain ? ROUND_UP(p.least, p.grain) : 0;

    if (p.grain == 0) return false;
    check(c->n_lanes == 2 && units >= 2 * least);
    c->n_partitions = PARTITIONS;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t first = i ? units / p.grain * p.grain - least : least;

        c->lane_units[i] = units;
        c->part[i + 1][0] = (struct exec_part){ 0, first };
        c->part[i + 1][1] = (struct exec_part){ first, units - first };
    }
    return true;
}

void
harness_open(struct harness *h, const struct harness_options *o)
{
    struct gpu_options go = { .device = o->device,
                              .isa = o->isa ? o->isa : "auto",
                              .rank = o->rank,
                              .n_ranks = o->n_ranks,
                              .group_fd = o->group_fd,
                              .invariant = !o->fast };
    struct model_source src = { .dir = o->dir,
                                .dtype = o->device ? o->dtype : DT_COUNT,
                                .random = o->random != 0,
                                .seed = o->random,
                                .rank = o->rank,
                                .n_ranks = o->n_ranks,
                                .weights_fd = -1 };
    struct exec_config c = { .max_tokens = o->max_tokens,
                             .kv_dtype = o->kv,
                             .max_seqs = HARNESS_SLOTS,
                             .max_enc_tokens = ENC_ROWS,
                             .max_edits = MAX_EDITS,
                             .n_lanes = o->n_lanes,
                             .graphs_memory = o->graphs_memory,
                             .brief = o->brief };
    struct batch *b = &h->b;
    struct err err = { 0 };

    for (uint32_t i = 0; i < o->n_lanes; i++) c.lane_units[i] = o->units;
    memset(h, 0, sizeof *h);
    h->o = *o;
    OK(gpu_open(&h->gpu, &go, e));
    if (o->opened) o->opened(h->gpu);
    if (o->parts) h->o.parts = divide(h->gpu, &c);
    OK(model_open(&h->m, &src, h->gpu, arch_families, e));
    open_kv(h, &err);
    OK(exec_open(&h->x, &c, h->gpu, h->m, &h->kv, e));
    exec_blocks(h->x, &h->kv, &h->arena);
    exec_host(h->x, &h->host);
    b->max_tokens = o->max_tokens + ENC_ROWS;
    b->max_segments = b->max_encode = HARNESS_SLOTS;
    b->max_edits = MAX_EDITS;
    b->token = calloc(b->max_tokens, sizeof *b->token);
    b->pos = calloc(b->max_tokens, sizeof *b->pos);
    b->segment = calloc(HARNESS_SLOTS, sizeof *b->segment);
    b->encode = calloc(HARNESS_SLOTS, sizeof *b->encode);
    b->edit = calloc(MAX_EDITS, sizeof *b->edit);
    b->copy = calloc(HARNESS_SLOTS, sizeof *b->copy);
    b->wait = calloc(MAX_LANES, sizeof *b->wait);
}

void
harness_close(struct harness *h)
{
    struct batch *b = &h->b;
    void *const parts[] = { b->token, b->pos, b->segment, b->encode, b->edit, b->copy, b->wait };

    exec_close(h->x);
    gpu_ops(h->gpu)->mem.arena_drop(h->gpu, &h->arena);
    gpu_ops(h->gpu)->mem.host_close(h->gpu, &h->host);
    model_close(h->m);
    gpu_close(h->gpu);
    for (unsigned i = 0; i < ARRAY_LEN(parts); i++) free(parts[i]);
}

void
harness_replace_ops(struct gpu *g, const struct gpu_ops *ops)
{
    g->device = ops;
    g->checked = *ops;
    gpu_add_checks(&g->checked);
}

struct batch *
harness_batch(struct harness *h, unsigned lane)
{
    struct batch *b = &h->b;

    b->step = h->started[lane] + 1;
    b->lane = (uint8_t)lane;
    b->bucket = b->n_tokens = b->n_segments = b->n_logits = 0;
    b->n_encode = b->n_edits = b->n_copies = b->n_waits = 0;
    return b;
}

/* The last entry of the last slot has the first block of the arena. */
slice_id
harness_block(const struct harness *h, uint32_t g, uint32_t slot, uint32_t entry)
{
    const struct kv_group *k = &h->kv.group[g];
    uint32_t n = HARNESS_SLOTS * k->max_entries, at = n - 1 - (slot * k->max_entries + entry);

    return (slice_id)((h->at[g] + at * kv_block_bytes(k)) / k->slice_bytes);
}

/* The slot that owns the encoder input. */
static uint32_t
first_of(const struct harness *h, uint32_t slot)
{
    while (h->slot[slot].joins) slot--;
    return slot;
}

static void
edit(struct batch *b, uint32_t g, uint32_t slot, uint32_t entry, slice_id at)
{
    check(b->n_edits < b->max_edits);
    b->edit[b->n_edits++] = (struct kv_edit){
        .op = EDIT_SET, .group = (uint8_t)g, .slot = slot, .entry = entry, .at = at
    };
}

void
harness_edits(struct harness *h, struct batch *b, uint32_t slot, uint32_t end)
{
    struct harness_slot *s = &h->slot[slot];
    uint32_t tpb = h->kv.tokens_per_block;

    for (uint32_t g = 0; g < h->kv.n_groups; g++) {
        const struct kv_group *k = &h->kv.group[g];
        uint32_t n = CEIL_DIV(k->kind == KV_CROSS ? s->n_source : end, tpb);
        uint32_t of = k->kind == KV_CROSS ? first_of(h, slot) : slot;

        if (k->kind == KV_STATE) n = k->n_layers;
        for (; s->set[g] < n; s->set[g]++)
            edit(b, g, slot, s->set[g], harness_block(h, g, of, s->set[g]));
        if (k->kind != KV_WINDOW || !h->o.drop) continue;
        for (; (s->gone[g] + 1) * tpb + k->window <= s->planned + 1; s->gone[g]++)
            edit(b, g, slot, s->gone[g], SLICE_NONE);
    }
}

/* Adds the next tokens of one slot if they fit; encoder slices first. */
static void
add_run(struct harness *h, struct batch *b, unsigned lane, uint32_t slot)
{
    struct harness_slot *s = &h->slot[slot];
    uint32_t free_tokens = h->o.max_tokens - b->n_tokens, left;
    struct batch_segment *r = &b->segment[b->n_segments];

    if (!s->active || !free_tokens || h->started[lane] < s->late) return;
    if (s->n_source && h->slot[first_of(h, slot)].enc_done < h->m->shape.n_encoder_layers) return;
    left = s->planned < s->n_prompt ? s->n_prompt - s->planned
                                    : s->planned + 1 < s->n_prompt + s->n_new;
    if (!left) return;
    harness_edits(h, b, slot, s->planned + MIN(left, free_tokens));
    *r = (struct batch_segment){ .slot = slot,
                                 .first_token = b->n_tokens,
                                 .n_tokens = MIN(left, free_tokens),
                                 .first_pos = (int32_t)s->planned,
                                 .first_logit = b->n_logits,
                                 .cross_tokens = s->n_source };
    if (s->planned + r->n_tokens >= s->n_prompt) r->flags |= SEGMENT_SAMPLE;
    if (s->planned < s->n_prompt && s->all) r->flags |= SEGMENT_PROMPT_LOGPROBS;
    if (s->beam) r->flags |= SEGMENT_BEAM;
    if (s->joins) r->flags |= SEGMENT_SAME_SOURCE;
    if (s->planned == 0 && s->n_source && !s->joins) {
        r->flags |= SEGMENT_FIRST_CHUNK;
        r->enc_token = s->enc_token;
        r->enc_tokens = s->n_source;
    }
    for (uint32_t i = 0; i < r->n_tokens; i++, b->n_tokens++, s->planned++) {
        b->token[b->n_tokens] = s->planned < s->n_prompt ? s->token[s->planned] : TOKEN_FROM_LAST;
        b->pos[b->n_tokens] = (int32_t)s->planned;
    }
    if (r->flags & SEGMENT_PROMPT_LOGPROBS)
        b->n_logits += r->n_tokens;
    else
        b->n_logits += r->flags & SEGMENT_SAMPLE ? 1 : 0;
    b->n_segments++;
}

/* Encoder tokens follow the decoder's, so their offset is known last. */
static void
take_encoder(struct harness *h, struct batch *b, unsigned lane, uint32_t slot)
{
    struct harness_slot *s = &h->slot[slot];
    uint32_t all = h->m->shape.n_encoder_layers, n = h->o.enc_layers ? h->o.enc_layers : all;

    if (!s->active || !s->n_source || s->joins || s->enc_done == all) return;
    if (h->started[lane] < s->late) return;
    n = MIN(n, all - s->enc_done);
    b->encode[b->n_encode++] = (struct batch_encode){ .slot = slot,
                                                      .n_tokens = s->n_source,
                                                      .enc_token = s->enc_token,
                                                      .first_layer = (uint16_t)s->enc_done,
                                                      .n_layers = (uint16_t)n };
    s->enc_done += n;
}

static void
place_encoders(struct harness *h, struct batch *b)
{
    for (uint32_t i = 0; i < b->n_encode; i++) {
        const struct harness_slot *s = &h->slot[b->encode[i].slot];

        b->encode[i].first_token = b->n_tokens;
        for (uint32_t k = 0; k < s->n_source; k++, b->n_tokens++) {
            b->token[b->n_tokens] = s->source[k];
            b->pos[b->n_tokens] = (int32_t)k;
        }
    }
}

static uint32_t
bucket_of(const struct harness *h, uint32_t rows)
{
    uint32_t bucket[GRAPHS_BUCKETS], n = graphs_buckets(bucket, h->o.max_tokens), i = 0;

    while (i < n && bucket[i] < rows) i++;
    return i < n ? bucket[i] : 0;
}

static bool
plan(struct harness *h, unsigned lane)
{
    struct batch *b = harness_batch(h, lane);
    uint64_t n = h->started[lane];
    uint32_t decoder_rows;

    for (uint32_t i = lane; i < HARNESS_SLOTS; i += h->o.n_lanes) take_encoder(h, b, lane, i);
    for (uint32_t i = lane; i < HARNESS_SLOTS; i += h->o.n_lanes) add_run(h, b, lane, i);
    decoder_rows = b->n_tokens;
    place_encoders(h, b);
    if (!b->n_tokens) return false;
    b->partition = h->o.parts ? (uint8_t)(n % PARTITIONS) : 0;
    if (h->o.buckets) b->bucket = bucket_of(h, decoder_rows);
    OK(exec_start(h->x, b, e));
    memcpy(h->out[lane][n % 2], b->segment, b->n_segments * sizeof *b->segment);
    h->n_out[lane][n % 2] = b->n_segments;
    h->started[lane]++;
    return true;
}

const struct batch_result *
harness_finish(struct harness *h, unsigned lane)
{
    const struct batch_result *r = NULL;
    struct pollfd p = { .fd = exec_fd(h->x, lane), .events = POLLIN };

    for (int ms = 0; exec_finish(h->x, lane, &r) == -EAGAIN; ms++)
        if (p.fd < 0 ? poll(NULL, 0, 1) < 0 || ms > 60000 : poll(&p, 1, 60000) != 1)
            fail_msg("a step does not end");
    assert_int_equal(r->status, 0);
    h->finished[lane]++;
    assert_int_equal(r->step, h->finished[lane]);
    return r;
}

/* Logit row i reports the token at position. */
static void
keep_row(const struct harness *h, struct harness_slot *s, const struct batch_result *r, uint32_t i,
         uint32_t position)
{
    uint32_t vocab = h->m->shape.vocab;

    s->logprob[position] = r->logprob[i];
    if (!s->lp) return;
    assert_int_equal(r->first_top[i + 1] - r->first_top[i], vocab);
    for (uint32_t k = r->first_top[i]; k < r->first_top[i + 1]; k++)
        s->lp[(size_t)(position - 1) * vocab + (uint32_t)r->top[k].id] = r->top[k].logprob;
}

static void
finish(struct harness *h, unsigned lane)
{
    uint64_t n = h->finished[lane];
    const struct batch_result *r = harness_finish(h, lane);

    for (uint32_t i = 0; i < h->n_out[lane][n % 2]; i++) {
        const struct batch_segment *segment = &h->out[lane][n % 2][i];
        struct harness_slot *s = &h->slot[segment->slot];
        uint32_t end = (uint32_t)segment->first_pos + segment->n_tokens;
        bool all = segment->flags & SEGMENT_PROMPT_LOGPROBS;

        assert_int_equal(r->n_tokens[i], segment->flags & SEGMENT_SAMPLE ? 1 : 0);
        for (uint32_t k = 0; all && k < segment->n_tokens; k++)
            keep_row(h, s, r, segment->first_logit + k, (uint32_t)segment->first_pos + k + 1);
        if (!(segment->flags & SEGMENT_SAMPLE)) continue;
        if (!all) keep_row(h, s, r, segment->first_logit, end);
        s->token[end] = r->token[i * (1 + MAX_DRAFT)];
    }
}

void
harness_run(struct harness *h)
{
    uint32_t enc_token = 0;
    bool more = true;

    for (uint32_t i = 0; i < HARNESS_SLOTS; i++) {
        struct harness_slot *s = &h->slot[i];

        if (!s->active) continue;
        check(s->n_prompt + s->n_new <= HARNESS_LEN && enc_token + s->n_source <= ENC_ROWS);
        s->planned = s->enc_done = 0;
        memset(s->set, 0, sizeof s->set);
        memset(s->gone, 0, sizeof s->gone);
        s->enc_token = enc_token;
        enc_token += s->n_source;
        s->how.prompt = s->token;
        s->how.n_prompt = s->how.first_new = s->n_prompt;
        s->how.max_new = s->n_new;
        exec_set_sampling(h->x, i, &s->how);
    }
    while (more) {
        more = false;
        for (unsigned l = 0; l < h->o.n_lanes; l++)
            if (plan(h, l)) more = true;
        for (unsigned l = 0; l < h->o.n_lanes; l++)
            while (h->started[l] - h->finished[l] > (more && h->o.twice ? 1u : 0u)) finish(h, l);
    }
}
