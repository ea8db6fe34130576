/* batch.c - see batch.h.
 *
 * Packed form: a head of fixed size, then the arrays in order, each as in memory. Structs with
 * padding are copied to packed structs, so that equal batches are equal bytes.
 */
#include "worker/sched/batch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAGIC 0x68637462u

struct head {
    uint32_t magic, bytes; /* bytes: head and arrays */
    uint64_t step;
    uint8_t lane, partition, work, zero;
    uint32_t bucket, n_tokens, n_segments, n_logits, n_encode, n_edits, n_copies, n_waits;
    uint32_t n_masks;
};
struct packed_copy {
    uint8_t group, from_tier, to_tier, after;
    uint16_t n_tokens, zero;
    slice_id from, to;
};
struct packed_wait {
    uint64_t step;
    uint32_t lane, zero;
};
_Static_assert(sizeof(struct head) == 56, "no padding");
_Static_assert(sizeof(struct batch_segment) == 36, "no padding");
_Static_assert(sizeof(struct batch_encode) == 20, "no padding");
_Static_assert(sizeof(struct kv_edit) == 24, "no padding");
_Static_assert(sizeof(struct packed_copy) == 16, "no padding");
_Static_assert(sizeof(struct packed_wait) == 16, "no padding");

static size_t
packed_bytes(const struct head *h)
{
    return sizeof *h + (size_t)h->n_tokens * (sizeof(token_id) + sizeof(int32_t)) +
           (size_t)h->n_segments * sizeof(struct batch_segment) +
           (size_t)h->n_encode * sizeof(struct batch_encode) +
           (size_t)h->n_masks * sizeof(uint32_t) + (size_t)h->n_edits * sizeof(struct kv_edit) +
           (size_t)h->n_copies * sizeof(struct packed_copy) +
           (size_t)h->n_waits * sizeof(struct packed_wait);
}

size_t
batch_most_bytes(const struct batch *b)
{
    const struct head h = { .n_tokens = b->max_tokens,
                            .n_segments = b->max_segments,
                            .n_encode = b->max_encode,
                            .n_edits = b->max_edits,
                            .n_copies = b->max_copies,
                            .n_waits = b->max_waits,
                            .n_masks = b->max_tokens };

    return packed_bytes(&h);
}

struct batch *
batch_new(uint32_t max_tokens, uint32_t max_segments, uint32_t max_edits, uint32_t max_copies)
{
    CLEAN(batch_free_at) struct batch *b = calloc(1, sizeof *b);

    if (!b) return NULL;
    b->max_tokens = max_tokens;
    b->max_segments = b->max_encode = max_segments;
    b->max_copies = max_copies;
    b->max_edits = max_edits;
    b->max_waits = MAX_LANES;
    b->token = calloc(MAX(max_tokens, 1u), sizeof b->token[0]);
    b->pos = calloc(MAX(max_tokens, 1u), sizeof b->pos[0]);
    b->segment = calloc(MAX(max_segments, 1u), sizeof b->segment[0]);
    b->encode = calloc(MAX(max_segments, 1u), sizeof b->encode[0]);
    b->copy = calloc(MAX(b->max_copies, 1u), sizeof b->copy[0]);
    b->mask = calloc(MAX(max_tokens, 1u), sizeof b->mask[0]);
    b->edit = calloc(MAX(max_edits, 1u), sizeof b->edit[0]);
    b->wait = calloc(b->max_waits, sizeof b->wait[0]);
    if (!b->token || !b->pos || !b->segment || !b->encode || !b->copy || !b->mask || !b->edit ||
        !b->wait)
        return NULL;
    return TAKE(b);
}

struct batch *
batch_free(struct batch *b)
{
    if (b) {
        free(b->token);
        free(b->pos);
        free(b->segment);
        free(b->encode);
        free(b->copy);
        free(b->mask);
        free(b->edit);
        free(b->wait);
    }
    free(b);
    return NULL;
}

static uint8_t *
pack_bytes(uint8_t *to, const void *from, size_t bytes)
{
    if (bytes > 0) memcpy(to, from, bytes);
    return to + bytes;
}

int
batch_pack(const struct batch *b, void *buf, size_t cap)
{
    struct head h = { .magic = BATCH_MAGIC,
                      .step = b->step,
                      .lane = b->lane,
                      .partition = b->partition,
                      .work = b->work,
                      .bucket = b->bucket,
                      .n_tokens = b->n_tokens,
                      .n_segments = b->n_segments,
                      .n_logits = b->n_logits,
                      .n_encode = b->n_encode,
                      .n_edits = b->n_edits,
                      .n_copies = b->n_copies,
                      .n_waits = b->n_waits,
                      .n_masks = b->n_masks };
    size_t bytes = packed_bytes(&h);
    uint8_t *to = buf;

    if (bytes > cap || bytes > INT32_MAX) return -ENOSPC;
    h.bytes = (uint32_t)bytes;
    to = pack_bytes(to, &h, sizeof h);
    to = pack_bytes(to, b->token, b->n_tokens * sizeof b->token[0]);
    to = pack_bytes(to, b->pos, b->n_tokens * sizeof b->pos[0]);
    to = pack_bytes(to, b->segment, b->n_segments * sizeof b->segment[0]);
    to = pack_bytes(to, b->encode, b->n_encode * sizeof b->encode[0]);
    to = pack_bytes(to, b->mask, b->n_masks * sizeof b->mask[0]);
    to = pack_bytes(to, b->edit, b->n_edits * sizeof b->edit[0]);
    for (uint32_t i = 0; i < b->n_copies; i++) {
        const struct kv_copy *c = &b->copy[i];
        struct packed_copy p = { .group = c->group,
                                 .from_tier = c->from_tier,
                                 .to_tier = c->to_tier,
                                 .after = c->after,
                                 .n_tokens = c->n_tokens,
                                 .from = c->from,
                                 .to = c->to };

        to = pack_bytes(to, &p, sizeof p);
    }
    for (uint32_t i = 0; i < b->n_waits; i++) {
        struct packed_wait p = { .step = b->wait[i].step, .lane = b->wait[i].lane };

        to = pack_bytes(to, &p, sizeof p);
    }
    check(to == (uint8_t *)buf + bytes);
    return (int)bytes;
}

static const uint8_t *
unpack_bytes(void *to, const uint8_t *from, size_t bytes)
{
    if (bytes > 0) memcpy(to, from, bytes);
    return from + bytes;
}

/* Each token attends to itself and to earlier tokens only. */
static bool
masks_fit(const struct batch *b, const struct batch_segment *r)
{
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (b->mask[r->first_logit + i] >> i != 1) return false;
    return true;
}

/* What every reader of a batch relies on: offsets are contiguous and counts match. */
static int
check_rows(const struct batch *b, struct err *e)
{
    uint64_t row = 0, logits = 0, masks = 0;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];
        uint32_t want = r->flags & SEGMENT_PROMPT_LOGPROBS ? r->n_tokens
                        : r->flags & SEGMENT_SAMPLE        ? 1u + r->n_draft
                                                           : 0;

        if (r->first_token != row || r->n_tokens == 0 || r->first_pos < 0 ||
            r->n_draft >= r->n_tokens || r->n_draft > MAX_DRAFT)
            return err_set(e, -EBADMSG, "segment %u has tokens %u to %u, but token %llu is next", i,
                           r->first_token, r->first_token + r->n_tokens, (unsigned long long)row);
        if (want > 0 && r->first_logit != logits)
            return err_set(e, -EBADMSG, "segment %u has logits from %u, but logit row %llu is next",
                           i, r->first_logit, (unsigned long long)logits);
        row += r->n_tokens;
        logits += want;
        if (!(r->flags & SEGMENT_MASK)) continue;
        masks = b->n_logits;
        if (want == 0 || r->n_tokens != 1u + r->n_draft || logits > b->n_masks || !masks_fit(b, r))
            return err_set(e, -EBADMSG,
                           "segment %u: the masks (%u in the batch) do not fit its %u drafts", i,
                           b->n_masks, r->n_draft);
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        const struct batch_encode *c = &b->encode[i];

        if (c->first_token != row || c->n_tokens == 0 || c->n_layers == 0)
            return err_set(e, -EBADMSG,
                           "encoder input %u has tokens %u to %u, but token %llu is next", i,
                           c->first_token, c->first_token + c->n_tokens, (unsigned long long)row);
        row += c->n_tokens;
    }
    if (row != b->n_tokens || logits != b->n_logits || masks != b->n_masks)
        return err_set(e, -EBADMSG,
                       "the batch head has %u tokens, %u logits, %u masks; its segments have %llu, "
                       "%llu, %llu",
                       b->n_tokens, b->n_logits, b->n_masks, (unsigned long long)row,
                       (unsigned long long)logits, (unsigned long long)masks);
    for (uint32_t i = 0; i < b->n_edits; i++)
        if (b->edit[i].op > EDIT_CLEAR || b->edit[i].group >= MAX_GROUPS)
            return err_set(e, -EBADMSG, "table edit %u: unknown operation %u or group %u", i,
                           b->edit[i].op, b->edit[i].group);
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane >= MAX_LANES)
            return err_set(e, -EBADMSG, "wait %u: lane %u does not exist", i, b->wait[i].lane);
    return 0;
}

int
batch_unpack(struct batch *b, const void *buf, size_t n, struct err *e)
{
    const uint8_t *from = buf;
    struct head h;
    int r;

    if (n < sizeof h) return err_set(e, -EBADMSG, "%zu bytes are too short for a batch head", n);
    from = unpack_bytes(&h, from, sizeof h);
    if (h.magic != BATCH_MAGIC || h.zero || h.lane >= MAX_LANES)
        return err_set(e, -EBADMSG, "not a batch: magic %08x, lane %u", h.magic, h.lane);
    if (h.n_tokens > b->max_tokens || h.n_segments > b->max_segments ||
        h.n_encode > b->max_encode || h.n_edits > b->max_edits || h.n_copies > b->max_copies ||
        h.n_waits > b->max_waits || h.n_logits > h.n_tokens || h.n_masks > h.n_logits)
        return err_set(e, -EMSGSIZE,
                       "a batch of %u tokens, %u segments, %u encoder inputs, %u edits, %u copies, "
                       "%u waits; at most %u, %u, %u, %u, %u, %u are allowed",
                       h.n_tokens, h.n_segments, h.n_encode, h.n_edits, h.n_copies, h.n_waits,
                       b->max_tokens, b->max_segments, b->max_encode, b->max_edits, b->max_copies,
                       b->max_waits);
    if (h.bytes != n || packed_bytes(&h) != n)
        return err_set(e, -EBADMSG, "a batch of %zu bytes: its head says %u, its arrays need %zu",
                       n, h.bytes, packed_bytes(&h));
    b->step = h.step;
    b->lane = h.lane;
    b->partition = h.partition;
    b->work = h.work;
    b->bucket = h.bucket;
    b->n_tokens = h.n_tokens;
    b->n_segments = h.n_segments;
    b->n_logits = h.n_logits;
    b->n_encode = h.n_encode;
    b->n_edits = h.n_edits;
    b->n_copies = h.n_copies;
    b->n_waits = h.n_waits;
    b->n_masks = h.n_masks;
    from = unpack_bytes(b->token, from, b->n_tokens * sizeof b->token[0]);
    from = unpack_bytes(b->pos, from, b->n_tokens * sizeof b->pos[0]);
    from = unpack_bytes(b->segment, from, b->n_segments * sizeof b->segment[0]);
    from = unpack_bytes(b->encode, from, b->n_encode * sizeof b->encode[0]);
    from = unpack_bytes(b->mask, from, b->n_masks * sizeof b->mask[0]);
    from = unpack_bytes(b->edit, from, b->n_edits * sizeof b->edit[0]);
    for (uint32_t i = 0; i < b->n_copies; i++) {
        struct packed_copy p;

        from = unpack_bytes(&p, from, sizeof p);
        b->copy[i] = (struct kv_copy){ .group = p.group,
                                       .from_tier = p.from_tier,
                                       .to_tier = p.to_tier,
                                       .after = p.after,
                                       .n_tokens = p.n_tokens,
                                       .from = p.from,
                                       .to = p.to };
    }
    for (uint32_t i = 0; i < b->n_waits; i++) {
        struct packed_wait p;

        from = unpack_bytes(&p, from, sizeof p);
        b->wait[i] = (struct step_dependency){ .lane = (uint8_t)MIN(p.lane, (uint32_t)UINT8_MAX),
                                               .step = p.step };
    }
    r = check_rows(b, e);
    if (r < 0) /* leave an empty batch, not a partial one */
        b->n_tokens = b->n_segments = b->n_logits = b->n_encode = b->n_edits = b->n_copies =
            b->n_waits = b->n_masks = 0;
    return r;
}
