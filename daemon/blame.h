/* blame.h - which requests may have killed a worker, and what becomes of them.
 *
 * A worker's own fault blames every step that was launched and not retired. A request blamed twice is
 * suspect: it runs alone, before the others. Blamed a third time it is poisoned, and so is the same
 * prompt for the next ten minutes. One that gets past the place of its death alone is acquitted, once:
 * those that were only beside the guilty one do not run alone to their end.
 */
#ifndef DAEMON_BLAME_H
#define DAEMON_BLAME_H

#include "base/base.h"
#include "daemon/ledger.h"
#include "ipc/shm.h"

enum { BLAME_MAX = TRACE_ENTRIES * TRACE_IDS, BLAME_PAST = 3, BLAME_VAIN = 20, POISONS = 256 };

struct blame {
    bool all; /* the trace names nobody, or cannot be believed */
    uint32_t n;
    req_id id[BLAME_MAX];
};
/* Of a worker that is dead. NULL trace: nobody is to blame. */
void blame_read(struct blame *b, const struct step_trace *trace);
bool blame_has(const struct blame *b, req_id id);

enum blame_verdict { BLAME_AGAIN, BLAME_LOST, BLAME_POISONED };
/* r was with that worker. fault: the death was of its own making. */
enum blame_verdict blame_row(struct row *r, bool fault, bool blamed);
bool blame_suspect(const struct row *r); /* to run alone */
/* It has got further. true: it has just been acquitted. */
bool blame_past(struct row *r);

/* Prompts that a model does not run again. */
struct poisons {
    uint32_t n; /* ever noted */
    struct {
        uint64_t hash;
        nsec until;
    } at[POISONS];
};
void poisons_note(struct poisons *p, uint32_t model, const struct rec_submit *s, nsec now);
bool poisons_has(const struct poisons *p, uint32_t model, const struct rec_submit *s, nsec now);

#endif
