/* link.h - a worker's pair of rings with its bell: both ends of it.
 *
 *            D: request ring   lagand -> worker
 *            W: response ring  worker -> lagand
 *
 * Between the ranks of a group there is the same once more, with lagand as the maker only:
 *
 *            P: plan ring      rank 0 -> another rank       its link.d
 *            W: its answers    that rank -> rank 0          its link.w; lagand sees its heart and last words there
 */
#ifndef IPC_LINK_H
#define IPC_LINK_H

#include "base/base.h"
#include "ipc/bell.h"
#include "ipc/ring.h"
#include "ipc/shm.h"

struct link {
    struct shm d, w;
    struct ring out, in; /* as this side sees them */
    struct bell bell;
    uint64_t epoch;
};

/* lagand: make D, W and the bell. *worker_bell is the end to pass on; the caller closes it after
 * spawn. ring_log2 0: the defaults. What was made is undone on failure. */
int link_make(struct link *l, uint32_t worker_idx, uint64_t epoch, const uint8_t daemon_id[16],
              uint32_t ring_log2_d, uint32_t ring_log2_w, int *worker_bell, struct err *e) MUST_USE;
/* worker: take the inherited fds; on failure they are closed. */
int link_attach(struct link *l, int d, int w, int bell, uint64_t epoch, struct err *e) MUST_USE;
void link_close(struct link *l);

enum { MAX_RANKS = 8 };

/* What goes between ranks; worker/tp/plan_ring.h has the payloads. */
enum { PLAN_KV = 1, PLAN_SEAT, PLAN_TOKENS, PLAN_SEEN, PLAN_STEP, PLAN_PARTS, PLAN_MORE };
enum { ANSWER_JOIN = 1, ANSWER_LEFT, ANSWER_READY };
/* lagand: P, W and the bell of a rank that is not the first; it reads neither ring, bell.fd stays -1. *bell: rank 0's
 * end, then the other's, to be passed on and closed. */
int link_make_plan(struct link *l, uint32_t worker_idx, uint64_t epoch, const uint8_t daemon_id[16],
                   int bell[2], struct err *e) MUST_USE;
/* Rank 0, and that rank: as link_attach(). */
int link_lead(struct link *l, int p, int w, int bell, uint64_t epoch, struct err *e) MUST_USE;
int link_follow(struct link *l, int p, int w, int bell, uint64_t epoch, struct err *e) MUST_USE;

void link_publish(struct link *l); /* what was reserved is out, and the peer awake */
void link_release(struct link *l); /* what was looked at is given back; wakes who waits for room */
/* bell_sleep() until there is something to read, or room that was asked for in vain. */
int link_sleep(struct link *l) MUST_USE;
bool link_ready(void *l); /* there is; for bell_sleep() */

#endif
