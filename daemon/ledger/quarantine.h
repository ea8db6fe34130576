/* quarantine.h - which requests may have killed a worker, and what becomes of them.
 *
 * A worker's own fault blames every step that was launched and not retired. A request blamed twice is
 * suspect: it runs alone, before the others. Blamed a third time it is poisoned, and so is the same
 * prompt for the next ten minutes. One that gets past the place of its death alone is acquitted, once:
 * those that were only beside the guilty one do not run alone to their end.
 */
#ifndef DAEMON_LEDGER_QUARANTINE_H
#define DAEMON_LEDGER_QUARANTINE_H

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/shm.h"

enum {
    QUARANTINE_MAX = TRACE_ENTRIES * TRACE_IDS,
    QUARANTINE_PAST = 3,
    QUARANTINE_VAIN = 20,
    POISONS = 256
};

struct fault_trace {
    bool all; /* the trace names nobody, or cannot be believed */
    uint32_t n;
    req_id id[QUARANTINE_MAX];
};
/* Of a worker that is dead. NULL trace: nobody is to blame. */
void fault_trace_read(struct fault_trace *b, const struct step_trace *trace);
bool fault_trace_has(const struct fault_trace *b, req_id id);

enum quarantine_verdict { QUARANTINE_RETRY, QUARANTINE_LOST, QUARANTINE_POISONED };
/* r was with that worker. fault: the death was of its own making. */
enum quarantine_verdict quarantine_fault(struct request *r, bool fault, bool blamed);
bool quarantine_is_suspect(const struct request *r); /* to run alone */
/* It has got further. true: it has just been acquitted. */
bool quarantine_progress(struct request *r);

/* Prompts that a model does not run again. */
struct quarantine {
    uint32_t n; /* ever noted */
    struct {
        uint64_t hash;
        nsec until;
    } at[POISONS];
};
void quarantine_poison(struct quarantine *p, uint32_t model, const struct rec_submit *s, nsec now);
bool quarantine_is_poisoned(const struct quarantine *p, uint32_t model, const struct rec_submit *s,
                            nsec now);

#endif
