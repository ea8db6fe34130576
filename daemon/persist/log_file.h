/* log_file.h - a log in a memfd that outlives lagand: what was put in is read by the next one.
 *
 *   offset          bytes        content
 *   0               4096         struct log_file_hdr, written once
 *   4096            half         half 0: struct log_file_half, then records
 *   4096 + half     half         half 1
 *
 * Records are appended to one half; when it is full enough, what still matters is written anew into the
 * other, and the store of its turn makes that one count: a kill at any instruction leaves one that is
 * whole. A record that was being written is dropped by its checksum, and so is what an earlier turn left
 * behind the last one. Nothing here knows what is in a record (recall.h does).
 *
 * Source: the layout is fixed; changing it is changing LOG_FILE_MAGIC.
 */
#ifndef DAEMON_PERSIST_LOG_FILE_H
#define DAEMON_PERSIST_LOG_FILE_H

#include "base/base.h"
#include "base/err.h"

#define LOG_FILE_MAGIC "LAGANLG\2"
enum { LOG_FILE_PAGE = 4096, LOG_FILE_ALIGN = 8 };

struct log_file_hdr {
    char magic[8];
    uint64_t half; /* bytes of each half, a multiple of a page */
};
struct log_file_half {
    uint64_t turn; /* the greater one counts; 0: never whole */
    uint64_t not_turn;
};
struct log_file_record {
    uint32_t crc; /* of the rest of this header and what follows it */
    uint16_t type;
    uint16_t zero;
    uint32_t len, turn; /* bytes behind this header; low bits of the half's turn */
};
_Static_assert(sizeof(struct log_file_record) == 16, "mirror_record");

struct log_file {
    int fd;
    uint8_t *base;       /* NULL: there is none */
    uint64_t half, turn; /* turn of the half that is written */
    uint64_t at, backed; /* in it: the next record; bytes that have memory */
    uint32_t active;
    bool turning; /* it does not count yet */
};

/* -ENOMEM, -EMFILE. half is rounded up to a page. */
int log_file_create(struct log_file *m, uint64_t half, struct err *e) MUST_USE;
/* A predecessor's. fd is ours on success. The half that counts goes on counting until log_file_turned(),
 * and takes nothing more. -EBADMSG: it is none. */
int log_file_open(struct log_file *m, int fd, struct err *e) MUST_USE;
void log_file_close(struct log_file *m);

/* Room for a record of n bytes; NULL: there is none. It counts from log_file_commit() on. */
void *log_file_reserve(struct log_file *m, uint16_t type, uint32_t n);
void log_file_commit(struct log_file *m);
/* From here on everything goes into the other half; what is in this one is void once it has turned. */
void log_file_turn(struct log_file *m);
void log_file_turned(struct log_file *m);
void log_file_void(struct log_file *m); /* what is in it is not true any more: no half counts */
uint64_t log_file_bytes(const struct log_file *m); /* of records in the present half */

/* Every whole record of the half that counts, in order, until fn is negative; data is 8-aligned and
 * stays. How many; -EBADMSG: that is no mirror; what fn returned. The bytes may be anything. */
typedef int log_file_fn(void *arg, uint16_t type, const void *data, uint32_t n);
int log_file_read(const void *base, uint64_t bytes, log_file_fn *fn, void *arg, struct err *e);

#endif
