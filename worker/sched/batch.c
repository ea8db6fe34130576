/* batch.c - allocates batches, and packs them for other processes: see batch.h.
 *
 * A packed batch is a head of 8 bytes, the counts (the first fields of struct batch), then the
 * arrays in the order of arrays[], all as they are in memory. No packed struct has padding, so
 * equal batches have equal bytes.
 */
#include "worker/sched/batch.h"

#define BATCH_MAGIC 0x68637462u
#define BAD_BATCH(e, ...) err_set(e, -EBADMSG, "invalid batch: " __VA_ARGS__)

enum { COUNT_BYTES = offsetof(struct batch, n_masks) + sizeof(uint32_t) };
struct head {
    uint32_t magic, bytes; /* bytes: length of the packed batch */
};
_Static_assert(COUNT_BYTES == 48, "no padding");
_Static_assert(sizeof(struct batch_segment) == 36, "no padding");
_Static_assert(sizeof(struct batch_encode) == 20, "no padding");
_Static_assert(sizeof(struct kv_edit) == 24, "no padding");
_Static_assert(sizeof(struct kv_copy) == 16, "no padding");
_Static_assert(sizeof(struct step_dependency) == 16, "no padding");

/* For each array of struct batch: offsets of pointer, count and capacity; size of an element. */
#define ARRAY(name, n, max) \
    { \
        offsetof(struct batch, name), offsetof(struct batch, n), offsetof(struct batch, max), \
            sizeof *((struct batch *)NULL)->name \
    }
static const struct {
    size_t at, n_at, max_at, item_bytes;
} arrays[] = {
    ARRAY(token, n_tokens, max_tokens),       ARRAY(pos, n_tokens, max_tokens),
    ARRAY(segment, n_segments, max_segments), ARRAY(encode, n_encode, max_encode),
    ARRAY(mask, n_masks, max_tokens),         ARRAY(edit, n_edits, max_edits),
    ARRAY(copy, n_copies, max_copies),        ARRAY(wait, n_waits, max_waits),
};

static uint32_t
number_at(const struct batch *b, size_t at)
{
    uint32_t n;

    memcpy(&n, (const char *)b + at, sizeof n);
    return n;
}

static void *
array_at(const struct batch *b, size_t at)
{
    void *array;

    memcpy(&array, (const char *)b + at, sizeof array);
    return array;
}

/* Returns the packed size of b; most: the size if every array of b were full. */
static size_t
packed_bytes(const struct batch *b, bool most)
{
    size_t bytes = sizeof(struct head) + COUNT_BYTES;

    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        bytes += number_at(b, most ? arrays[i].max_at : arrays[i].n_at) * arrays[i].item_bytes;
    return bytes;
}

size_t
batch_most_bytes(const struct batch *b)
{
    return packed_bytes(b, /* most= */ true);
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
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
        void *array = calloc(MAX(number_at(b, arrays[i].max_at), 1u), arrays[i].item_bytes);

        if (!array) return NULL;
        memcpy((char *)b + arrays[i].at, &array, sizeof array);
    }
    return TAKE(b);
}

struct batch *
batch_free(struct batch *b)
{
    for (size_t i = 0; b && i < ARRAY_LEN(arrays); i++) free(array_at(b, arrays[i].at));
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
    size_t bytes = packed_bytes(b, /* most= */ false);
    struct head h = { .magic = BATCH_MAGIC, .bytes = (uint32_t)bytes };
    uint8_t *to = buf;

    if (bytes > cap || bytes > INT32_MAX) return -ENOSPC;
    to = pack_bytes(to, &h, sizeof h);
    to = pack_bytes(to, b, COUNT_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        to = pack_bytes(to, array_at(b, arrays[i].at),
                        number_at(b, arrays[i].n_at) * arrays[i].item_bytes);
    check(to == (uint8_t *)buf + bytes);
    return (int)bytes;
}

/* True if each token of the segment attends to itself and to earlier tokens only. */
static bool
masks_fit(const struct batch *b, const struct batch_segment *r)
{
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (b->mask[r->first_logit + i] >> i != 1) return false;
    return true;
}

/* Checks what every reader of a batch relies on: the segments' token and logit ranges are adjacent
 * and their sums equal the counts of the batch. */
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
            return BAD_BATCH(e, "segment %u has tokens %u to %u, but token %llu is next", i,
                             r->first_token, r->first_token + r->n_tokens, (unsigned long long)row);
        if (want > 0 && r->first_logit != logits)
            return BAD_BATCH(e, "segment %u has logit rows from %u, but row %llu is next", i,
                             r->first_logit, (unsigned long long)logits);
        row += r->n_tokens;
        logits += want;
        if (!(r->flags & SEGMENT_MASK)) continue;
        masks = b->n_logits;
        if (want == 0 || r->n_tokens != 1u + r->n_draft || logits > b->n_masks || !masks_fit(b, r))
            return BAD_BATCH(e, "segment %u: the batch has %u masks, which do not fit %u drafts", i,
                             b->n_masks, r->n_draft);
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        const struct batch_encode *c = &b->encode[i];

        if (c->first_token != row || c->n_tokens == 0 || c->n_layers == 0)
            return BAD_BATCH(e, "encoder input %u has tokens %u to %u, but token %llu is next", i,
                             c->first_token, c->first_token + c->n_tokens, (unsigned long long)row);
        row += c->n_tokens;
    }
    if (row != b->n_tokens || logits != b->n_logits || masks != b->n_masks)
        return BAD_BATCH(e,
                         "its head has %u tokens, %u logit rows, %u masks; its segments have %llu, "
                         "%llu, %llu",
                         b->n_tokens, b->n_logits, b->n_masks, (unsigned long long)row,
                         (unsigned long long)logits, (unsigned long long)masks);
    for (uint32_t i = 0; i < b->n_edits; i++)
        if (b->edit[i].op > EDIT_CLEAR || b->edit[i].group >= MAX_GROUPS)
            return BAD_BATCH(e, "table edit %u has operation %u and KV group %u", i, b->edit[i].op,
                             b->edit[i].group);
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane >= MAX_LANES)
            return BAD_BATCH(e, "dependency %u is on lane %u, which does not exist", i,
                             b->wait[i].lane);
    return 0;
}

int
batch_unpack(struct batch *b, const void *buf, size_t n, struct err *e)
{
    const uint8_t *from = (const uint8_t *)buf + sizeof(struct head) + COUNT_BYTES;
    struct batch in = { 0 }; /* has only the counts */
    struct head h;
    bool fits = true;
    int r;

    if (n < sizeof h + COUNT_BYTES) return BAD_BATCH(e, "%zu bytes are too few for its head", n);
    memcpy(&h, buf, sizeof h);
    memcpy(&in, (const uint8_t *)buf + sizeof h, COUNT_BYTES);
    if (h.magic != BATCH_MAGIC || in.zero || in.lane >= MAX_LANES)
        return BAD_BATCH(e, "its head has magic %08x and lane %u", h.magic, in.lane);
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        fits = fits && number_at(&in, arrays[i].n_at) <= number_at(b, arrays[i].max_at);
    if (!fits || in.n_logits > in.n_tokens || in.n_masks > in.n_logits)
        return err_set(e, -EMSGSIZE,
                       "a batch exceeds a limit: tokens %u (at most %u), segments %u (%u), encoder "
                       "inputs %u (%u), edits %u (%u), copies %u (%u), dependencies %u (%u)",
                       in.n_tokens, b->max_tokens, in.n_segments, b->max_segments, in.n_encode,
                       b->max_encode, in.n_edits, b->max_edits, in.n_copies, b->max_copies,
                       in.n_waits, b->max_waits);
    if (h.bytes != n || packed_bytes(&in, false) != n)
        return BAD_BATCH(e, "it has %zu bytes, its head says %u, its arrays need %zu", n, h.bytes,
                         packed_bytes(&in, false));
    memcpy(b, &in, COUNT_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
        size_t bytes = number_at(b, arrays[i].n_at) * arrays[i].item_bytes;

        if (bytes > 0) memcpy(array_at(b, arrays[i].at), from, bytes);
        from += bytes;
    }
    r = check_rows(b, e);
    if (r < 0) /* leave an empty batch, not a partial one */
        b->n_tokens = b->n_segments = b->n_logits = b->n_encode = b->n_edits = b->n_copies =
            b->n_waits = b->n_masks = 0;
    return r;
}
