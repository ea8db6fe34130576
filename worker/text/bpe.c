/* bpe.c - implements bpe.h with a heap.
 *
 * The tokens of a word ("parts") form a linked list; a heap holds the possible merges of a part
 * with the next one, lowest rank first. An entry whose part has changed since is stale; it is
 * dropped when it is popped, so the heap is never searched. A word of n bytes costs O(n log n),
 * also if a client sends a megabyte of one letter. */
#include "worker/text/bpe.h"

#include "base/array.h"
#include "base/utf8.h"
#include "worker/text/json_section.h"

enum { WORD = 4096, END = -1 };
static const uint32_t NONE = UINT32_MAX;
static const char mark[] = "\xe2\x96\x81"; /* U+2581, SentencePiece's space */
enum { MARK = sizeof mark - 1 };

struct part {
    token_id id;
    int32_t prev, next; /* indices of the neighbouring parts, or END */
    token_id made;      /* result of the merge with next */
    uint32_t rank;      /* of the merge with next; NONE: no merge, or merged into prev */
};

static int MUST_USE
grow(struct bpe *b, size_t n)
{
    TRY(array_grow(&b->part, &b->cap, n, INT32_MAX / 3, sizeof *b->part));
    return array_grow(&b->heap, &b->heap_cap, 3 * n, INT32_MAX, sizeof *b->heap);
}

/* Returns the hash-table entry of the pair, or the empty entry where it would be inserted. */
static struct merge *
slot_of(const struct bpe *b, uint64_t pair)
{
    uint32_t i = (uint32_t)(pair * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (b->n_slots - 1);

    while (b->merge[i].rank != NONE && b->merge[i].pair != pair) i = (i + 1) & (b->n_slots - 1);
    return &b->merge[i];
}

static bool
ends_with_mark(const char *s, size_t n)
{
    return n >= MARK && memcmp(s + n - MARK, mark, MARK) == 0;
}

/* Adds merge number n_merges. s: the texts of both tokens, left_len and right_len bytes. */
static int MUST_USE
add_merge(struct bpe *b, const struct vocab *v, char *s, size_t left_len, size_t right_len,
          struct err *e)
{
    int l = vocab_unwrite(v, s, left_len), r = vocab_unwrite(v, s + left_len, right_len);
    token_id left, right, both;
    struct merge *m;

    if (l < 0 || r < 0)
        return err_set(e, -EBADMSG, "model.merges[%u] has a character that stands for no byte",
                       b->n_merges);
    memmove(s + l, s + left_len, (size_t)r);
    left = vocab_find(v, s, (size_t)l);
    right = vocab_find(v, s + l, (size_t)r);
    both = vocab_find(v, s, (size_t)(l + r));
    if (left < 0 || right < 0 || both < 0)
        return err_set(e, -EBADMSG,
                       "model.merges[%u]: one of the tokens or their merger is not in model.vocab",
                       b->n_merges);
    m = slot_of(b, (uint64_t)left << 32 | (uint32_t)right);
    /* No published file has a pair twice; the tokenizers library would use the last one's rank. */
    if (m->rank != NONE) return err_set(e, -EBADMSG, "model.merges[%u] occurs twice", b->n_merges);
    *m = (struct merge){ (uint64_t)left << 32 | (uint32_t)right, b->n_merges++, both };
    if (r >= MARK && memcmp(s + l, mark, MARK) == 0 && !ends_with_mark(s, (size_t)l))
        b->cuts_at_marks = false;
    return 0;
}

/* Reads one merge, which is written ["a", "b"] or, in older files, "a b". */
static int MUST_USE
read_merge(struct bpe *b, const struct vocab *v, struct json *j, char *s, size_t capacity,
           struct err *e)
{
    int n, m;

    if (j->kind == JSON_STRING) {
        char *gap;

        n = json_unescape(j, s, capacity);
        gap = n < 0 ? NULL : memchr(s, ' ', (size_t)n);
        m = gap ? (int)(s + n - gap - 1) : -1;
        if (gap) {
            n = (int)(gap - s);
            memmove(gap, gap + 1, (size_t)m);
        }
    } else {
        TRY(json_section_array(j, "an element of model.merges", e));
        n = json_section_piece(j, s, capacity);
        m = n < 0 ? -1 : json_section_piece(j, s + n, capacity - (size_t)n);
        if (m >= 0 && (json_next(j, NULL) < 0 || j->kind != JSON_ARRAY_END)) m = -1;
    }
    if (m < 0) return err_set(e, -EBADMSG, "model.merges[%u] is not a pair of tokens", b->n_merges);
    return add_merge(b, v, s, (size_t)n, (size_t)m, e);
}

int
bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e)
{
    struct json count = merges;
    uint32_t n = 0;
    char s[VOCAB_MAX_PIECE];
    int more;

    TRY(json_section_array(&merges, "model.merges", e));
    while ((more = json_section_element(&count, e)) > 0) {
        TRY(json_skip(&count, e));
        n++;
    }
    TRY(more);
    for (b->n_slots = 64; b->n_slots / 2 < n; b->n_slots *= 2) check(b->n_slots < 1u << 31);
    b->merge = malloc(b->n_slots * sizeof *b->merge);
    if (!b->merge) return err_set(e, -ENOMEM, "no host memory for %u merges", n);
    for (uint32_t i = 0; i < b->n_slots; i++) b->merge[i] = (struct merge){ .rank = NONE };
    b->cuts_at_marks = !v->byte_level && vocab_find(v, mark, MARK) >= 0;
    while ((more = json_section_element(&merges, e)) > 0)
        TRY(read_merge(b, v, &merges, s, sizeof s, e));
    return more;
}

int
bpe_prepare(struct bpe *b, const struct vocab *v, struct err *e)
{
    if (grow(b, WORD) < 0) return err_set(e, -ENOMEM, "no memory to merge words");
    vocab_bytes(v, b->of_byte);
    for (unsigned c = 0; v->byte_level && c < 256; c++)
        if (b->of_byte[c] < 0)
            return err_set(e, -ENOTSUP,
                           "model.vocab has no token for byte 0x%02x: a byte-level "
                           "vocabulary must have all bytes",
                           c);
    return 0;
}

void
bpe_free(struct bpe *b)
{
    free(b->merge);
    free(b->part);
    free(b->heap);
    *b = (struct bpe){ 0 };
}

bool
bpe_is_sound(const struct bpe *b, const struct vocab *v)
{
    uint32_t used = 0;

    if (b->n_slots < 64 || b->n_slots & (b->n_slots - 1)) return false;
    for (uint32_t i = 0; i < b->n_slots; i++) {
        const struct merge *m = &b->merge[i];

        if (m->rank == NONE) continue;
        used++;
        if (m->made < 0 || (uint32_t)m->made >= v->n) return false;
    }
    return used <= b->n_slots / 2 && b->unk >= -1 && b->unk < (token_id)v->n;
}

static void
heap_push(uint64_t *heap, uint32_t *n, uint64_t x)
{
    uint32_t i = (*n)++;

    for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static uint64_t
heap_pop(uint64_t *heap, uint32_t *n)
{
    uint64_t least = heap[0], last = heap[--*n];
    uint32_t i = 0, child;

    for (; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return least;
}

/* Sets the merge of part i with the next part, and pushes it on the heap if there is one. */
static void
look(struct bpe *b, int32_t i, uint32_t *n_heap)
{
    struct part *p = &b->part[i];
    const struct merge *m;

    p->rank = NONE;
    if (p->next == END) return;
    m = slot_of(b, (uint64_t)p->id << 32 | (uint32_t)b->part[p->next].id);
    p->rank = m->rank;
    p->made = m->made;
    if (p->rank != NONE) heap_push(b->heap, n_heap, (uint64_t)p->rank << 32 | (uint32_t)i);
}

/* Does all merges of n parts. 3 n heap entries suffice: at most n at first, and fewer than n merges
 * add at most 2 each. */
static void
merge_all(struct bpe *b, uint32_t n)
{
    uint32_t n_heap = 0;

    for (uint32_t i = 0; i < n; i++) look(b, (int32_t)i, &n_heap);
    while (n_heap) {
        uint64_t top = heap_pop(b->heap, &n_heap);
        int32_t i = (int32_t)(uint32_t)top, right;
        struct part *p = &b->part[i];

        if (p->rank != top >> 32) continue; /* stale */
        right = p->next;
        p->id = p->made;
        p->next = b->part[right].next;
        b->part[right].rank = NONE;
        if (p->next != END) b->part[p->next].prev = i;
        look(b, i, &n_heap);
        if (p->prev != END) look(b, p->prev, &n_heap);
    }
}

static void
add_part(struct bpe *b, uint32_t *n, token_id id)
{
    b->part[*n] = (struct part){ .id = id, .prev = (int32_t)*n - 1, .next = (int32_t)*n + 1 };
    ++*n;
}

/* Adds the byte tokens of a character without a token. Returns false if not all bytes have one. */
static bool
add_bytes(struct bpe *b, uint32_t *n, const char *s, size_t len)
{
    if (!b->byte_fallback) return false;
    for (size_t i = 0; i < len; i++)
        if (b->of_byte[(unsigned char)s[i]] < 0) return false;
    for (size_t i = 0; i < len; i++) add_part(b, n, b->of_byte[(unsigned char)s[i]]);
    return true;
}

/* Makes a part of each character and returns their number. An unknown token is added only before
 * the next known character, so byte tokens of the characters between them precede it, as in the
 * tokenizers library. */
static uint32_t
split_characters(struct bpe *b, const struct vocab *v, const char *word, size_t n)
{
    uint32_t n_parts = 0;
    bool unknown = false;
    size_t len;

    for (size_t i = 0; i < n; i += len) {
        int k = utf8_at(word + i, n - i);
        token_id id;

        len = k > 0 ? (size_t)k : 1;
        id = vocab_find(v, word + i, len);
        if (id < 0 && add_bytes(b, &n_parts, word + i, len)) continue;
        if (unknown && (id >= 0 || !b->fuse_unk)) add_part(b, &n_parts, b->unk);
        unknown = id < 0 && b->unk >= 0;
        if (id >= 0) add_part(b, &n_parts, id);
    }
    if (unknown) add_part(b, &n_parts, b->unk);
    return n_parts;
}

bool
bpe_has_all_bytes(const struct bpe *b)
{
    for (size_t i = 0; i < ARRAY_LEN(b->of_byte); i++)
        if (b->of_byte[i] < 0) return false;
    return b->byte_fallback;
}

static int MUST_USE
merge_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
           uint32_t cap)
{
    uint32_t n_parts = 0, n_ids = 0;

    TRY(grow(b, n));
    if (v->byte_level)
        for (size_t i = 0; i < n; i++) add_part(b, &n_parts, b->of_byte[(unsigned char)word[i]]);
    else
        n_parts = split_characters(b, v, word, n);
    if (n_parts == 0) return 0;
    b->part[n_parts - 1].next = END;
    merge_all(b, n_parts);
    for (int32_t i = 0; i != END; i = b->part[i].next) {
        if (n_ids == cap) return -EMSGSIZE;
        ids[n_ids++] = b->part[i].id;
    }
    return (int)n_ids;
}

int
bpe_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
         uint32_t cap)
{
    uint32_t n_ids = 0;

    if (b->ignore_merges) {
        token_id whole = vocab_find(v, word, n);

        if (whole >= 0) {
            if (cap == 0) return -EMSGSIZE;
            ids[0] = whole;
            return 1;
        }
    }
    /* Without a pre-tokeniser the whole text is one word. If no merge crosses the beginning of a
     * run of U+2581, the text is cut there: the tokens are the same and need less work memory. */
    while (n) {
        size_t end = n;
        int r;

        if (b->cuts_at_marks) {
            const char *at = word;

            do at = memmem(at + 1, n - (size_t)(at + 1 - word), mark, MARK);
            while (at && ends_with_mark(word, (size_t)(at - word)));
            if (at) end = (size_t)(at - word);
        }
        r = merge_word(b, v, word, end, ids + n_ids, cap - n_ids);
        if (r < 0) return r;
        n_ids += (uint32_t)r;
        word += end;
        n -= end;
    }
    return (int)n_ids;
}
