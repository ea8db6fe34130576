/* outbox.c - a buffer of records, filled from the front and reset when all records were sent. */
#include "worker/io/outbox.h"

#include "base/failpoint.h"

#include <sys/mman.h>

/* Pages that stay resident when all records were sent: the logits of a search may need far more. */
enum { KEEP_BYTES = 64 << 20 };

struct outbox_head {
    uint32_t len;
    uint16_t type, pad;
};
_Static_assert(sizeof(struct outbox_head) == 8, "the payload behind a head must be 8-aligned");

int
outbox_open(struct outbox *o, size_t bytes, struct err *e)
{
    *o = (struct outbox){ .cap = ROUND_UP(bytes, (size_t)4096) };
    o->base = mmap(NULL, o->cap, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (o->base == MAP_FAILED) {
        o->base = NULL;
        return err_set(e, -ENOMEM, "no memory: %zu KiB for records to lagand", o->cap >> 10);
    }
    return 0;
}

void
outbox_close(struct outbox *o)
{
    if (o->base) munmap(o->base, o->cap);
    o->base = NULL;
}

static struct outbox_head *
head_at(const struct outbox *o, size_t at)
{
    return (struct outbox_head *)(void *)(o->base + at);
}

void
outbox_begin(struct outbox *o, uint16_t type)
{
    check(o->used + sizeof(struct outbox_head) <= o->cap);
    o->open = o->used;
    *head_at(o, o->open) = (struct outbox_head){ .type = type };
    o->used += sizeof(struct outbox_head);
}

void *
outbox_add(struct outbox *o, const void *bytes, size_t n)
{
    size_t padded = ROUND_UP(n, (size_t)8);
    char *to = o->base + o->used;

    check(o->used + padded <= o->cap);
    if (bytes && n)
        memcpy(to, bytes, n);
    else
        memset(to, 0, n);
    memset(to + n, 0, padded - n);
    o->used += padded;
    return to;
}

size_t
outbox_size(const struct outbox *o)
{
    return o->used - o->open - sizeof(struct outbox_head);
}

void
outbox_end(struct outbox *o)
{
    head_at(o, o->open)->len = (uint32_t)outbox_size(o);
}

void
outbox_put(struct outbox *o, uint16_t type, const void *bytes, size_t n)
{
    outbox_begin(o, type);
    outbox_add(o, bytes, n);
    outbox_end(o);
}

int
outbox_flush(struct outbox *o, struct ring *ring)
{
    int moved = 0;

    while (o->sent < o->used) {
        const struct outbox_head *h = head_at(o, o->sent);
        void *to;
        int r = ring_reserve(ring, h->type, 0, h->len, 0, &to);

        check(r != -EMSGSIZE);
        if (r == -EAGAIN) break;
        if (r < 0) return r;
        memcpy(to, h + 1, h->len);
        FP(outbox_copied);
        o->sent += sizeof *h + h->len;
        moved = 1;
    }
    if (o->sent < o->used) return moved;
    if (o->used > KEEP_BYTES) madvise(o->base + KEEP_BYTES, o->used - KEEP_BYTES, MADV_DONTNEED);
    o->sent = o->used = 0;
    return moved;
}

bool
outbox_empty(const struct outbox *o)
{
    return o->used == 0;
}

bool
outbox_takes(const struct outbox *o, const struct ring *ring)
{
    return o->used < ring->max_rec;
}

size_t
outbox_need(const struct outbox *o)
{
    if (outbox_empty(o)) return 0;
    return ROUND_UP(RING_HEADER + (size_t)head_at(o, o->sent)->len, (size_t)RING_ALIGN);
}
