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
    RING_SMALL = 2048, /* bytes: a longer record is written directly to the ring, not staged */
    RING_STAGE = 4096, /* bytes of short records that are staged and then written together */
    RING_CHUNK = 4096, /* bytes that the reader copies at once, or all published bytes if fewer */
    RING_TYPES = 16,   /* record types are 1 .. RING_TYPES - 1 */
    RING_PAD = 0,      /* type of a record that fills the gap before the end of the ring */
    RING_MORE = 1      /* flag: the next record continues this one; other bits are reserved and 0 */
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
    /* cap: ring size. Writer: pos is the end of the reserved records, published the last stored
     * tail. Reader: pos is the end of the records read, published the last stored head. */
    uint64_t cap, pos, published;
    uint64_t peer; /* last loaded index of the peer: writer: its head; reader: its tail */
    /* epoch and seq are not adjacent: gcc would load both as one word, slowly (ipc/README.md) */
    uint32_t epoch, max_rec, seq;
    bool full; /* writer: the last reserve found too little space */
    /* reader: the payload of a record of type t is shorter than below[t]; 0: unknown type */
    uint32_t below[RING_TYPES];
    uint64_t copied;      /* reader: the published bytes up to this position are in copy */
    uint8_t *copy, *next; /* next: the byte of copy at position pos */
    /* writer: open is the end of the space known to be free; the records at positions staged .. pos
     * are in stage and not yet in the ring */
    uint64_t open, staged;
    char why[224]; /* the rule that the peer violated; never cleared */
    _Alignas(16) uint8_t stage[RING_STAGE];
};

/* Initialises the writer's side: tail and bytes of the ring are in mine, the head is in peer. */
void ring_writer(struct ring *r, const struct shm *mine, const struct shm *peer);
/* Initialises the reader's side: tail and bytes of the ring are in peer, the head is in mine.
 * max_len[n_types]: longest payload of each type in bytes; 0: unknown type. -ENOMEM. */
int ring_reader(struct ring *r, const struct shm *mine, const struct shm *peer,
                const uint32_t *max_len, uint32_t n_types) MUST_USE;
void ring_done(struct ring *r);

/* Reserves a record with len bytes of payload and sets *ret to the payload (8-aligned), which the
 * caller writes before the next call. The record is invisible until ring_publish(). spare: bytes
 * that must stay free behind the record, at most half the ring. -EAGAIN: the ring is full; a later
 * call succeeds, because record and padding take at most 1/4 of the ring. -EMSGSIZE: len exceeds
 * max_rec - 16. -EBADMSG: the reader has stored an invalid head. */
int ring_reserve(struct ring *r, uint16_t type, uint16_t flags, uint32_t len, uint64_t spare,
                 void **ret) MUST_USE;
/* Makes the reserved records visible (release store of tail); call doorbell_ring() after it. */
void ring_publish(struct ring *r);

/* Reads the oldest unread record into *ret. Returns 1; 0: there is none; -EBADMSG: the ring is
 * corrupt, and every later call returns this too. */
int ring_peek(struct ring *r, struct ring_record *ret) MUST_USE;
/* Frees the space of all records read; call doorbell_ring_space() after it. */
void ring_release(struct ring *r);

bool ring_empty(const struct ring *r);    /* reader: all published records are read */
uint64_t ring_free_bytes(struct ring *r); /* writer; 0 if the head is invalid */
/* writer: true if the last ring_reserve() failed and the reader has freed space since */
bool ring_space_freed(const struct ring *r);
const char *ring_why(const struct ring *r); /* the violated rule; "": none */
