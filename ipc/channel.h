/* channel.h - the two rings and the doorbell between lagand and a worker; both ends.
 *
 *            D: request ring   lagand -> worker
 *            W: response ring  worker -> lagand
 *
 * The ranks of a rank group have further channels, which lagand only creates. It reads heartbeat
 * and panic message of a rank in the W of the rank:
 *
 *            P: plan ring      rank 0 -> another rank       channel.d
 *            W: reply ring     that rank -> rank 0          channel.w */
#pragma once

#include "base/base.h"
#include "ipc/doorbell.h"
#include "ipc/ring.h"
#include "ipc/shm.h"

struct channel {
    struct shm d, w;
    struct ring out, in; /* as this side uses them */
    struct doorbell doorbell;
    uint64_t epoch;
};

/* lagand: creates D, W and the doorbell. *worker_doorbell: the worker's end, to pass at exec; the
 * caller closes it after the fork. ring_log2 0: default size. On failure everything is closed. */
int channel_make(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                 const uint8_t daemon_id[16], uint32_t ring_log2_d, uint32_t ring_log2_w,
                 int *worker_doorbell, struct err *e) MUST_USE;
/* Worker: maps the inherited descriptors; closes them on failure. */
int channel_attach(struct channel *l, int d, int w, int doorbell, uint64_t epoch,
                   struct err *e) MUST_USE;
void channel_close(struct channel *l);

enum { MAX_RANKS = 8 };

/* Record types between ranks; the payloads are in worker/tp/. */
enum { PLAN_KV = 1, PLAN_SLOT, PLAN_TOKENS, PLAN_SEEN, PLAN_STEP, PLAN_PARTS, PLAN_MORE };
enum { REPLY_JOIN = 1, REPLY_LEFT, REPLY_READY };
/* lagand: creates P, W and the doorbell of a rank other than rank 0. lagand uses neither ring:
 * doorbell.fd stays -1. doorbell: ends of rank 0 and of the other rank, to pass at exec and close.
 */
int channel_make_plan(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                      const uint8_t daemon_id[16], int doorbell[2], struct err *e) MUST_USE;
/* channel_attach() for rank 0 and for the other rank. */
int channel_attach_leader(struct channel *l, int p, int w, int doorbell, uint64_t epoch,
                          struct err *e) MUST_USE;
int channel_attach_rank(struct channel *l, int p, int w, int doorbell, uint64_t epoch,
                        struct err *e) MUST_USE;

/* publishes the reserved records and wakes the peer */
void channel_publish(struct channel *l);
/* Releases the records read and wakes a peer that waits for space. */
void channel_release(struct channel *l);
/* doorbell_sleep() until records arrive, or space after a failed reserve. */
int channel_sleep(struct channel *l) MUST_USE;
bool channel_ready(void *l); /* there are records or space; for doorbell_sleep() */
