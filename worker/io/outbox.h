/* outbox.h - a queue of records that are moved to the response ring when it has free space.
 *
 * While the outbox is not empty, the loop retires no further step; it accepts a text result only if
 * less than one longest ring record is queued. So the outbox holds at most the records of one step
 * and two longest ring records. Its size is fixed: if lagand reads slowly, the engine stops. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "ipc/ring.h"

struct outbox {
    char *base;             /* [cap] mapped memory; pages are resident after use only */
    size_t cap, used, sent; /* bytes: capacity, queued since the last reset, of them sent */
    size_t open;            /* offset of the record that is being built */
};

int outbox_open(struct outbox *o, size_t bytes, struct err *e) MUST_USE;
void outbox_close(struct outbox *o);

/* Starts a record of this type. outbox_add() appends its parts, outbox_end() ends it. */
void outbox_begin(struct outbox *o, uint16_t type);
/* Appends n bytes (NULL: zeros), padded to 8 bytes, to the open record. Returns their address. */
void *outbox_add(struct outbox *o, const void *bytes, size_t n);
size_t outbox_size(const struct outbox *o); /* payload bytes of the open record */
void outbox_end(struct outbox *o);
/* Queues a record whose payload is the n bytes at `bytes`. */
void outbox_put(struct outbox *o, uint16_t type, const void *bytes, size_t n);

/* Moves as many records as fit into the ring. Returns 1 if a record was moved (the caller publishes
 * the ring and rings the doorbell), 0 if not, -EBADMSG if the ring is corrupt. */
int outbox_flush(struct outbox *o, struct ring *ring) MUST_USE;
bool outbox_empty(const struct outbox *o);
/* Returns true if a text result may be added: fewer bytes than ring->max_rec are queued. */
bool outbox_takes(const struct outbox *o, const struct ring *ring);
/* Returns the ring bytes that the first queued record needs. */
size_t outbox_need(const struct outbox *o);
