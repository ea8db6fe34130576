/* mirror.h - a log in a memfd that outlives lagand: what was put in is read by the next one.
 *
 *   offset          bytes        content
 *   0               4096         struct mirror_hdr, written once
 *   4096            half         half 0: struct mirror_half, then records
 *   4096 + half     half         half 1
 *
 * Records are appended to one half; when it is full enough, what still matters is written anew into the
 * other, and the store of its turn makes that one count: a kill at any instruction leaves one that is
 * whole. A record that was being written is dropped by its checksum, and so is what an earlier turn left
 * behind the last one. Nothing here knows what is in a record (recall.h does).
 *
 * Source: the layout is fixed; changing it is changing MIRROR_MAGIC.
 */
#ifndef DAEMON_MIRROR_H
#define DAEMON_MIRROR_H

#include "base/base.h"
#include "base/err.h"

#define MIRROR_MAGIC "LAGANLG\3"
#define MIRROR_LAYOUT UINT64_C(2484525126) /* MIRROR_LAYOUT_SUM (daemon/recall.h) of this magic */
enum { MIRROR_PAGE = 4096, MIRROR_ALIGN = 8 };

struct mirror_hdr {
    char magic[8];
    uint64_t half; /* bytes of each half, a multiple of a page */
};
struct mirror_half {
    uint64_t turn; /* the greater one counts; 0: never whole */
    uint64_t not_turn;
};
struct mirror_record {
    uint32_t crc; /* of the rest of this header and what follows it */
    uint16_t type;
    uint16_t zero;
    uint32_t len, turn; /* bytes behind this header; low bits of the half's turn */
};
_Static_assert(sizeof(struct mirror_record) == 16, "mirror_record");

struct mirror {
    int fd;
    uint8_t *base;       /* NULL: there is none */
    uint64_t half, turn; /* turn of the half that is written */
    uint64_t at, backed; /* in it: the next record; bytes that have memory */
    uint32_t active;
    bool turning; /* it does not count yet */
};

/* -ENOMEM, -EMFILE. half is rounded up to a page. */
int mirror_make(struct mirror *m, uint64_t half, struct err *e) MUST_USE;
/* A predecessor's. fd is ours on success. The half that counts goes on counting until mirror_turned(),
 * and takes nothing more. -EBADMSG: it is none. */
int mirror_open(struct mirror *m, int fd, struct err *e) MUST_USE;
void mirror_close(struct mirror *m);

/* Room for a record of n bytes; NULL: there is none. It counts from mirror_commit() on. */
void *mirror_reserve(struct mirror *m, uint16_t type, uint32_t n);
void mirror_commit(struct mirror *m);
/* From here on everything goes into the other half; what is in this one is void once it has turned. */
void mirror_turn(struct mirror *m);
void mirror_turned(struct mirror *m);
void mirror_void(struct mirror *m); /* what is in it is not true any more: no half counts */
uint64_t mirror_bytes(const struct mirror *m); /* of records in the present half */

/* Every whole record of the half that counts, in order, until fn is negative; data is 8-aligned and
 * stays. How many; -EBADMSG: that is no mirror; what fn returned. The bytes may be anything. */
typedef int mirror_fn(void *arg, uint16_t type, const void *data, uint32_t n);
int mirror_read(const void *base, uint64_t bytes, mirror_fn *fn, void *arg, struct err *e);

#endif
