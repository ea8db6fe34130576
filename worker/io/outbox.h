/* outbox.h - records that wait for free space in the response ring.
 *
 * While the outbox is not empty, the loop retires no further step and takes text calls only up to
 * the length of one record. So the outbox never holds more than the records of one step and two
 * text results. Its size is fixed: a slow reader stops the engine and costs no memory.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct outbox {
    char *base; /* address space; resident only as far as it was used */
    size_t cap, used, sent;
    size_t open; /* offset of the record being built */
};

int outbox_open(struct outbox *o, size_t bytes, struct err *e) MUST_USE;
void outbox_close(struct outbox *o);

/* To build a record: begin, add each part (padded to 8 bytes), end. */
void outbox_begin(struct outbox *o, uint16_t type);
/* bytes NULL: zeros. Returns the part's address. */
void *outbox_add(struct outbox *o, const void *bytes, size_t n);
size_t outbox_size(const struct outbox *o); /* payload bytes of the open record */
void outbox_end(struct outbox *o);
/* Queues a record of one part. */
void outbox_put(struct outbox *o, uint16_t type, const void *bytes, size_t n);

/* Moves as many records as fit. Returns 1 if a record moved (publish and ring the doorbell), 0 if
 * none did, -EBADMSG if the ring is corrupt. */
int outbox_flush(struct outbox *o, struct ring *ring) MUST_USE;
bool outbox_empty(const struct outbox *o);
/* True if less than one longest ring record is queued: a text result may be added. */
bool outbox_takes(const struct outbox *o, const struct ring *ring);
/* Returns the ring bytes that the first queued record needs. */
size_t outbox_need(const struct outbox *o);
