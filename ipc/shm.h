/* shm.h - the two sealed memfds of a worker: lagand writes D, the worker writes W.
 *
 * Each side maps the other's memfd read-only; for D the kernel enforces this (F_SEAL_FUTURE_WRITE
 * after lagand's own mapping). No cache line has two writers. A pair lives as long as one
 * incarnation (epoch) of a worker and has no name, so it is never repaired or cleaned up.
 *
 *   offset            bytes   content                                 written by
 *   0                 4096    struct shm_hdr                          lagand, once, before the fork
 *   4096              4096    struct shm_ctl                          owner of the memfd
 *   8192   (W only)   65536   panic message (struct panic_message)    worker
 *   73728  (W only)   57344   step trace (struct step_trace)          worker
 *   131072 (W only)   659456  step records (struct step_records)      worker
 *   8192 (D), 790528 (W)      ring[1 << ring_log2]                    owner of the memfd
 *
 * In a rank group, a rank other than rank 0 has no D. It gets its plans in a P, which has the
 * layout of a D and is written by rank 0; rank 0 also reads the W of that rank.
 *
 * A change of the layout or of the meaning of a field changes SHM_ABI_MAJOR; ipc/layout.h checks
 * the layout. */
#pragma once
#include "base/base.h"
#include "base/err.h"

#include <stdatomic.h>

#define SHM_MAGIC "LAGANSH\1"
/* the value of SHM_LAYOUT_SUM (ipc/layout.h) for this SHM_ABI_MAJOR */
#define SHM_LAYOUT UINT64_C(10881261789655)
enum { SHM_ABI_MAJOR = 6, SHM_ABI_MINOR = 0, SHM_PAGE = 4096, SHM_REC_ALIGN = 32 };
enum shm_kind { SHM_D = 1, SHM_W = 2, SHM_P = 3 };
enum {
    SHM_CTL_OFF = 4096,
    SHM_PANIC_OFF = 8192,
    SHM_TRACE_OFF = 73728,
    SHM_STEPS_OFF = 131072,
    SHM_RING_OFF_D = 8192,
    SHM_RING_OFF_W = 790528,
    SHM_RING_LOG2_D = 23,
    SHM_RING_LOG2_W = 22,
    SHM_RING_LOG2_P = 23,
    SHM_RING_LOG2_REPLY = 18, /* reply ring of a rank, whose records are few and short */
    SHM_RING_LOG2_MIN = 12,
    SHM_RING_LOG2_MAX = 28,
    SHM_MANY = 512, /* bytes: shm_copy_out() of less uses normal stores, visible sooner */
};

struct shm_hdr {
    char magic[8];
    uint16_t abi_major, abi_minor;
    uint32_t hdr_size;
    uint64_t epoch;
    uint32_t kind, worker_idx;
    uint64_t total_size, ctl_off, ring_off;
    uint32_t ring_log2, rec_align, max_rec, feature_bits;
    uint8_t daemon_id[16];
    uint8_t zero[4004];
    uint32_t hdr_crc32c; /* of the 4092 bytes before it */
};
_Static_assert(offsetof(struct shm_hdr, epoch) == 16, "shm_hdr");
_Static_assert(offsetof(struct shm_hdr, total_size) == 32, "shm_hdr");
_Static_assert(offsetof(struct shm_hdr, ring_log2) == 56, "shm_hdr");
_Static_assert(offsetof(struct shm_hdr, daemon_id) == 72, "shm_hdr");
_Static_assert(offsetof(struct shm_hdr, zero) == 88, "shm_hdr");
_Static_assert(sizeof(struct shm_hdr) == 4096, "shm_hdr");

/* What the worker is doing (shm_ctl.phase). Before a long phase the worker stores the time at which
 * the phase must have ended in shm_ctl.phase_deadline_ns. */
enum worker_phase {
    PHASE_START,
    PHASE_LOAD,
    PHASE_READY,
    PHASE_STEP,
    PHASE_DRAIN,
    PHASE_EXIT,
    PHASE_STANDBY, /* standby: everything except the arenas of a worker is loaded */
    PHASE_BEGUN    /* standby: the GPU driver is initialised; waits for "begin" (fd_channel.h) */
};

enum { SHM_MAX_STATS = 62, SHM_MAX_GROUPS = 8, SHM_GROUP_STATS = 19 };

/* Control page of a memfd. Only the owner of the memfd stores into it. The comments name the memory
 * order of each store and the load of the peer that is paired with it. */
struct shm_ctl {
    /* of the ring in this memfd: release, after the record bytes; pair: acquire in ring_peek() */
    _Alignas(128) _Atomic uint64_t tail;
    /* of the ring in the peer's memfd: release; pair: acquire in ring_reserve() */
    _Alignas(128) _Atomic uint64_t head;
    /* number of the sleep and the bits of doorbell.h: fence seq_cst; pair: doorbell_ring() */
    _Alignas(128) _Atomic uint64_t wait_seq;
    /* heartbeat, iterations of the engine loop: relaxed; read by the supervisor in lagand */
    _Alignas(128) _Atomic uint64_t hb_count;
    _Atomic uint64_t hb_mono_ns;       /* relaxed */
    _Atomic uint32_t state, phase;     /* relaxed */
    _Atomic int64_t phase_deadline_ns; /* relaxed; 0: none */
    /* sequence lock of the statistics, odd while they are written; pair: stat_read() */
    _Alignas(128) _Atomic uint32_t stat_seq;
    uint32_t pad;
    /* relaxed, inside the sequence lock; names: ipc/stat.h */
    _Atomic uint64_t stat[SHM_MAX_STATS];
    /* relaxed, inside the sequence lock: the statistics of each KV group */
    _Atomic uint64_t group_stat[SHM_MAX_GROUPS][SHM_GROUP_STATS];
    uint8_t zero[SHM_PAGE - 512 - 8 - (SHM_MAX_STATS + SHM_MAX_GROUPS * SHM_GROUP_STATS) * 8];
};
_Static_assert(offsetof(struct shm_ctl, head) == 128, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, wait_seq) == 256, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, hb_count) == 384, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, phase_deadline_ns) == 408, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, stat_seq) == 512, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, stat) == 520, "shm_ctl");
_Static_assert(offsetof(struct shm_ctl, group_stat) == 1016, "shm_ctl");
_Static_assert(sizeof(struct shm_ctl) == 4096, "shm_ctl");

/* Written by a dying worker, possibly in a signal handler; read by lagand afterwards. Frame i of
 * the stack is at offset frame[i] from the start of the file module_name[module[i]] in memory, as
 * addr2line takes it; module PANIC_MODULES: frame[i] is an address. */
enum { PANIC_FRAMES = 64, PANIC_MODULES = 16, PANIC_NAME = 32 };
struct panic_message {
    _Atomic uint32_t state; /* 0 none, 1 being written, 2 complete; release / acquire */
    int32_t signal;
    uint64_t address, step;
    uint32_t n_frames, text_bytes;
    uint64_t frame[PANIC_FRAMES];
    uint8_t module[PANIC_FRAMES];
    char module_name[PANIC_MODULES][PANIC_NAME]; /* name of the file, without its folder */
    char text[65536 - 32 - PANIC_FRAMES * 9 - PANIC_MODULES * PANIC_NAME];
};
_Static_assert(sizeof(struct panic_message) == 65536, "panic_message");

/* The last TRACE_ENTRIES steps of a worker, by which lagand finds the requests that may have made
 * it crash. Therefore an entry is written before its step is launched. */
enum { TRACE_ENTRIES = 64, TRACE_IDS = 108 };
struct step_entry {
    _Atomic uint64_t seq; /* 2n+1 while entry n is written, 2n+2 when complete */
    uint64_t step;
    uint8_t lane, pad[3];
    uint32_t n_ids;
    uint64_t id[TRACE_IDS]; /* ids of the requests in the step, as many as fit */
};
struct step_trace {
    _Atomic uint64_t n;          /* number of entries begun since the start of the worker */
    _Atomic uint64_t retired[8]; /* last retired step of each lane */
    uint64_t pad[7];
    struct step_entry entry[TRACE_ENTRIES];
};
_Static_assert(sizeof(struct step_entry) == 888, "step_entry");
_Static_assert(sizeof(struct step_trace) <= 57344, "step_trace");

/* The last STEP_RECORDS committed steps of a worker, for statistics. lagand copies them several
 * times a second and after the end of the process (daemon/supervise/step_log.h), so that a record
 * costs the worker some stores, and no record in the ring. */
enum { STEP_RECORDS = 4096 };
struct step_record {
    _Atomic uint64_t seq; /* 2n+1 while record n is written, 2n+2 when complete */
    uint64_t step;        /* number of the step in its lane */
    int64_t at_ns;        /* CLOCK_MONOTONIC, when the worker noticed the end of the step */
    /* Time to plan the step; to queue its work on the device; from the end of the step before (or
     * from the launch, if the lane was idle) to the end of the step. */
    uint64_t plan_ns, queue_ns, device_ns;
    uint32_t prefill_tokens, decode_tokens, encoder_tokens; /* batched tokens, by kind of work */
    uint32_t n_segments;                                    /* sequences in the step */
    uint32_t cached_tokens;    /* prompt tokens that sequences starting here found in the cache */
    uint32_t preempted;        /* sequences that the plan of the step preempted */
    uint32_t running, waiting; /* sequences of the worker after the step */
    uint32_t prefill_units, decode_units; /* the partition; 0: the device is not divided */
    uint8_t lane, n_pools, pad[6];
    uint32_t used[SHM_MAX_GROUPS], free[SHM_MAX_GROUPS]; /* [n_pools] blocks after the step */
};
struct step_records {
    _Atomic uint64_t n; /* number of complete records since the start of the worker */
    uint64_t pad[15];
    struct step_record entry[STEP_RECORDS];
};
_Static_assert(sizeof(struct step_record) == 160, "step_record");
_Static_assert(sizeof(struct step_records) <= SHM_RING_OFF_W - SHM_STEPS_OFF, "step_records");

/* A memfd mapped in this process: writable if this side owns it, else read-only. */
struct shm {
    int fd;
    void *base;
    uint64_t bytes;
    bool mine;
    struct shm_hdr hdr; /* private, validated copy; the mapped header is not read again */
};

/* lagand: creates a memfd, reserves its pages with fallocate (so that no later access is SIGBUS),
 * maps it, writes the header and seals it. Kind D is also sealed with F_SEAL_FUTURE_WRITE, so that
 * lagand's mapping stays the only writable one. Kinds W and P, which only a worker writes, are
 * mapped read-only. ring_log2: log2 of the ring size in bytes; 0: the default. */
int shm_make(struct shm *ret, enum shm_kind kind, uint32_t worker_idx, uint64_t epoch,
             const uint8_t daemon_id[16], uint32_t ring_log2, struct err *e) MUST_USE;

/* Worker: maps an inherited descriptor (D read-only, W and P writable) and validates seals, size
 * and every field of the header. -EBADMSG names the field. The shm owns fd on success, the caller
 * on failure. */
int shm_attach(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e) MUST_USE;
/* Like shm_attach(), but maps read-only: a W or P that another process writes. */
int shm_view(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e) MUST_USE;
void shm_close(struct shm *s); /* unmaps and closes; may be called twice */

struct shm_ctl *shm_ctl(const struct shm *s);
uint8_t *shm_ring(const struct shm *s);
struct panic_message *shm_panic_message(const struct shm *s); /* W only */
struct step_trace *shm_trace(const struct shm *s);            /* W only */
struct step_records *shm_steps(const struct shm *s);          /* W only */

/* Copies bytes that another process may change meanwhile; loads each byte exactly once. */
void shm_copy_in(void *to, const void *from, size_t n);
/* Copies bytes that another process will read. From SHM_MANY bytes on the stores may be
 * non-temporal: call shm_fence_out() between the copy and the release store that publishes it. */
void shm_copy_out(void *to, const void *from, size_t n);
void shm_fence_out(void);

/* Returns the CRC-32C (Castagnoli) of n bytes, as in iSCSI. */
uint32_t shm_crc32c(const void *p, size_t n);
