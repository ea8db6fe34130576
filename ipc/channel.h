/* channel.h - a worker's pair of rings with its bell: both ends of it.
 *
 *            D: request ring   lagand -> worker
 *            W: response ring  worker -> lagand
 *
 * Between the ranks of a group there is the same once more, with lagand as the maker only:
 *
 *            P: plan ring      rank 0 -> another rank       its link.d
 *            W: its answers    that rank -> rank 0          its link.w; lagand sees its heart and last words there
 */
#ifndef IPC_CHANNEL_H
#define IPC_CHANNEL_H

#include "base/base.h"
#include "ipc/doorbell.h"
#include "ipc/ring.h"
#include "ipc/shm.h"

struct channel {
    struct shm d, w;
    struct ring out, in; /* as this side sees them */
    struct doorbell doorbell;
    uint64_t epoch;
};

/* lagand: make D, W and the bell. *worker_bell is the end to pass on; the caller closes it after
 * spawn. ring_log2 0: the defaults. What was made is undone on failure. */
int channel_make(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                 const uint8_t daemon_id[16], uint32_t ring_log2_d, uint32_t ring_log2_w,
                 int *worker_bell, struct err *e) MUST_USE;
/* worker: take the inherited fds; on failure they are closed. */
int channel_attach(struct channel *l, int d, int w, int bell, uint64_t epoch,
                   struct err *e) MUST_USE;
void channel_close(struct channel *l);

enum { MAX_RANKS = 8 };

/* What goes between ranks; worker/plan.h has the payloads. */
enum { PLAN_KV = 1, PLAN_SLOT, PLAN_TOKENS, PLAN_SEEN, PLAN_STEP, PLAN_PARTS, PLAN_MORE };
enum { ANSWER_JOIN = 1, ANSWER_LEFT, ANSWER_READY };
/* lagand: P, W and the bell of a rank that is not the first; it reads neither ring, bell.fd stays -1. *bell: rank 0's
 * end, then the other's, to be passed on and closed. */
int channel_make_plan(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                      const uint8_t daemon_id[16], int bell[2], struct err *e) MUST_USE;
/* Rank 0, and that rank: as channel_attach(). */
int channel_lead(struct channel *l, int p, int w, int bell, uint64_t epoch, struct err *e) MUST_USE;
int channel_follow(struct channel *l, int p, int w, int bell, uint64_t epoch,
                   struct err *e) MUST_USE;

void channel_publish(struct channel *l); /* what was reserved is out, and the peer awake */
void channel_release(
    struct channel *l); /* what was looked at is given back; wakes who waits for room */
/* doorbell_sleep() until there is something to read, or room that was asked for in vain. */
int channel_sleep(struct channel *l) MUST_USE;
bool channel_ready(void *l); /* there is; for doorbell_sleep() */

#endif
