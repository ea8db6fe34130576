/* ring.h - a queue of byte records between two processes that do not trust each other.
 *
 * One writer, one reader. The ring's bytes and its tail lie in the writer's memfd (ipc/shm.h), the
 * head in the reader's. A record is a 16-byte header and len payload bytes, 32-byte aligned, never
 * split across the wrap; the gap is filled with a RING_PAD record (len = room - 16, no seq).
 *
 *    0 len u32   4 type u16   6 flags u16   8 epoch u32   12 seq u32
 *
 * The one commit point is ring_publish(): a kill before it and the records never existed, after it
 * they are complete. Publish once for many records.
 *
 * The reader takes tail and header once into locals, validates them (bounds, alignment, epoch, seq,
 * type, length by type), copies the payload out and only then lets anyone look. A violation is proof
 * of corruption: -EBADMSG, nothing is read after it, the peer is finished. ring_why() says which.
 */
#ifndef IPC_RING_H
#define IPC_RING_H

#include "base/base.h"
#include "ipc/shm.h"

enum {
    RING_HEADER = 16,
    RING_ALIGN = 32,
    RING_SMALL = 2048, /* bytes: a longer record is written straight into the ring, */
    RING_STAGE = 4096, /* shorter ones wait together with their writer, up to this many */
    RING_CHUNK = 4096, /* bytes that the reader copies at once, where there are so many */
    RING_TYPES = 16,   /* types are smaller */
    RING_PAD = 0,
    RING_MORE = 1 /* flags: a fragment follows; the other bits are reserved and zero */
};

struct ring_header {
    uint32_t len;
    uint16_t type, flags;
    uint32_t epoch, seq;
};

struct ring_record {
    uint16_t type, flags;
    uint32_t len;
    const void *data; /* private copy, 16-aligned, valid until the next ring_peek() */
};

struct ring {              /* process-private; every field trusted */
    struct shm_ctl *w, *r; /* the writer's (tail) and the reader's (head) control page */
    uint8_t *data;
    uint64_t cap, pos, published; /* writer: tail, last stored · reader: head, last released */
    uint64_t peer;                /* the peer's index as last seen: head_cache or tail_cache */
    uint32_t epoch, max_rec, seq; /* epoch and seq not side by side: README, What surprised us */
    bool full;                    /* writer: the last reserve found no room */
    uint32_t below[RING_TYPES];   /* reader: a payload of the type is shorter; 0: unknown type */
    uint64_t copied;              /* reader: what follows, up to there, has been copied out, */
    uint8_t *copy, *next;         /* and begins at next, in copy */
    uint64_t open, staged; /* writer: room that is known; what follows, up to pos, is in stage */
    char why[160];         /* what the peer broke; not empty: for good */
    _Alignas(16) uint8_t stage[RING_STAGE];
};

/* Writer's end: mine holds tail and bytes, peer holds head. */
void ring_writer(struct ring *r, const struct shm *mine, const struct shm *peer);
/* Reader's end: peer holds tail and bytes, mine holds head. max_len: [n_types] the longest payload of each type,
 * 0: unknown. -ENOMEM. */
int ring_reader(struct ring *r, const struct shm *mine, const struct shm *peer,
                const uint32_t *max_len, uint32_t n_types) MUST_USE;
void ring_done(struct ring *r);

/* Reserve room for one record; *ret is its payload, 8-aligned, to be filled before the next call. Invisible
 * until published; several may be reserved before one publish. -EAGAIN: full for now. -EMSGSIZE: longer
 * than max_rec - 16 for ever. -EBADMSG: the reader's head is impossible. spare: bytes that must stay free
 * after it, at most half the ring. A record and its padding take at most a quarter of the ring, so full is
 * transient. */
int ring_reserve(struct ring *r, uint16_t type, uint16_t flags, uint32_t len, uint64_t spare,
                 void **ret) MUST_USE;
void ring_publish(struct ring *r); /* store-release of tail; then doorbell_ring() */

/* The oldest record not yet looked at: 1 and *ret, 0 none, -EBADMSG corrupt (for good). */
int ring_peek(struct ring *r, struct ring_record *ret) MUST_USE;
void ring_release(
    struct ring *r); /* gives room back for all looked at; then doorbell_ring_room() */

bool ring_empty(const struct ring *r); /* reader: nothing published beyond what was looked at */
uint64_t ring_room(struct ring *r); /* writer: free bytes now; 0 also when the head is impossible */
bool ring_gave_room(const struct ring *r); /* writer: it was full, and the reader has moved since */
const char *ring_why(const struct ring *r);

#endif
