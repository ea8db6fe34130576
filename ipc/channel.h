/* channel.h - a channel: two rings in shared memory (memfds D and W) and a doorbell; both ends.
 *
 *            D: request ring   lagand -> worker
 *            W: response ring  worker -> lagand
 *
 * A rank group also has a channel between rank 0 and each other rank (memfds P and W). lagand
 * creates it and does not use its rings, but reads heartbeat and panic message of the rank in W.
 *
 *            P: plan ring      rank 0 -> another rank       struct channel.d
 *            W: reply ring     other rank -> rank 0         struct channel.w */
#pragma once
#include "base/base.h"
#include "ipc/doorbell.h"
#include "ipc/ring.h"
#include "ipc/shm.h"

struct channel {
    struct shm d, w;
    struct ring out, in; /* out: written by this side; in: read by this side */
    struct doorbell doorbell;
    uint64_t epoch;
};

/* lagand: creates D, W and the doorbell. *worker_doorbell: the worker's end of the doorbell, to
 * pass at exec; the caller closes it after the fork. ring_log2_d, ring_log2_w: binary logarithm of
 * the ring sizes in bytes; 0: default. On failure everything is closed. */
int channel_make(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                 const uint8_t daemon_id[16], uint32_t ring_log2_d, uint32_t ring_log2_w,
                 int *worker_doorbell, struct err *e) MUST_USE;
/* Worker: maps the inherited memfds d and w. On failure closes all three descriptors. */
int channel_attach(struct channel *l, int d, int w, int doorbell, uint64_t epoch,
                   struct err *e) MUST_USE;
void channel_close(struct channel *l);

enum { MAX_RANKS = 8 };

/* Record types of the plan ring and of the reply ring; worker/tp/ defines their payloads. */
enum { PLAN_KV = 1, PLAN_SLOT, PLAN_TOKENS, PLAN_SEEN, PLAN_STEP, PLAN_PARTS, PLAN_MORE };
enum { REPLY_JOIN = 1, REPLY_LEFT, REPLY_READY };
/* lagand: creates P, W and the doorbell between rank 0 and another rank. lagand does not use this
 * doorbell, so l->doorbell.fd is -1. doorbell: the ends for rank 0 and for the other rank, to pass
 * at exec; the caller then closes them. */
int channel_make_plan(struct channel *l, uint32_t worker_idx, uint64_t epoch,
                      const uint8_t daemon_id[16], int doorbell[2], struct err *e) MUST_USE;
/* channel_attach() for P and W of a rank: _leader() is called in rank 0, _rank() in the other. */
int channel_attach_leader(struct channel *l, int p, int w, int doorbell, uint64_t epoch,
                          struct err *e) MUST_USE;
int channel_attach_rank(struct channel *l, int p, int w, int doorbell, uint64_t epoch,
                        struct err *e) MUST_USE;

/* Makes the reserved records of `out` visible to the peer and wakes it. */
void channel_publish(struct channel *l);
/* Frees the space of the records read from `in` and wakes a peer that waits for space. */
void channel_release(struct channel *l);
/* Calls doorbell_sleep() and returns its result. The sleep ends when records arrive and, after a
 * failed ring_reserve(), also when the peer has freed space. */
int channel_sleep(struct channel *l) MUST_USE;
/* For doorbell_sleep(): returns true if there are unread records or newly freed space. */
bool channel_ready(void *l);
