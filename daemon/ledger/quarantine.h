/* quarantine.h - which requests may have killed a worker, and what happens to them.
 *
 * A worker's own fault is attributed to every step that was launched and not retired. A request
 * with two faults is a suspect: it runs alone, before the others. After the third fault it is
 * poisoned, and for ten minutes so is every request with the same prompt. A suspect that runs alone
 * past the place of its last fault is cleared, once, so that the innocent neighbours of a poisonous
 * request do not run alone to their end.
 */
#ifndef DAEMON_LEDGER_QUARANTINE_H
#define DAEMON_LEDGER_QUARANTINE_H

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/shm.h"

enum {
    QUARANTINE_MAX = TRACE_ENTRIES * TRACE_IDS, /* requests in a trace */
    QUARANTINE_PAST = 3,                        /* tokens past the fault that clear a suspect */
    QUARANTINE_STUCK = 20,                      /* faults without a token that end a request */
    QUARANTINE_PROMPTS = 256
};

/* The requests in steps that were in flight when a worker ended. */
struct fault_trace {
    bool all; /* the trace names none, or is invalid: every request counts as named */
    uint32_t n;
    req_id id[QUARANTINE_MAX]; /* sorted */
};
/* trace: of a worker that has ended. NULL: names no request. */
void fault_trace_read(struct fault_trace *f, const struct step_trace *trace);
bool fault_trace_has(const struct fault_trace *f, req_id id);

/* Suspects, and prompts that no worker runs again. All zero: none. */
struct quarantine {
    uint32_t n_suspects; /* open requests that are to run alone */
    uint32_t n;          /* prompts ever added */
    struct {
        uint64_t hash;
        nsec until;
    } at[QUARANTINE_PROMPTS];
};

struct quarantine *quarantine_new(void) MUST_USE; /* NULL: no memory */
struct quarantine *quarantine_free(struct quarantine *q);

enum quarantine_verdict { QUARANTINE_RETRY, QUARANTINE_LOST, QUARANTINE_POISONED };
/* The worker that had r has ended. fault: by a fault of its own; named: the trace names r. */
enum quarantine_verdict quarantine_fault(struct quarantine *q, struct request *r, bool fault,
                                         bool named);
bool quarantine_is_suspect(const struct request *r); /* to run alone */
/* r has more tokens. Returns true if r was a suspect and has just been cleared. */
bool quarantine_progress(struct quarantine *q, struct request *r);
void quarantine_restored(struct quarantine *q, const struct request *r); /* from the ledger log */
void quarantine_ended(struct quarantine *q, const struct request *r);

void quarantine_poison(struct quarantine *q, uint32_t model, const struct rec_submit *s, nsec now);
bool quarantine_is_poisoned(const struct quarantine *q, uint32_t model, const struct rec_submit *s,
                            nsec now);

#endif
