/* quarantine.h - finds requests that crash workers, runs them alone and ends them.
 *
 * A worker's own fault counts for every request in a step that was launched and not retired. A
 * request with 2 faults is a suspect: it runs alone, before the others. After the third fault it is
 * poisoned, and for 600 s so is every request with the same prompt. A suspect that runs alone past
 * the position of its last fault is cleared, at most once, so that a request that only shared steps
 * with a poisonous one does not run alone to its end.
 */
#pragma once

#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/shm.h"

enum {
    QUARANTINE_MAX = TRACE_ENTRIES * TRACE_IDS, /* requests in a trace */
    QUARANTINE_PAST = 3,                        /* tokens past the fault that clear a suspect */
    QUARANTINE_STUCK = 20,                      /* faults without a new token that end a request */
    QUARANTINE_PROMPTS = 256
};

/* Requests in the steps that were in flight when a worker ended. */
struct fault_trace {
    bool all; /* the trace is empty or invalid: every request counts as named */
    uint32_t n;
    req_id id[QUARANTINE_MAX]; /* sorted */
};
/* trace: of a worker that has ended; NULL: names no request. */
void fault_trace_read(struct fault_trace *f, const struct step_trace *trace);
bool fault_trace_has(const struct fault_trace *f, req_id id);

/* Suspects, and poisoned prompts. All zero: none. */
struct quarantine {
    uint32_t n_suspects; /* open requests that must run alone */
    uint32_t n;          /* prompts ever added */
    struct {
        uint64_t hash;
        nsec until;
    } at[QUARANTINE_PROMPTS];
};

struct quarantine *quarantine_new(void) MUST_USE; /* NULL: no memory */
struct quarantine *quarantine_free(struct quarantine *q);

enum quarantine_verdict { QUARANTINE_RETRY, QUARANTINE_LOST, QUARANTINE_POISONED };
/* The worker that had r has ended. fault: by its own fault; named: the trace names r. */
enum quarantine_verdict quarantine_fault(struct quarantine *q, struct request *r, bool fault,
                                         bool named);
bool quarantine_is_suspect(const struct request *r); /* must run alone */
/* r has new tokens. Returns true if that cleared it as a suspect. */
bool quarantine_progress(struct quarantine *q, struct request *r);
void quarantine_restored(struct quarantine *q, const struct request *r); /* from the ledger log */
void quarantine_ended(struct quarantine *q, const struct request *r);

void quarantine_poison(struct quarantine *q, uint32_t model, const struct rec_submit *s, nsec now);
bool quarantine_is_poisoned(const struct quarantine *q, uint32_t model, const struct rec_submit *s,
                            nsec now);
