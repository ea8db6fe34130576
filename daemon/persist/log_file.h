/* log_file.h - a log of records in a memfd that outlives lagand: the next lagand reads the records.
 *
 *   offset          bytes        content
 *   0               4096         struct log_file_hdr, written once
 *   4096            half         half 0: struct log_file_half, then records
 *   4096 + half     half         half 1
 *
 * lagand appends records to one half. To shorten the log it "switches": it writes its present state
 * into the other half and then stores that half's generation and its complement, which make the
 * half valid. Each switch increments the generation; of two valid halves the one with the greater
 * generation counts, so a kill at any instruction leaves one valid half. A reader stops at a record
 * with a wrong checksum (partly written) or an earlier generation (of an earlier use of the half).
 * ledger_save.h defines the records. A change of the layout needs another LOG_FILE_MAGIC. */
#pragma once
#include "base/base.h"
#include "base/err.h"

#define LOG_FILE_MAGIC "LAGANLG\6"
/* A sum over the fields of all records. If a change of the records changes the sum, change the
 * magic too, so that lagand refuses a log of the old records. ledger_save.c compares the sums. */
#define LOG_FILE_LAYOUT \
    UINT64_C(4694731881) /* LEDGER_LOG_LAYOUT_SUM (daemon/ledger/ledger_save.h) for this magic */
enum { LOG_FILE_PAGE = 4096, LOG_FILE_ALIGN = 8 };

struct log_file_hdr {
    char magic[8];
    uint64_t half; /* bytes of each half, a multiple of a page */
};
struct log_file_half {
    uint64_t generation;     /* 0: the half is not valid */
    uint64_t not_generation; /* ~generation if the half is valid */
};
struct log_file_record {
    uint32_t crc; /* checksum of the rest of this header and the `len` bytes behind it */
    uint16_t type;
    uint16_t zero;
    uint32_t len, generation; /* generation: low 32 bits of the half's generation */
};
_Static_assert(sizeof(struct log_file_record) == 16, "log_file_record");

struct log_file {
    int fd;
    uint8_t *base;             /* NULL: no file */
    uint64_t half, generation; /* bytes of a half; generation of the active half */
    uint64_t at, backed;       /* in the active half: bytes written; bytes with memory */
    uint32_t active;           /* 0 or 1: the half to which records are written */
    bool switching;            /* the active half is not valid yet */
};

/* Creates a file with two halves of at least `half` bytes, rounded up to a page. */
int log_file_create(struct log_file *m, uint64_t half, struct err *e) MUST_USE;
/* Opens the file of a previous lagand; owns fd on success. log_file_switch() must be next; the old
 * valid half stays valid until log_file_switched(). -EBADMSG: not a log file. */
int log_file_open(struct log_file *m, int fd, struct err *e) MUST_USE;
void log_file_close(struct log_file *m);

/* Returns space for a record, which log_file_commit() makes valid. NULL: no space or no memory. */
void *log_file_reserve(struct log_file *m, uint16_t type, uint32_t n);
void log_file_commit(struct log_file *m);
/* Starts a switch: the next records go to the other half, which log_file_switched() makes valid. */
void log_file_switch(struct log_file *m);
void log_file_switched(struct log_file *m);
void log_file_void(struct log_file *m); /* makes both halves invalid, as if there were no log */

/* Calls fn for every complete record of the valid half, in order, until fn returns a negative
 * number. data is 8-aligned and stays mapped; its bytes may have any value. Returns the number of
 * records, or the negative number; -EBADMSG: not a log file. */
typedef int log_file_fn(void *arg, uint16_t type, const void *data, uint32_t n);
int log_file_read(const void *base, uint64_t bytes, log_file_fn *fn, void *arg, struct err *e);
