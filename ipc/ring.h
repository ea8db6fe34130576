/* ring.h - a queue of byte records between two processes that do not trust each other.
 *
 * One writer, one reader. Bytes and tail are in the writer's memfd (ipc/shm.h), the head is in the
 * reader's. A record is a 16-byte header and len payload bytes, aligned to 32 bytes. A record never
 * wraps; a RING_PAD record (no seq) fills the gap at the end.
 *
 *    0 len u32   4 type u16   6 flags u16   8 epoch u32   12 seq u32
 *
 * ring_publish() is the only commit point: after a kill before it none of the records exists, after
 * it all are complete. Publish once for many records.
 *
 * The reader loads tail and header once into local variables, validates them (bounds, alignment,
 * epoch, seq, type, length by type) and copies the payload before it is used. A violation proves
 * corruption: calls return -EBADMSG, the ring is not read again, and the peer is ended. ring_why()
 * names the violated rule. */
#pragma once

#include "base/base.h"
#include "ipc/shm.h"

enum {
    RING_HEADER = 16,
    RING_ALIGN = 32,
    RING_SMALL = 2048, /* bytes: a longer record is written directly to the ring */
    /* bytes: shorter records are staged up to this many, then written together */
    RING_STAGE = 4096,
    RING_CHUNK = 4096, /* bytes that the reader copies at once if as many are published */
    RING_TYPES = 16,   /* types are below this number */
    RING_PAD = 0,
    RING_MORE = 1 /* flags: another fragment follows; the other bits are reserved and 0 */
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

struct ring {              /* private to this process; all fields are trusted */
    struct shm_ctl *w, *r; /* control pages of the writer (tail) and of the reader (head) */
    uint8_t *data;
    /* writer: tail, last stored tail; reader: head, last released head */
    uint64_t cap, pos, published;
    uint64_t peer; /* last loaded index of the peer: its head or its tail */
    /* epoch and seq are not adjacent: see README, What surprised us */
    uint32_t epoch, max_rec, seq;
    bool full; /* writer: the last reserve found too little space */
    /* reader: limit of the payload size of each type; 0: unknown type */
    uint32_t below[RING_TYPES];
    uint64_t copied;      /* reader: the bytes up to this position are copied out */
    uint8_t *copy, *next; /* next: the first byte of copy that was not returned */
    /* writer: end of the space known to be free; staged .. pos is in stage */
    uint64_t open, staged;
    char why[160]; /* the violated rule; not empty: permanent */
    _Alignas(16) uint8_t stage[RING_STAGE];
};

/* Writer's end: mine has tail and bytes, peer has head. */
void ring_writer(struct ring *r, const struct shm *mine, const struct shm *peer);
/* Reader's end: peer has tail and bytes, mine has head. max_len: [n_types] longest payload of each
 * type; 0: unknown type. -ENOMEM. */
int ring_reader(struct ring *r, const struct shm *mine, const struct shm *peer,
                const uint32_t *max_len, uint32_t n_types) MUST_USE;
void ring_done(struct ring *r);

/* Reserves one record and sets *ret to its payload, 8-aligned, to be written before the next call.
 * The record is invisible until ring_publish(). spare: bytes that must stay free behind it, at most
 * half the ring. -EAGAIN: full now; transient, because record and padding take at most 1/4 of the
 * ring. -EMSGSIZE: longer than max_rec - 16, never fits. -EBADMSG: the head of the reader is
 * invalid. */
int ring_reserve(struct ring *r, uint16_t type, uint16_t flags, uint32_t len, uint64_t spare,
                 void **ret) MUST_USE;
void ring_publish(struct ring *r); /* release store of tail; doorbell_ring() must follow */

/* The oldest record not read yet. Returns 1 and *ret, 0 if none, -EBADMSG if corrupt (permanent).
 */
int ring_peek(struct ring *r, struct ring_record *ret) MUST_USE;
/* Frees the space of all records read; doorbell_ring_space() must follow. */
void ring_release(struct ring *r);

bool ring_empty(const struct ring *r);    /* reader: no published record is unread */
uint64_t ring_free_bytes(struct ring *r); /* writer: free bytes; 0 if the head is invalid */
/* writer: the ring was full and the reader has released since */
bool ring_space_freed(const struct ring *r);
const char *ring_why(const struct ring *r);
