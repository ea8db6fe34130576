/* outbox.h - records on their way into the response ring.
 *
 * Records are put here and move to the ring as it has room. While the outbox is not empty the loop
 * finishes no further step, and answers to calls are taken up to a record's length: so it never
 * holds more than one step's records and two such answers. The bound is its size, and a reader that
 * is slow stops the engine instead of costing memory.
 */
#ifndef WORKER_IO_OUTBOX_H
#define WORKER_IO_OUTBOX_H

#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct outbox {
    char *base; /* address space; resident only where it was touched */
    size_t cap, used, sent;
    size_t open; /* offset of the record being built */
};

int outbox_open(struct outbox *o, size_t bytes, struct err *e) MUST_USE;
void outbox_close(struct outbox *o);

/* Build one record: begin, then add its parts (each padded to 8), then end. */
void outbox_begin(struct outbox *o, uint16_t type);
void *outbox_add(struct outbox *o, const void *bytes,
                 size_t n);                 /* NULL bytes: zeros; returns the place */
size_t outbox_size(const struct outbox *o); /* payload bytes of the open record */
void outbox_end(struct outbox *o);
/* One record of one part. */
void outbox_put(struct outbox *o, uint16_t type, const void *bytes, size_t n);

/* Move what fits. 1: something moved (publish and ring the bell), 0: nothing, -EBADMSG: the
 * ring. */
int outbox_flush(struct outbox *o, struct ring *ring) MUST_USE;
bool outbox_empty(const struct outbox *o);
/* There is less in it than the longest record of that ring: one more may come that no step
 * brings. */
bool outbox_takes(const struct outbox *o, const struct ring *ring);
/* Ring bytes its first record needs. */
size_t outbox_need(const struct outbox *o);

#endif
