/* shm.h - the two sealed memfds of a worker: D, written by lagand only, and W, by the worker only.
 *
 * Each side maps the other's memfd read-only; on D the kernel enforces it (F_SEAL_FUTURE_WRITE after
 * lagand's own mapping was made). No cache line is written by both. A pair lives exactly as long as
 * one incarnation (epoch) of a worker and has no name, so nothing is ever repaired or cleaned up.
 *
 *   offset            bytes   content                          written by
 *   0                 4096    struct shm_hdr                   lagand, once, before spawn
 *   4096              4096    struct shm_ctl                   the memfd's owner
 *   8192   (W only)   65536   last words (struct last_words)   worker
 *   73728  (W only)   57344   step trace (struct step_trace)   worker
 *   8192 (D), 131072 (W)      ring[1 << ring_log2]             the memfd's owner
 *
 * In a group of ranks each rank but the first has no D: its plans come in a P, laid out like a D and written by rank
 * 0, and its W is read by rank 0 as well.
 *
 * A change of the layout or of the meaning of a field changes SHM_ABI_MAJOR; ipc/layout.h checks the layout.
 */
#ifndef IPC_SHM_H
#define IPC_SHM_H

#include "base/base.h"
#include "base/err.h"

#include <stdatomic.h>

#define SHM_MAGIC "LAGANSH\1"
#define SHM_LAYOUT UINT64_C(2892018328228) /* SHM_LAYOUT_SUM (ipc/layout.h) of this SHM_ABI_MAJOR */
enum { SHM_ABI_MAJOR = 3, SHM_ABI_MINOR = 1, SHM_PAGE = 4096, SHM_REC_ALIGN = 32 };
enum shm_kind { SHM_D = 1, SHM_W = 2, SHM_P = 3 };
enum {
    SHM_CTL_OFF = 4096,
    SHM_WORDS_OFF = 8192,
    SHM_TRACE_OFF = 73728,
    SHM_RING_OFF_D = 8192,
    SHM_RING_OFF_W = 131072,
    SHM_RING_LOG2_D = 23,
    SHM_RING_LOG2_W = 22,
    SHM_RING_LOG2_P = 23,
    SHM_RING_LOG2_ANSWER = 18, /* of a W whose owner says little */
    SHM_RING_LOG2_MIN = 12,
    SHM_RING_LOG2_MAX = 28,
    SHM_MANY = 512, /* bytes; a few lines are with the reader sooner out of our cache */
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

/* What the worker is doing (shm_ctl.phase); each long one sets phase_deadline_ns first. */
enum worker_phase {
    PHASE_START,
    PHASE_LOAD,
    PHASE_READY,
    PHASE_STEP,
    PHASE_DRAIN,
    PHASE_EXIT,
    PHASE_STANDBY, /* all is there but what a worker leaves */
    PHASE_BEGUN /* a GPU's driver is up, nothing of its memory is taken: fd_channel.h's "begin" is awaited */
};

enum { SHM_MAX_STATS = 62, SHM_MAX_GROUPS = 8, SHM_GROUP_STATS = 16 };

/* Only the owner of the memfd stores; atomics' partners are named beside them. */
struct shm_ctl {
    _Alignas(128) _Atomic uint64_t tail; /* release after a record's bytes; pair: acquire in peek */
    _Alignas(
        128) _Atomic uint64_t head; /* into the PEER's ring; release; pair: acquire in reserve */
    _Alignas(128) _Atomic uint64_t
        wait_seq; /* a number of a sleep and doorbell.h's two bits; fence seq_cst; pair: doorbell_ring() */
    _Alignas(
        128) _Atomic uint64_t hb_count; /* relaxed: the engine loop's turns; pair: supervisor */
    _Atomic uint64_t hb_mono_ns;        /* relaxed */
    _Atomic uint32_t state, phase;      /* relaxed */
    _Atomic int64_t phase_deadline_ns;  /* relaxed; 0: none */
    _Alignas(128) _Atomic uint32_t stat_seq; /* seqlock, odd = writing; pair: stat_read() */
    uint32_t pad;
    _Atomic uint64_t stat[SHM_MAX_STATS]; /* relaxed, inside the seqlock; ipc/stat.h names them */
    _Atomic uint64_t group_stat[SHM_MAX_GROUPS][SHM_GROUP_STATS]; /* the same of each KV group */
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

/* The black box: written by a dying worker (also from a signal handler), read by lagand after. */
struct last_words {
    _Atomic uint32_t state; /* 0 none, 1 being written, 2 whole; release / acquire */
    int32_t signal;
    uint64_t address, step;
    uint32_t n_frames, text_bytes;
    uint64_t frame[64];
    char text[65536 - 32 - 64 * 8];
};
_Static_assert(sizeof(struct last_words) == 65536, "last_words");

/* A ring of the last steps; an entry is written BEFORE its step is launched. */
enum { TRACE_ENTRIES = 64, TRACE_IDS = 108 };
struct step_entry {
    _Atomic uint64_t seq; /* 2n+1 while entry n is written, 2n+2 when whole */
    uint64_t step;
    uint8_t lane, pad[3];
    uint32_t n_ids;
    uint64_t id[TRACE_IDS]; /* the requests of the step, as many as fit */
};
struct step_trace {
    _Atomic uint64_t n;          /* entries ever begun */
    _Atomic uint64_t retired[8]; /* last retired step of each lane */
    uint64_t pad[7];
    struct step_entry entry[TRACE_ENTRIES];
};
_Static_assert(sizeof(struct step_entry) == 888, "step_entry");
_Static_assert(sizeof(struct step_trace) <= 57344, "step_trace");

/* One memfd as one side sees it. Both: hdr, base. The owner: writable; the peer: read-only. */
struct shm {
    int fd;
    void *base;
    uint64_t bytes;
    bool mine;
    struct shm_hdr hdr; /* private copy, validated; the mapped one is never read again */
};

/* lagand: create, size (fallocate, so that no later touch is SIGBUS), map, write the header, weights_checksum.
 * kind D: also F_SEAL_FUTURE_WRITE, ours is the only writable mapping there will ever be.
 * kinds W and P: mapped read-only here; a worker will be the only writer. ring_log2 0: the kind's default. */
int shm_make(struct shm *ret, enum shm_kind kind, uint32_t worker_idx, uint64_t epoch,
             const uint8_t daemon_id[16], uint32_t ring_log2, struct err *e) MUST_USE;

/* The worker's side: map an inherited fd (D read-only, W and P writable) and validate seals, size and every
 * field of the header. -EBADMSG with the field's name. On success the fd is the shm's, on failure
 * still the caller's. */
int shm_attach(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e) MUST_USE;
/* The same of a W or P that another worker writes: read-only. */
int shm_view(struct shm *ret, int fd, enum shm_kind kind, uint64_t epoch, struct err *e) MUST_USE;
void shm_close(struct shm *s); /* unmaps and closes; idempotent */

struct shm_ctl *shm_ctl(const struct shm *s);
uint8_t *shm_ring(const struct shm *s);
struct last_words *shm_words(const struct shm *s); /* W only */
struct step_trace *shm_trace(const struct shm *s); /* W only */

/* Copy bytes another process may be changing: each is read once. */
void shm_copy_in(void *to, const void *from, size_t n);
/* Copy bytes to where another process will read them. From SHM_MANY on they may pass the caches: shm_fence_out()
 * between them and the store-release that says they are there. */
void shm_copy_out(void *to, const void *from, size_t n);
void shm_fence_out(void);

/* CRC-32C (Castagnoli) as in iSCSI, of hdr_crc32c. */
uint32_t shm_crc32c(const void *p, size_t n);

#endif
