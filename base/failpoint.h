/* failpoint.h - instants at which a test may end, stop or delay the process.
 *
 *     FP(ring_reserved);
 *
 * is nothing in the programs that are shipped; tests/torture builds lagand and lagan-worker once more
 * with LAGAN_FAILPOINTS. There the environment's LAGAN_FP names a file that holds a struct fp_board:
 * the test maps it too, arms a point while the process runs, and reads how often it was passed. What is
 * armed fires once, in whichever process comes first, so that a successor does not die of it again.
 *
 * The column behind the name says where it lies: W1 to W15 along a worker's life, D1 to D4 in lagand's.
 */
#ifndef BASE_FAILPOINT_H
#define BASE_FAILPOINT_H

#include "base/base.h"

/* name, row, the instant */
/* clang-format off */
#define FAILPOINTS(X) \
    X(spawn_child,     "W1",  "forked, not tied to its parent's death yet") \
    X(spawn_exec,      "W1",  "descriptors placed, not executed yet") \
    X(worker_main,     "W1",  "executed, nothing done yet") \
    X(worker_attached, "W2",  "rings mapped") \
    X(load_device,     "W2",  "the device not opened yet; WILD: it has no room") \
    X(load_steps,      "W2",  "sizes known, lanes and scratch not made; WILD: no room for them") \
    X(load_weights,    "W2",  "weights complete, not handed up yet") \
    X(load_kv,         "W2",  "memory for KV made, not handed up yet") \
    X(load_done,       "W2",  "engine complete, not said yet") \
    X(hand_given,      "W2",  "a descriptor handed up or down") \
    X(ready_said,      "W3",  "READY is in the outbox") \
    X(host_mapping,    "W3",  "streams go on, a predecessor's host tier is to be mapped; WILD: it is of another size") \
    X(host_mapped,     "W3",  "it is mapped, the engine does not use it yet") \
    X(loop_published,  "W3",  "published, the bell not partition") \
    X(ring_tail_seen,  "W4",  "tail read, the record not copied") \
    X(ring_copied,     "W5",  "record copied, head not released") \
    X(ring_releasing,  "W5",  "all looked at, head about to move") \
    X(ring_released,   "W6",  "head moved") \
    X(intake_taken,    "W6",  "a request has become a sequence") \
    X(manifest_stored, "W7",  "a word of the manifest stored, the next one not") \
    X(step_planned,    "W7",  "step in the trace, not launched") \
    X(step_queued,     "W7",  "all but the end of a step on the device's queue") \
    X(step_launched,   "W7",  "step queued on the device") \
    X(step_finished,   "W7",  "step done, not committed") \
    X(step_committed,  "W7",  "step committed, not emitted") \
    X(rank_planned,    "W7",  "another rank: a step read, not launched") \
    X(rank_launched,   "W7",  "another rank: step queued on its device") \
    X(step_emitted,    "W8",  "step's tokens in the outbox") \
    X(ring_reserved,   "W8",  "header written, tail not stored") \
    X(outbox_copied,   "W8",  "payload written, tail not stored") \
    X(ring_publishing, "W8",  "records whole, tail about to move") \
    X(ring_published,  "W9",  "tail moved, no fence yet") \
    X(bell_fenced,     "W9",  "fence passed, the bell not partition") \
    X(bell_partition,       "W9",  "a byte sent") \
    X(bell_announced,  "W10", "wait_seq odd, no fence yet") \
    X(bell_asleep,     "W10", "nothing came: about to sleep") \
    X(bell_woken,      "W10", "wait_seq even again") \
    X(stat_writing,    "W11", "inside the seqlock of the counters") \
    X(words_writing,   "W12", "inside the last words") \
    X(finish_said,     "W13", "FINISH is in the outbox") \
    X(control_sending, "W14", "an answer for the control channel made, not sent") \
    X(drain_seen,      "W15", "DRAIN read") \
    X(drain_done,      "W15", "drained, nothing freed yet") \
    X(front_decoded,   "D2",  "a frame decoded, nothing answered") \
    X(front_taken,     "D2",  "a request has its row, ACCEPT not sent") \
    X(front_accepted,  "D3",  "ACCEPT sent") \
    X(relay_giving,    "D1",  "row marked dispatched, not in the ring") \
    X(relay_taken,     "D1",  "a worker's record worked in, not released") \
    X(deliver_chunk,   "D3",  "a chunk sent, not written down") \
    X(deliver_last,    "D3",  "a terminal message sent, not written down") \
    X(bury_began,      "D1",  "a worker reaped, its ring not read") \
    X(bury_drained,    "D1",  "its ring read, its requests not seen to") \
    X(spawned,         "D1",  "a worker forked, nobody watches it yet") \
    X(heirs_asked,     "D4",  "told to begin again, no worker ended yet") \
    X(heirs_ended,     "D4",  "workers ended, nothing set aside yet") \
    X(heirs_exec,      "D4",  "all closed and set aside, about to become the next one") \
    X(heirs_outlasted, "D4",  "the next one: workers of the former gone, nothing read") \
    X(heirs_recalled,  "D4",  "the next one: the ledger read, no arena taken over") \
    X(heirs_taken,     "D4",  "the next one: all taken over, no worker started") \
    X(mirror_written,  "D5",  "a record's bytes in the mirror, not its checksum") \
    X(mirror_whole,    "D5",  "a record whole") \
    X(mirror_turning,  "D5",  "the other half begun") \
    X(mirror_doubtful, "D5",  "one of the two words that make the other half count") \
    X(mirror_turned,   "D5",  "it counts, the former half not emptied") \
    X(turn_done,       "D1",  "end of a turn of lagand's loop")
/* clang-format on */

enum failpoint {
#define X(name, row, instant) FP_##name,
    FAILPOINTS(X)
#undef X
        FP_COUNT
};

enum fp_side { FP_LAGAND, FP_WORKER, FP_SIDES }; /* a worker is what has LAGAN_EPOCH */
/* WILD, at a point of FP_OR() alone: what the point says, or the device is told to store where no memory is. HOLD: the
 * thread stays there until the test stores another action. */
enum fp_action { FP_KILL = 1, FP_ABORT, FP_STOP, FP_EXIT, FP_DELAY, FP_ACTIONS, FP_WILD, FP_HOLD };
enum { FP_EXIT_STATUS = 3 };
#define FP_NOWHERE ((void *)(uintptr_t)4096) /* a page that nobody maps */

/* The test stores action, then left; the process counts hits, takes left down to 0 and fires. */
struct fp_slot {
    _Atomic uint32_t hits, left, action, fired;
};
struct fp_board {
    struct fp_slot slot[FP_SIDES][FP_COUNT];
    _Atomic int64_t
        longest_turn; /* of lagand's loop: time on a processor from turn_done to turn_done */
    _Atomic uint32_t ring_log2[2]; /* of D and W, so that rings wrap and fill soon; 0: as ever */
};

#ifdef LAGAN_FAILPOINTS
void failpoint(enum failpoint p);
bool failpoint_wild(enum failpoint p); /* as that; true: WILD, by the caller */
#define FP(name) failpoint(FP_##name)
#define FP_OR(name, wild) \
    do { \
        if (failpoint_wild(FP_##name)) wild; \
    } while (0)
uint32_t failpoint_ring(int w);
#define FP_ENVIRONMENT "LAGAN_FP=",                   /* what lagand passes on to its workers */
#define FP_RINGS failpoint_ring(0), failpoint_ring(1) /* sizes for channel_make() */
#else
#define FP(name) ((void)0)
#define FP_OR(name, wild) ((void)0)
#define FP_ENVIRONMENT
#define FP_RINGS 0, 0
#endif

#endif
