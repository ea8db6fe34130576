/* log_file.h - a log in a memfd that outlives lagand: the next lagand reads its records.
 *
 *   offset          bytes        content
 *   0               4096         struct log_file_hdr, written once
 *   4096            half         half 0: struct log_file_half, then records
 *   4096 + half     half         half 1
 *
 * Records are appended to one half. To shorten the log, the caller writes the current state into
 * the other half, and the store of that half's generation makes it valid: a kill at any instruction
 * leaves one valid half. A half-written record is ignored because of its checksum; records of an
 * earlier generation behind the last one are ignored because of their generation. ledger_save.h
 * defines the content of the records.
 *
 * A change of the layout needs another LOG_FILE_MAGIC. */
#pragma once

#include "base/base.h"
#include "base/err.h"

#define LOG_FILE_MAGIC "LAGANLG\4"
#define LOG_FILE_LAYOUT \
    UINT64_C(2494679568) /* LEDGER_LOG_LAYOUT_SUM (daemon/ledger/ledger_save.h) of this magic */
enum { LOG_FILE_PAGE = 4096, LOG_FILE_ALIGN = 8 };

struct log_file_hdr {
    char magic[8];
    uint64_t half; /* bytes of each half, a multiple of a page */
};
struct log_file_half {
    uint64_t generation; /* the greater one is valid; 0: incomplete */
    uint64_t not_generation;
};
struct log_file_record {
    uint32_t crc; /* of the rest of this header and what follows it */
    uint16_t type;
    uint16_t zero;
    uint32_t len, generation; /* bytes behind this header; low bits of the half's generation */
};
_Static_assert(sizeof(struct log_file_record) == 16, "log_file_record");

struct log_file {
    int fd;
    uint8_t *base;             /* NULL: no file */
    uint64_t half, generation; /* generation of the half that is written */
    uint64_t at, backed;       /* in it: bytes of records; bytes that have memory */
    uint32_t active;
    bool switching; /* the written half is not valid yet */
};

/* A new file of two halves; half: bytes, rounded up to a page. -ENOMEM, -EMFILE. */
int log_file_create(struct log_file *m, uint64_t half, struct err *e) MUST_USE;
/* The file of a previous lagand. Owns fd on success. Its valid half stays valid until
 * log_file_switched(), and takes no more records. -EBADMSG: not a log file. */
int log_file_open(struct log_file *m, int fd, struct err *e) MUST_USE;
void log_file_close(struct log_file *m);

/* Space for a record of n bytes, which is valid from log_file_commit() on. NULL: the half is full,
 * or there is no memory. */
void *log_file_reserve(struct log_file *m, uint16_t type, uint32_t n);
void log_file_commit(struct log_file *m);
/* Writes the next records into the other half, which log_file_switched() makes the valid one. */
void log_file_switch(struct log_file *m);
void log_file_switched(struct log_file *m);
void log_file_void(struct log_file *m); /* makes both halves invalid */

/* Call fn for every complete record of the valid half, in order, until fn returns a negative
 * number. data is 8-aligned and stays mapped; its bytes may have any value. Returns the number of
 * records, what fn returned, or -EBADMSG: not a log file. */
typedef int log_file_fn(void *arg, uint16_t type, const void *data, uint32_t n);
int log_file_read(const void *base, uint64_t bytes, log_file_fn *fn, void *arg, struct err *e);
