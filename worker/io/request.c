/* request.c - the pool of request slots and their buffers. */
#include "worker/io/request.h"

#include "include/lagan_wire.h"

#include <sys/mman.h>

enum { KEEP_BYTES = 64 << 10 }; /* pages of a buffer stay resident if a request used fewer bytes */

int
requests_open(struct requests *q, uint32_t n, uint32_t ids, uint32_t text, struct err *e)
{
    size_t bytes = (size_t)ids * sizeof(token_id) + text + REQUEST_STOPS_BYTES;

    bytes = ROUND_UP(bytes, (size_t)4096);
    *q = (struct requests){ .n = n, .max_ids = ids, .max_text_bytes = text, .buffer_bytes = bytes };
    q->slot = mmap(NULL, n * sizeof *q->slot, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    if (q->slot == MAP_FAILED) {
        q->slot = NULL;
        return err_set(e, -ENOMEM, "cannot map memory for %u request slots", n);
    }
    q->buffers = mmap(NULL, bytes * n, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (q->buffers == MAP_FAILED) {
        munmap(TAKE(q->slot), n * sizeof *q->slot);
        return err_set(e, -ENOMEM, "no memory: %zu KiB for each of %u requests", bytes >> 10, n);
    }
    return 0; /* no page has been written: a replacement worker must be ready soon */
}

void
requests_open_rows(struct requests *q, size_t bytes)
{
    q->row_bytes = ROUND_UP(bytes, (size_t)4096);
    q->rows = mmap(NULL, q->row_bytes * q->n, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (q->rows != MAP_FAILED) return;
    q->rows = NULL;
    q->row_bytes = 0;
}

void
requests_close(struct requests *q)
{
    if (!q->slot) return;
    if (q->rows) munmap(TAKE(q->rows), q->row_bytes * q->n);
    munmap(q->buffers, q->buffer_bytes * q->n);
    munmap(TAKE(q->slot), q->n * sizeof *q->slot);
}

struct worker_request *
request_take(struct requests *q)
{
    uint32_t slot = q->first_free;
    char *buffer = q->buffers + q->buffer_bytes * slot;
    struct worker_request *r = &q->slot[slot];

    if (slot == q->n) return NULL;
    check(r->state == REQUEST_FREE);
    q->first_free = slot + 1 + r->skip;
    q->n_used++;
    *r = (struct worker_request){ .slot = slot, .ids = (token_id *)(void *)buffer };
    r->text = buffer + (size_t)q->max_ids * sizeof(token_id);
    r->stops = r->text + q->max_text_bytes;
    if (q->rows) r->rows = q->rows + q->row_bytes * slot;
    r->seq.owner = r;
    return r;
}

void
request_give(struct requests *q, struct worker_request *r)
{
    size_t touched = MAX((size_t)r->n_ids * sizeof(token_id), (size_t)r->n_text);

    check(r->state != REQUEST_FREE);
    if (touched > KEEP_BYTES)
        madvise(q->buffers + q->buffer_bytes * r->slot, q->buffer_bytes, MADV_DONTNEED);
    if (r->rows_bytes) madvise(r->rows, r->rows_bytes, MADV_DONTNEED);
    r->state = REQUEST_FREE;
    r->skip = q->first_free - r->slot - 1;
    q->first_free = r->slot;
    q->n_used--;
}

struct worker_request *
request_find(struct requests *q, uint32_t ledger_index, uint32_t gen)
{
    for (uint32_t i = 0, seen = 0; i < q->n && seen < q->n_used; i++) {
        struct worker_request *r = &q->slot[i];

        if (r->state == REQUEST_FREE) continue;
        if (r->ledger_index == ledger_index && r->gen == gen && r->kind == REQUEST_GENERATE)
            return r;
        seen++;
    }
    return NULL;
}

uint16_t
request_had_ended(const struct worker_request *r, token_id last, uint32_t max_len)
{
    if (r->cancelled) return r->cancelled; /* a stop string matched */
    for (uint32_t i = 0; i < r->seq.n_end && r->n_sent > r->sampling.min_new; i++)
        if (r->seq.end_id[i] == last)
            return i < r->seq.n_eos ? LAGAN_FINISH_EOS : LAGAN_FINISH_STOP;
    return r->n_decoder >= max_len || r->n_sent >= r->max_tokens ? LAGAN_FINISH_LENGTH : 0;
}
