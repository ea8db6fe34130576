/* step_log.h - the last steps of a worker, copied from the memory that the worker writes
 * (struct step_records, ipc/shm.h), so that they outlive its process.
 *
 * Records are numbered from 1 over all processes of the worker. A record that the worker overwrote
 * before lagand copied it has a number, but is missing. All values are of a peer: any value is
 * possible, and lagand only prints them. */
#pragma once
#include "base/base.h"
#include "ipc/shm.h"

struct step_log {   /* zeroed: empty */
    uint64_t next;  /* number of the next record, minus 1 */
    uint64_t taken; /* records of the present process that were read or lost */
    struct step_copy {
        uint64_t number; /* 0: empty */
        struct step_record r;
    } at[STEP_RECORDS];
};

/* Begins with record 0 of a new process. */
void step_log_restart(struct step_log *l);
/* Copies the records that `of` has got since the last call. Returns the number of the first new
 * record; l->next is the number of the last one. */
uint64_t step_log_read(struct step_log *l, const struct step_records *of);
/* Returns the record `number`, or the first later one that exists. NULL: there is none. */
const struct step_copy *step_log_at(const struct step_log *l, uint64_t number);
