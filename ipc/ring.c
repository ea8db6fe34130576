/* ring.c - see ring.h, which has the format of a record and the rules.
 *
 * The file has the helpers of both sides, the writer, and the reader. Positions count bytes since
 * the start of the ring and do not wrap; an index into the bytes is a position modulo cap. A value
 * stored by the peer is loaded once into a local variable, compared with the values that this side
 * knows, and only the local variable is used. */
#include "ipc/ring.h"

#include "base/failpoint.h"

#include <stdarg.h>
#include <stdio.h>

_Static_assert(sizeof(struct ring_header) == RING_HEADER, "the header is 16 bytes");
_Static_assert((int)RING_ALIGN == (int)SHM_REC_ALIGN, "ring.h and shm.h have one alignment");

static uint64_t
record_bytes(uint32_t len)
{
    return ROUND_UP((uint64_t)RING_HEADER + len, RING_ALIGN);
}

static uint64_t
to_end(const struct ring *r, uint64_t pos)
{
    return r->cap - (pos & (r->cap - 1));
}

static uint8_t *
data_at(const struct ring *r, uint64_t pos)
{
    return r->data + (pos & (r->cap - 1));
}

static int PRINTF_LIKE(2, 3) broken(struct ring *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
    r->open = 0;
    r->copied = r->pos;
    return -EBADMSG;
}

static void
init(struct ring *r, const struct shm *bytes, const struct shm *head)
{
    *r = (struct ring){
        .w = shm_ctl(bytes),
        .r = shm_ctl(head),
        .data = shm_ring(bytes),
        .cap = UINT64_C(1) << bytes->hdr.ring_log2,
        .epoch = (uint32_t)bytes->hdr.epoch,
        .max_rec = bytes->hdr.max_rec,
    };
}

/* ---- the writer */

void
ring_writer(struct ring *r, const struct shm *mine, const struct shm *peer)
{
    init(r, mine, peer);
}

/* Loads the reader's head into r->peer. A valid head is between r->peer and the published tail. */
static int
see_head(struct ring *r)
{
    uint64_t head = atomic_load_explicit(&r->r->head, memory_order_acquire);

    if (head - r->peer > r->published - r->peer || head % RING_ALIGN) {
        return broken(r, "the reader stored head %#llx; valid is %#llx to %#llx",
                      (unsigned long long)head, (unsigned long long)r->peer,
                      (unsigned long long)r->published);
    }
    r->peer = head;
    return 0;
}

/* Writes the staged records to the ring in one copy. Stores of a core become visible in order, and
 * a store to a cache line that the reader has just read is slow. If records were written to the
 * ring word by word, each word would delay the writer's other stores; the non-temporal stores that
 * shm_copy_out() uses for a large block do not wait for the cache line. */
static void
put_staged(struct ring *r)
{
    if (r->staged == r->pos) return;
    shm_copy_out(data_at(r, r->staged), r->stage, r->pos - r->staged);
    r->staged = r->pos;
}

/* Finds space for a record at pos, pads to the end of the ring if necessary, and sets r->open: up
 * to r->open ring_reserve() checks neither the head of the reader nor the end of the ring. */
static int COLD
make_space(struct ring *r, uint32_t len, uint64_t spare)
{
    uint64_t bytes = record_bytes(len), left = to_end(r, r->pos), pad = bytes > left ? left : 0;

    check(spare <= r->cap / 2);
    if (*r->why) return -EBADMSG;
    if (len > r->max_rec - RING_HEADER) return -EMSGSIZE;
    if (r->cap - (r->pos - r->peer) < pad + bytes + spare) {
        TRY(see_head(r));
        r->full = r->cap - (r->pos - r->peer) < pad + bytes + spare;
        r->open = 0;
        if (r->full) return -EAGAIN;
    }
    r->full = false;
    if (left == r->cap || pad) put_staged(r);
    if (pad) {
        struct ring_header h = { (uint32_t)(pad - RING_HEADER), RING_PAD, 0, r->epoch, 0 };

        memcpy(data_at(r, r->pos), &h, sizeof h);
        r->pos += pad;
        r->staged = r->pos;
    }
    r->open = MIN(r->peer + r->cap, r->pos + to_end(r, r->pos));
    return 0;
}

static void
put_header(struct ring *r, uint8_t *at, uint16_t type, uint16_t flags, uint32_t len, void **ret)
{
    struct ring_header *h = (struct ring_header *)(void *)at;

    *h = (struct ring_header){ len, type, flags, r->epoch, r->seq++ };
    *ret = h + 1;
    FP(ring_reserved);
    r->pos += record_bytes(len);
}

static int COLD
reserve(struct ring *r, uint16_t type, uint16_t flags, uint32_t len, uint64_t spare, void **ret)
{
    uint64_t bytes = record_bytes(len);

    if (r->pos + bytes + spare > r->open || len > r->max_rec - RING_HEADER)
        TRY(make_space(r, len, spare));
    if (bytes > RING_SMALL || r->pos - r->staged + bytes > RING_STAGE) put_staged(r);
    if (bytes > RING_SMALL) {
        put_header(r, data_at(r, r->pos), type, flags, len, ret);
        r->staged = r->pos;
    } else {
        put_header(r, r->stage + (r->pos - r->staged), type, flags, len, ret);
    }
    return 0;
}

int
ring_reserve(struct ring *r, uint16_t type, uint16_t flags, uint32_t len, uint64_t spare,
             void **ret)
{
    uint64_t bytes = record_bytes(len), at = r->pos - r->staged;

    check(type != RING_PAD && (flags & ~RING_MORE) == 0);
    if (r->pos + bytes + spare > r->open || len > r->max_rec - RING_HEADER || bytes > RING_SMALL ||
        at + bytes > RING_STAGE)
        return reserve(r, type, flags, len, spare, ret);
    put_header(r, r->stage + at, type, flags, len, ret);
    return 0;
}

void
ring_publish(struct ring *r)
{
    if (r->pos == r->published) return;
    put_staged(r);
    if (r->pos - r->published >= SHM_MANY) shm_fence_out();
    FP(ring_publishing);
    r->published = r->pos;
    atomic_store_explicit(&r->w->tail, r->pos, memory_order_release); /* pair: see_tail() */
    FP(ring_published);
}

uint64_t
ring_free_bytes(struct ring *r)
{
    if (*r->why || see_head(r) < 0) return 0;
    return r->cap - (r->pos - r->peer);
}

bool
ring_space_freed(const struct ring *r)
{
    /* Relaxed, because only a change matters; see_head() loads the head again before use. */
    return r->full && atomic_load_explicit(&r->r->head, memory_order_relaxed) != r->peer;
}

/* ---- the reader */

int
ring_reader(struct ring *r, const struct shm *mine, const struct shm *peer, const uint32_t *max_len,
            uint32_t n_types)
{
    init(r, peer, mine);
    check(n_types <= RING_TYPES);
    for (uint32_t i = 1; i < n_types; i++)
        if (max_len[i]) r->below[i] = MIN(max_len[i], r->max_rec - RING_HEADER) + 1;
    r->copy = r->next = malloc(r->max_rec + RING_CHUNK);
    return r->copy ? 0 : -ENOMEM;
}

void
ring_done(struct ring *r)
{
    free(r->copy);
    *r = (struct ring){ .cap = 0 };
}

/* Loads the writer's tail into r->peer. A valid tail is not below r->pos, the end of the records
 * read, and at most cap above r->published, the stored head. */
static int
see_tail(struct ring *r)
{
    uint64_t tail = atomic_load_explicit(&r->w->tail, memory_order_acquire);

    if (tail - r->published > r->cap || tail - r->published < r->pos - r->published ||
        tail % RING_ALIGN) {
        return broken(r, "the writer stored tail %#llx; the head is %#llx, read up to %#llx",
                      (unsigned long long)tail, (unsigned long long)r->published,
                      (unsigned long long)r->pos);
    }
    r->peer = tail;
    return 0;
}

/* Sets r->why to the violated rule and the header as loaded. Returns -EBADMSG. */
static int COLD
broken_header(struct ring *r, const char *rule, const struct ring_header *h)
{
    return broken(r,
                  "record header at %#llx: %s: len %u type %u flags %#x epoch %u seq %u; expected "
                  "epoch %u seq %u",
                  (unsigned long long)r->pos, rule, h->len, h->type, h->flags, h->epoch, h->seq,
                  r->epoch, r->seq);
}

/* Validates one header against everything that this side knows. */
static int
check_header(struct ring *r, const struct ring_header *h)
{
    uint64_t bytes = record_bytes(h->len), left = to_end(r, r->pos);

    if (bytes > r->peer - r->pos)
        return broken_header(r, "the record is longer than the published bytes", h);
    if (bytes > left) return broken_header(r, "the record crosses the end of the ring", h);
    if (h->epoch != r->epoch) return broken_header(r, "wrong epoch", h);
    if (h->type == RING_PAD) {
        /* The writer pads only before a record that did not fit. So a pad reaches to the end of the
         * ring and is shorter than the longest record. No pad follows a pad, so peek() ends. */
        if (bytes != left || h->len != left - RING_HEADER)
            return broken_header(r, "wrong length of a pad", h);
        if (bytes >= r->max_rec) return broken_header(r, "a pad is longer than any record", h);
        if (h->seq) return broken_header(r, "a pad has a sequence number", h);
        if (h->flags) return broken_header(r, "a pad has flags", h);
        return 0;
    }
    if (h->seq != r->seq) return broken_header(r, "wrong sequence number", h);
    if (h->type >= RING_TYPES || r->below[h->type] == 0) return broken_header(r, "unknown type", h);
    if (h->len >= r->below[h->type])
        return broken_header(r, "the record is too long for its type", h);
    if (h->flags & ~RING_MORE) return broken_header(r, "reserved flags are set", h);
    return 0;
}

/* Extends the private copy to at least n bytes from pos, not beyond the end of the ring. Loads each
 * byte of shared memory once, and many at a time, so that transfers from the other core overlap. */
static void
fetch(struct ring *r, uint64_t n)
{
    uint64_t have = r->copied - r->pos, wrap = to_end(r, r->copied);
    uint64_t some = MIN(r->peer - r->copied, MIN(wrap, MAX(n - have, (uint64_t)RING_CHUNK)));

    if (have) memmove(r->copy, r->next, have);
    shm_copy_in(r->copy + have, data_at(r, r->copied), some);
    r->next = r->copy;
    r->copied += some;
}

static const struct ring_header *
copied(struct ring *r, uint64_t n)
{
    if (r->copied - r->pos < n) fetch(r, n);
    return (const struct ring_header *)(const void *)r->next;
}

/* Returns the record at r->next, which is validated and completely copied. */
static int
take(struct ring *r, struct ring_record *ret)
{
    const struct ring_header *h = (const struct ring_header *)(const void *)r->next;
    uint64_t bytes = record_bytes(h->len);

    *ret = (struct ring_record){ h->type, h->flags, h->len, h + 1 };
    r->pos += bytes;
    r->next += bytes;
    r->seq++;
    FP(ring_copied);
    return 1;
}

/* ring_peek() for a record that is not copied yet, or is invalid. */
static int COLD
peek(struct ring *r, struct ring_record *ret)
{
    const struct ring_header *h; /* points into the private copy */

    if (*r->why) return -EBADMSG;
    for (;;) {
        if (r->pos == r->peer) {
            TRY(see_tail(r));
            if (r->pos == r->peer) return 0;
            FP(ring_tail_seen);
        }
        h = copied(r, RING_HEADER);
        TRY(check_header(r, h));
        if (h->type != RING_PAD) break;
        r->pos += record_bytes(h->len);
        r->copied = r->pos;
    }
    (void)copied(r, record_bytes(h->len));
    return take(r, ret);
}

int
ring_peek(struct ring *r, struct ring_record *ret)
{
    const struct ring_header *h = (const struct ring_header *)(const void *)r->next;
    uint64_t have = r->copied - r->pos;

    /* Fast path: a completely copied record that passes all rules of check_header(). (A pad does
     * not: below[RING_PAD] is 0.) No look at tail: all bytes of the copy are published. */
    if (have < RING_HEADER || record_bytes(h->len) > have || h->type >= RING_TYPES ||
        h->len >= r->below[h->type] || h->epoch != r->epoch || h->seq != r->seq ||
        h->flags & ~RING_MORE)
        return peek(r, ret);
    return take(r, ret);
}

void
ring_release(struct ring *r)
{
    if (r->pos == r->published) return;
    FP(ring_releasing);
    r->published = r->pos;
    atomic_store_explicit(&r->r->head, r->pos, memory_order_release); /* pair: see_head() */
    FP(ring_released);
}

bool
ring_empty(const struct ring *r)
{
    return r->pos == r->peer && atomic_load_explicit(&r->w->tail, memory_order_relaxed) == r->pos;
}

const char *
ring_why(const struct ring *r)
{
    return r->why;
}
