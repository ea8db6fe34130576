/* fuzz_ring.c - the ring against a reference: any bytes, any indices, the same verdict.
 *
 * Input is a list of operations. The real writer reserves and publishes, a hostile one changes
 * bytes of the ring, the tail or the head, the real reader peeks and releases. The reference is
 * written from the rules of ring.h alone, on plain bytes, and computes the result of every call.
 */
#include "tests/fuzz/fuzz.h"

#include "ipc/ring.h"

enum { LOG2 = 13, CAP = 1 << LOG2, MAX_REC = CAP / 8, EPOCH = 7, N_TYPES = 4 };
static const uint32_t max_len[N_TYPES] = { 0, 40, UINT32_MAX, 0 };

static uint32_t
word(struct in *in)
{
    uint32_t low = byte(in);

    return low | byte(in) << 8;
}

/* ---- the ref of the reader */

struct ref {
    uint64_t seen, read, given; /* tail as last looked at, read so far, given back */
    uint64_t have; /* bytes taken out of the ring, which are not looked at there again */
    uint32_t next;
    bool dead;
    uint8_t image[CAP];
};

static uint64_t
number(const uint8_t *p, int n)
{
    uint64_t v = 0;

    while (n--) v = v << 8 | p[n];
    return v;
}

/* n bytes from what was read on: when some are missing, a chunk, up to the tail or the wrap. */
static const uint8_t *
ref_take(struct ref *t, const uint8_t *ring, uint64_t n)
{
    uint64_t wrap = t->read - t->read % CAP + CAP;

    if (t->have < t->read) t->have = t->read;
    if (t->have < t->read + n) {
        uint64_t upto = t->have + RING_CHUNK;

        for (; t->have < upto && t->have < wrap && t->have < t->seen; t->have++)
            t->image[t->have % CAP] = ring[t->have % CAP];
    }
    return t->image + t->read % CAP;
}

/* 1 and the record's place, 0, or -EBADMSG. */
static int
ref_peek(struct ref *t, const uint8_t *ring, uint64_t tail, const uint8_t **ret)
{
    if (t->dead) return -EBADMSG;
    for (int pads = 0;; pads++) {
        const uint8_t *h;
        uint64_t to_end = CAP - t->read % CAP, len, type, size;

        if (t->seen == t->read) {
            /* Between what we have read and what fits behind what we still hold. */
            uint64_t most = t->given + CAP - t->read;

            t->dead = tail % 32 != 0 || tail - t->read > most;
            if (t->dead) return -EBADMSG;
            t->seen = tail;
        }
        if (t->seen == t->read) return 0;
        h = ref_take(t, ring, RING_HEADER);
        len = number(h, 4);
        type = number(h + 4, 2);
        for (size = 32; size < 16 + len; size += 32) {
            if (size > CAP) break;
        }
        t->dead = size > t->seen - t->read || size > to_end || number(h + 8, 4) != EPOCH;
        if (type == 0) {
            t->dead = t->dead || len + 16 != to_end || to_end >= MAX_REC ||
                      number(h + 12, 4) != 0 || number(h + 6, 2) != 0 || pads;
        } else {
            t->dead = t->dead || number(h + 12, 4) != t->next || (type != 1 && type != 2) ||
                      len > MAX_REC - 16 || (type == 1 && len > 40) || number(h + 6, 2) > 1;
        }
        if (t->dead) return -EBADMSG;
        if (type) ref_take(t, ring, size);
        t->read += size;
        if (type == 0) continue;
        t->next++;
        *ret = h;
        return 1;
    }
}

/* ---- the reference of the writer: the result of a reservation */

struct pen {
    uint64_t at, published, head; /* head as last looked at */
    bool dead, poked;             /* poked: somebody else has written into the ring since publish */
    uint32_t seq, n;
    struct line {
        uint64_t at;
        struct ring_header h;
        uint8_t fill;
    } line[CAP / 32]; /* reserved since */
};

static int
pen_reserve(struct pen *p, uint32_t len, uint64_t spare, uint64_t head)
{
    uint64_t size = (16 + (uint64_t)len + 31) / 32 * 32, to_end = CAP - p->at % CAP, need;

    if (p->dead) return -EBADMSG;
    if (len > MAX_REC - 16) return -EMSGSIZE;
    need = size > to_end ? to_end + size : size;
    if (p->at - p->head + need + spare > CAP) {
        p->dead = head % 32 != 0 || head - p->head > p->published - p->head;
        if (p->dead) return -EBADMSG;
        p->head = head;
        if (p->at - p->head + need + spare > CAP) return -EAGAIN;
    }
    p->at += need;
    return 0;
}

static void
pen_fill(struct pen *p, void *to, uint32_t len, uint16_t type, uint16_t flags, uint8_t fill)
{
    uint64_t size = (16 + (uint64_t)len + 31) / 32 * 32;

    memset(to, fill, len);
    p->line[p->n++] = (struct line){ p->at - size, { len, type, flags, EPOCH, p->seq++ }, fill };
}

/* The published record is complete at its place. */
static void
pen_published(struct pen *p, const uint8_t *ring)
{
    for (uint32_t i = 0; i < p->n && !p->poked; i++) {
        const struct line *l = &p->line[i];
        const uint8_t *at = ring + l->at % CAP;

        check(memcmp(at, &l->h, sizeof l->h) == 0);
        for (uint32_t k = 0; k < l->h.len; k++) check(at[sizeof l->h + k] == l->fill);
    }
    p->published = p->at;
    p->n = 0;
    p->poked = false;
}

/* Two segments as shm_make() would lay them out, without the system calls. */
static struct shm
segment(enum shm_kind kind)
{
    struct shm s = { .fd = -1, .bytes = SHM_RING_OFF_D + CAP };

    s.hdr.epoch = EPOCH;
    s.hdr.kind = kind;
    s.hdr.ring_off = SHM_RING_OFF_D;
    s.hdr.ring_log2 = LOG2;
    s.hdr.max_rec = MAX_REC;
    s.base = aligned_alloc(SHM_PAGE, s.bytes);
    check(s.base);
    memset(s.base, 0, s.bytes);
    return s;
}

static void
poke(struct in *in, uint8_t *ring, uint32_t n)
{
    for (uint32_t at = word(in); n && in->p < in->end; n--, at++) {
        ring[at % CAP] = (uint8_t)byte(in);
    }
}

/* Writes a header at the place of the next record, valid for a reader that has read everything;
 * each bit of op makes one field invalid. */
static void
forge(struct in *in, uint8_t *ring, uint32_t op, uint64_t tail, const struct ref *t)
{
    uint64_t to_end = CAP - tail % CAP;
    struct ring_header h = {
        .len = word(in) % (2 * MAX_REC), .type = 2, .epoch = EPOCH, .seq = t->next
    };

    if (op & 16) {
        h.type = RING_PAD;
        h.seq = 0;
        h.len = (uint32_t)to_end - RING_HEADER;
    }
    if (op & 32) h.len += (uint32_t)(int8_t)byte(in);
    if (op & 64) {
        h.type = (uint16_t)(byte(in) % (2 * N_TYPES));
        h.len %= 64;
    }
    if (op & 128) h.flags = (uint16_t)byte(in);
    if (tail % CAP + sizeof h <= CAP) memcpy(ring + tail % CAP, &h, sizeof h);
}

/* Returns a hostile tail: after the present record, about a ring's length after the read position,
 * or anywhere. */
static uint64_t
moved(struct in *in, uint32_t op, uint64_t tail, const uint8_t *ring, const struct ref *t)
{
    if (op & 32) return tail + (16 + number(ring + tail % CAP / 32 * 32, 4) + 31) / 32 * 32;
    if (op & 64) return t->read + CAP - UINT64_C(32) * byte(in);
    return tail + (op & 16 ? (uint64_t)(int64_t)(int8_t)byte(in) * 32 : word(in));
}

static void
peek(struct ring *r, struct ref *t, const uint8_t *ring, uint64_t tail)
{
    const uint8_t *h = NULL;
    struct ring_record rec;
    int want = ref_peek(t, ring, tail, &h), got = ring_peek(r, &rec);

    check(got == want);
    if (got == 1) {
        check(rec.type == number(h + 4, 2) && rec.flags == number(h + 6, 2));
        check(rec.len == number(h, 4) && memcmp(rec.data, h + 16, rec.len) == 0);
    }
    check((*ring_why(r) != 0) == t->dead);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    struct shm a = segment(SHM_W), b = segment(SHM_D);
    struct shm_ctl *wc = shm_ctl(&a), *rc = shm_ctl(&b);
    struct ref ref = { 0 };
    struct pen pen = { 0 };
    struct ring w, r;

    ring_writer(&w, &a, &b);
    check(ring_reader(&r, &b, &a, max_len, N_TYPES) == 0);
    while (in.p < in.end) {
        uint32_t op = byte(&in);
        uint64_t tail = atomic_load_explicit(&wc->tail, memory_order_relaxed);
        uint64_t head = atomic_load_explicit(&rc->head, memory_order_relaxed);

        switch (op % 8) {
        case 0:
        case 1: { /* reserve and fill */
            uint32_t len = op & 8 ? word(&in) % (MAX_REC + 8) : byte(&in);
            uint64_t spare = op & 16 ? byte(&in) * UINT64_C(8) : 0;
            int want = pen_reserve(&pen, len, spare, head);
            uint16_t type = (uint16_t)(1 + (op >> 5) % 2), flags = (uint16_t)(op >> 7);
            void *p = NULL;

            check(ring_reserve(&w, type, flags, len, spare, &p) == want);
            if (want == 0) pen_fill(&pen, p, len, type, flags, (uint8_t)op);
            check(want != 0 || !ring_space_freed(&w));
            break;
        }
        case 2:
            ring_publish(&w);
            pen_published(&pen, shm_ring(&a));
            if (pen.at != w.published) check(!"publish");
            break;
        case 3: /* the hostile hand: bytes in the ring, or a record that is almost right */
            if (op & 8) {
                poke(&in, shm_ring(&a), 1 + op / 16);
            } else {
                forge(&in, shm_ring(&a), op, tail, &ref);
            }
            pen.poked = true;
            break;
        case 4: /* and its indices */
            if (op & 8) {
                tail = moved(&in, op, tail, shm_ring(&a), &ref);
                atomic_store_explicit(&wc->tail, tail, memory_order_relaxed);
            } else {
                head += op & 16 ? (uint64_t)(int64_t)(int8_t)byte(&in) * 32 : word(&in);
                atomic_store_explicit(&rc->head, head, memory_order_relaxed);
            }
            break;
        case 5:
            peek(&r, &ref, shm_ring(&a), tail);
            break;
        case 6:
            ring_release(&r);
            ref.given = ref.read;
            break;
        default: {
            bool empty = tail == ref.read && ref.seen == ref.read;
            uint64_t to_end;

            check(ring_empty(&r) == empty);
            if (!pen.dead) pen.dead = head % 32 != 0 || head - pen.head > pen.published - pen.head;
            if (!pen.dead) pen.head = head;
            to_end = pen.dead ? 0 : CAP - (pen.at - pen.head);
            check(ring_free_bytes(&w) == to_end);
        }
        }
    }
    check((*ring_why(&w) != 0) == pen.dead);
    ring_done(&r);
    ring_done(&w);
    free(a.base);
    free(b.base);
    return 0;
}
