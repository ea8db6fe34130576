/* failpoint.h - points at which a test can kill, stop or delay a process.
 *
 *     FP(ring_reserved);
 *
 * expands to nothing in the installed programs. tests/torture builds lagand and lagan-worker again
 * with LAGAN_FAILPOINTS; there the environment variable LAGAN_FP names a file with a struct
 * fp_board. The test maps this file, arms a failpoint while the process runs and reads how often it
 * was passed. An armed failpoint fires once, in the first process that passes it, so that the
 * replacement of a killed process is not killed again.
 *
 * The phase numbers the kinds of work of a process. Worker: W1 (start) to W15 (drain). lagand: D1
 * (event loop, workers), D2 (new requests), D3 (delivery), D4 (re-exec), D5 (ledger log). */
#pragma once
#include "base/base.h"

/* Columns: name, phase, what has happened in the process when it passes the failpoint. */
/* clang-format off */
#define FAILPOINTS(X) \
    X(spawn_child,          "W1",  "forked; the parent-death signal is not set") \
    X(spawn_exec,           "W1",  "descriptors are placed; exec not called") \
    X(worker_main,          "W1",  "start of main()") \
    X(worker_attached,      "W2",  "rings are mapped") \
    X(load_device,          "W2",  "device not open; INJECT: device memory exhausted") \
    X(load_steps,           "W2",  "sizes are known, lanes and scratch not allocated; INJECT: memory exhausted") \
    X(load_weights,         "W2",  "weights are complete; their descriptor not passed") \
    X(load_kv,              "W2",  "KV memory is allocated; its descriptor not passed") \
    X(load_done,            "W2",  "engine is complete; READY not written") \
    X(fd_passed,            "W2",  "a descriptor was passed, by worker or lagand") \
    X(ready_reported,       "W3",  "READY is in the outbox") \
    X(host_mapping,         "W3",  "before the host tier is mapped; INJECT: wrong size") \
    X(host_mapped,          "W3",  "host tier is mapped; the engine does not use it") \
    X(loop_published,       "W3",  "records published; no doorbell byte sent") \
    X(ring_tail_seen,       "W4",  "tail read; record not copied") \
    X(ring_copied,          "W5",  "record copied; head not released") \
    X(ring_releasing,       "W5",  "all records read; before the store of head") \
    X(ring_released,        "W6",  "head stored") \
    X(intake_taken,         "W6",  "a request became a sequence") \
    X(manifest_stored,      "W7",  "between two stores to the manifest") \
    X(step_planned,         "W7",  "step is in the trace; not launched") \
    X(step_queued,          "W7",  "all of a step except its end is queued on the device") \
    X(step_launched,        "W7",  "step is queued on the device") \
    X(step_finished,        "W7",  "step finished; not committed") \
    X(step_committed,       "W7",  "step committed; tokens not written") \
    X(rank_planned,         "W7",  "another rank: step read; not launched") \
    X(rank_launched,        "W7",  "another rank: step queued on its device") \
    X(step_recording,       "W8",  "step record begun; its fields are not written") \
    X(step_emitted,         "W8",  "tokens of the step are in the outbox") \
    X(ring_reserved,        "W8",  "record header written; tail not stored") \
    X(outbox_copied,        "W8",  "payload written; tail not stored") \
    X(ring_publishing,      "W8",  "records are complete; before the store of tail") \
    X(ring_published,       "W9",  "tail stored; before the fence") \
    X(doorbell_fenced,      "W9",  "after the fence; no doorbell byte sent") \
    X(doorbell_sent,        "W9",  "doorbell byte sent") \
    X(sleep_announced,      "W10", "wait_seq has ASLEEP; before the fence") \
    X(sleep_entered,        "W10", "rings are empty; before blocking") \
    X(sleep_left,           "W10", "wait_seq is cleared") \
    X(stat_writing,         "W11", "inside the sequence lock of the statistics") \
    X(panic_writing,        "W12", "panic message partly written") \
    X(finish_reported,      "W13", "FINISH is in the outbox") \
    X(control_sending,      "W14", "control channel: reply made, not sent") \
    X(drain_seen,           "W15", "DRAIN read") \
    X(drain_done,           "W15", "drained; memory not freed") \
    X(front_decoded,        "D2",  "frame decoded; not answered") \
    X(front_taken,          "D2",  "request is in the ledger; ACCEPT not sent") \
    X(front_accepted,       "D3",  "ACCEPT sent") \
    X(relay_giving,         "D1",  "request marked dispatched; SUBMIT not in the ring") \
    X(relay_taken,          "D1",  "record of a worker applied; not released") \
    X(deliver_chunk,        "D3",  "CHUNK sent; not in the ledger log") \
    X(deliver_last,         "D3",  "DONE or ERROR sent; not in the ledger log") \
    X(reap_began,           "D1",  "worker reaped; its ring not read") \
    X(reap_drained,         "D1",  "ring of a dead worker read; its requests not requeued") \
    X(spawned,              "D1",  "worker forked; not yet supervised") \
    X(reexec_asked,         "D4",  "re-exec requested; workers still running") \
    X(reexec_workers_ended, "D4",  "workers ended; handover state not written") \
    X(reexec_exec,          "D4",  "handover state written; before exec") \
    X(reexec_outlasted,     "D4",  "new lagand: previous workers gone; ledger log not read") \
    X(reexec_ledger_read,   "D4",  "new lagand: ledger read; arenas not adopted") \
    X(reexec_adopted,       "D4",  "new lagand: arenas adopted; no worker started") \
    X(log_written,          "D5",  "ledger log: record written; checksum not") \
    X(log_record_whole,     "D5",  "ledger log: record complete") \
    X(log_switching,        "D5",  "ledger log: second half begun") \
    X(log_half_valid,       "D5",  "ledger log: 1 of 2 words that validate the new half stored") \
    X(log_switched,         "D5",  "ledger log: new half valid; previous half not emptied") \
    X(loop_done,            "D1",  "end of an iteration of the event loop of lagand")
/* clang-format on */

enum failpoint {
#define X(name, row, instant) FP_##name,
    FAILPOINTS(X)
#undef X
        FP_COUNT
};

enum fp_side { FP_LAGAND, FP_WORKER, FP_SIDES }; /* WORKER: LAGAN_EPOCH is set */
/* What an armed failpoint does to its process. INJECT, only at FP_OR(): runs the statement given
 * there, as a store to an invalid device address. HOLD: waits until the test changes the action. */
enum fp_action {
    FP_KILL = 1,
    FP_ABORT,
    FP_STOP,
    FP_EXIT,
    FP_DELAY,
    FP_ACTIONS,
    FP_INJECT,
    FP_HOLD
};
enum { FP_EXIT_STATUS = 3 };                 /* exit status of FP_EXIT */
#define FP_NOWHERE ((void *)(uintptr_t)4096) /* an address that is never mapped */

/* State of a failpoint. The test stores action and then left. The process counts its passes in hits
 * and decrements left; when left becomes 0, it counts fired and performs the action. */
struct fp_slot {
    _Atomic uint32_t hits, left, action, fired;
};
struct fp_board {
    struct fp_slot slot[FP_SIDES][FP_COUNT];
    _Atomic int64_t longest_iteration; /* CPU time of one loop iteration of lagand, ns */
    /* log2 of the sizes of request ring and response ring, small to test the wrap; 0: default */
    _Atomic uint32_t ring_log2[2];
};

#ifdef LAGAN_FAILPOINTS
void failpoint(enum failpoint p);
bool failpoint_inject(enum failpoint p); /* true: the caller injects the fault */
#define FP(name) failpoint(FP_##name)
#define FP_OR(name, injected) \
    do { \
        if (failpoint_inject(FP_##name)) injected; \
    } while (0)
uint32_t failpoint_ring(int w);                       /* ring_log2[w] */
#define FP_ENVIRONMENT "LAGAN_FP=",                   /* passed to workers by lagand */
#define FP_RINGS failpoint_ring(0), failpoint_ring(1) /* sizes for channel_make() */
#else
#define FP(name) ((void)0)
#define FP_OR(name, injected) ((void)0)
#define FP_ENVIRONMENT
#define FP_RINGS 0, 0
#endif
