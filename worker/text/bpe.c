/* bpe.c - see bpe.h.
 *
 * The parts of a word are a list over its bytes; a heap holds the merges that are possible now. An
 * entry whose part has changed since is stale and is dropped when it comes up, so nothing is ever
 * searched for in the heap: n bytes cost O(n log n), also when a client sends a megabyte of one letter.
 */
#include "worker/text/bpe.h"

#include "worker/text/doc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 4096, END = -1 };

struct part {
    token_id id;
    int32_t prev, next; /* parts; END */
    uint32_t rank;      /* of the merge with next; MAP_NONE: none, or this part is gone */
};

static int MUST_USE
more_room(struct bpe *b, size_t n)
{
    size_t cap = MAX(n, (size_t)b->cap * 2);
    struct part *part;
    uint64_t *heap;

    if (n <= b->cap) return 0;
    if (cap > INT32_MAX / 3) return -ENOMEM;
    part = realloc(b->part, cap * sizeof *part);
    if (!part) return -ENOMEM;
    b->part = part;
    heap = realloc(b->heap, 3 * cap * sizeof *heap);
    if (!heap) return -ENOMEM;
    b->heap = heap;
    b->cap = (uint32_t)cap;
    return 0;
}

/* Add the merge of two pieces: the n-th of the list, counted from 0. */
static int MUST_USE
add_merge(struct bpe *b, const struct vocab *v, char *s, size_t left_len, size_t right_len,
          struct err *e)
{
    int l = vocab_unwrite(s, left_len), r = vocab_unwrite(s + left_len, right_len);
    token_id left, right, both;

    if (l < 0 || r < 0)
        return err_set(e, -EBADMSG, "merge %u has a character that stands for no byte",
                       b->n_merges);
    memmove(s + l, s + left_len, (size_t)r);
    left = vocab_find(v, s, (size_t)l);
    right = vocab_find(v, s + l, (size_t)r);
    both = vocab_find(v, s, (size_t)(l + r));
    if (left < 0 || right < 0 || both < 0)
        return err_set(e, -EBADMSG, "merge %u makes or joins what is not in model.vocab",
                       b->n_merges);
    /* A pair listed twice keeps its last rank in the reference; none that is published has one. */
    if (map_put(b->rank, (uint64_t)left << 32 | (uint32_t)right, b->n_merges) < 0)
        return err_set(e, -EBADMSG, "merge %u is there twice", b->n_merges);
    b->merged[b->n_merges++] = both;
    return 0;
}

/* Both spellings: ["a", "b"], and "a b" as older files have it. */
static int MUST_USE
read_merge(struct bpe *b, const struct vocab *v, struct json *j, char *s, size_t room,
           struct err *e)
{
    int n, m;
    char *gap;

    if (j->kind == JSON_STRING) {
        n = json_unescape(j, s, room);
        gap = n < 0 ? NULL : memchr(s, ' ', (size_t)n);
        if (!gap) return err_set(e, -EBADMSG, "merge %u is not two pieces", b->n_merges);
        m = (int)(s + n - gap - 1);
        n = (int)(gap - s);
        memmove(gap, gap + 1, (size_t)m);
        return add_merge(b, v, s, (size_t)n, (size_t)m, e);
    }
    TRY(doc_array(j, "an element of model.merges", e));
    TRY(json_next(j, e));
    if (j->kind != JSON_STRING || (n = json_unescape(j, s, room)) < 0)
        return err_set(e, -EBADMSG, "merge %u is not two pieces", b->n_merges);
    TRY(json_next(j, e));
    if (j->kind != JSON_STRING || (m = json_unescape(j, s + n, room - (size_t)n)) < 0)
        return err_set(e, -EBADMSG, "merge %u is not two pieces", b->n_merges);
    TRY(json_next(j, e));
    if (j->kind != JSON_ARRAY_END)
        return err_set(e, -EBADMSG, "merge %u is not two pieces", b->n_merges);
    return add_merge(b, v, s, (size_t)n, (size_t)m, e);
}

int
bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e)
{
    struct json count = merges;
    uint32_t n = 0;
    char s[4096];
    int more;

    TRY(doc_array(&merges, "model.merges", e));
    while ((more = doc_element(&count, e)) > 0) {
        TRY(json_skip(&count, e));
        n++;
    }
    TRY(more);
    b->rank = map_new(MAX(n, 1u));
    b->merged = malloc(MAX(n, 1u) * sizeof *b->merged);
    if (!b->rank || !b->merged || more_room(b, WORD) < 0) return err_set(e, -ENOMEM, "merges");
    while ((more = doc_element(&merges, e)) > 0) TRY(read_merge(b, v, &merges, s, sizeof s, e));
    TRY(more);
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;

        b->of_byte[c] = vocab_find(v, &byte, 1);
        if (b->of_byte[c] < 0)
            return err_set(e, -ENOTSUP,
                           "model.vocab has no token for byte 0x%02x: only whole byte-level "
                           "vocabularies are served yet",
                           (unsigned)c);
    }
    return 0;
}

void
bpe_free(struct bpe *b)
{
    map_free(b->rank);
    free(b->merged);
    free(b->part);
    free(b->heap);
    *b = (struct bpe){ 0 };
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

/* Find the merge of part i with its right neighbour and remember it, if there is one. */
static void
look(struct bpe *b, int32_t i, uint32_t *n_heap)
{
    struct part *p = &b->part[i];

    p->rank = MAP_NONE;
    if (p->next == END) return;
    p->rank = map_find(b->rank, (uint64_t)p->id << 32 | (uint32_t)b->part[p->next].id);
    if (p->rank != MAP_NONE) heap_push(b->heap, n_heap, (uint64_t)p->rank << 32 | (uint32_t)i);
}

/* Each merge takes one entry away and adds two at most, so 3 n entries are room enough. */
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
        p->id = b->merged[p->rank];
        p->next = b->part[right].next;
        b->part[right].rank = MAP_NONE;
        if (p->next != END) b->part[p->next].prev = i;
        look(b, i, &n_heap);
        if (p->prev != END) look(b, p->prev, &n_heap);
    }
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
    TRY(more_room(b, n));
    for (size_t i = 0; i < n; i++)
        b->part[i] = (struct part){ .id = b->of_byte[(unsigned char)word[i]],
                                    .prev = (int32_t)i - 1,
                                    .next = i + 1 < n ? (int32_t)i + 1 : END };
    /* The last part looks too: it has no neighbour, which look() writes down. */
    merge_all(b, (uint32_t)n);
    for (int32_t i = 0; i != END; i = b->part[i].next) {
        if (n_ids == cap) return -EMSGSIZE;
        ids[n_ids++] = b->part[i].id;
    }
    return (int)n_ids;
}
