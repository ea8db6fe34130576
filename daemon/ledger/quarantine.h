/* quarantine.h - finds requests that crash workers: such a request runs alone and is then ended.
 *
 * When a worker ends by its own fault, the fault counts for every request in a step that was
 * launched and not retired. A request with 2 faults is a suspect: it runs alone on its worker,
 * before other requests. After the third fault it is poisoned: it ends with an error, and for 600 s
 * every request with the same prompt is refused. A suspect that runs alone past the position of its
 * last fault is cleared once: it may only have shared steps with a poisoned request. */
#pragma once
#include "base/base.h"
#include "daemon/ledger/ledger.h"
#include "ipc/shm.h"

enum {
    QUARANTINE_MAX = TRACE_ENTRIES * TRACE_IDS, /* most requests in a trace */
    QUARANTINE_PAST = 3,     /* new tokens after the last fault that clear a suspect */
    QUARANTINE_STUCK = 20,   /* faults without a new token after which a request ends */
    QUARANTINE_PROMPTS = 256 /* poisoned prompts that are remembered */
};

/* The requests that a worker's trace names: those in the steps in flight when the worker ended. */
struct fault_trace {
    bool all; /* the trace has no request or is invalid: every request counts as named */
    uint32_t n;
    req_id id[QUARANTINE_MAX]; /* sorted */
};
/* Fills f from the trace of a worker that has ended; trace NULL: f names no request. */
void fault_trace_read(struct fault_trace *f, const struct step_trace *trace);
bool fault_trace_has(const struct fault_trace *f, req_id id);

/* The number of suspects, and the poisoned prompts. All zero: there are none. */
struct quarantine {
    uint32_t n_suspects; /* open requests that must run alone */
    uint32_t n;          /* poisoned prompts ever added; the newest replaces the oldest in at[] */
    struct {
        uint64_t hash;
        nsec until;
    } at[QUARANTINE_PROMPTS];
};

struct quarantine *quarantine_new(void) MUST_USE; /* NULL: no memory */
struct quarantine *quarantine_free(struct quarantine *q);

enum quarantine_verdict { QUARANTINE_RETRY, QUARANTINE_LOST, QUARANTINE_POISONED };
/* Counts the end of the worker that had r. fault: the worker ended by its own fault; named: its
 * trace names r. Returns RETRY: queue r again; LOST: end r after QUARANTINE_STUCK faults without a
 * new token of r between them; POISONED: end r after its third fault. */
enum quarantine_verdict quarantine_fault(struct quarantine *q, struct request *r, bool fault,
                                         bool named);
bool quarantine_is_suspect(const struct request *r); /* must run alone */
/* Called when r has new tokens. Returns true if r is no suspect any more: they cleared it. */
bool quarantine_progress(struct quarantine *q, struct request *r);
/* If r is a suspect: add it to n_suspects after it was read from the ledger log; subtract it after
 * it has ended. */
void quarantine_restored(struct quarantine *q, const struct request *r);
void quarantine_ended(struct quarantine *q, const struct request *r);

/* Refuse the prompt of s for 600 s; return whether the prompt of s is refused at time now. */
void quarantine_poison(struct quarantine *q, uint32_t model, const struct rec_submit *s, nsec now);
bool quarantine_is_poisoned(const struct quarantine *q, uint32_t model, const struct rec_submit *s,
                            nsec now);
