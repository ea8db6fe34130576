/* stat.h - counters and gauges of a worker: tables of kind, name, unit and sentence.
 *
 * The values are in the shared memory that the worker writes (shm_ctl, ipc/shm.h), guarded by a
 * sequence lock. The engine thread of the worker changes a private copy and publishes it in each
 * loop iteration; lagand reads a consistent copy or none. The rows also give the keys of `workers
 * list`, the metrics lagan_worker_NAME and lagan_kv_NAME, and their HELP lines. A change of a table
 * changes SHM_ABI_MAJOR (ipc/records.h). */
#pragma once
#include "base/base.h"
#include "ipc/shm.h"

/* clang-format off */
#define STATS(X) \
    X(COUNTER, requests, "", "requests received from lagand") \
    X(COUNTER, finished, "", "outputs that have ended, for any reason") \
    X(COUNTER, prompt_tokens, "tokens", "prompt tokens computed, without prefix cache hits") \
    X(COUNTER, generation_tokens, "tokens", "tokens generated and sent to lagand") \
    X(COUNTER, steps, "", "steps (batches) computed, in all lanes") \
    X(GAUGE,   running, "", "sequences that are being computed (they have a slot)") \
    X(GAUGE,   waiting, "", "sequences that wait until they can run (for a slot or KV blocks)") \
    X(GAUGE,   blocks, "blocks", \
      "size of all memory pools in KV blocks; free memory counts in each of the pools") \
    X(GAUGE,   blocks_used, "blocks", "KV blocks that running sequences use") \
    X(GAUGE,   blocks_cached, "blocks", "unused KV blocks that the prefix cache can reuse") \
    X(GAUGE,   blocks_pinned, "blocks", \
      "KV blocks, of blocks_used and of the host tier, that `laganctl kv pin` keeps") \
    X(GAUGE,   host_blocks, "blocks", "capacity of the host tier (kv.host_memory), in KV blocks") \
    X(GAUGE,   host_blocks_loading, "blocks", \
      "KV blocks that are being copied from host tier to device") \
    X(GAUGE,   host_cached, "blocks", "KV blocks of the host tier that can be reused") \
    X(COUNTER, blocks_offloaded, "blocks", "KV blocks copied from the device to the host tier") \
    X(COUNTER, blocks_onboarded, "blocks", "KV blocks copied from the host tier to the device") \
    X(COUNTER, host_blocks_evicted, "blocks", \
      "KV blocks removed from the host tier because it was full") \
    X(COUNTER, prefix_cache_queries, "tokens", \
      "tokens of the prompts that were looked up in the prefix cache") \
    X(COUNTER, prefix_cache_hits, "tokens", \
      "tokens of these prompts whose KV was found there; hits / queries is the hit rate") \
    X(GAUGE,   step_tokens, "tokens", "decoder tokens in the last step") \
    X(GAUGE,   step_ns, "ns", "duration of the last step") \
    X(COUNTER, device_gaps, "", \
      "number of idle times between two steps of a lane that were measured (only with " \
      "step_timing)") \
    X(COUNTER, device_idle_ns, "ns", \
      "sum of the measured idle times of the device between two steps (only with step_timing)") \
    X(GAUGE,   graphs, "", "captured CUDA graphs, in all lanes") \
    X(GAUGE,   graph_bytes, "bytes", "device memory that the captured CUDA graphs use") \
    X(GAUGE,   partition_prefill_units, "units", \
      "SMs (on the CPU: threads) reserved for prefill; 0: the device is not divided") \
    X(GAUGE,   partition_decode_units, "units", \
      "SMs (on the CPU: threads) reserved for decode; 0: the device is not divided") \
    X(COUNTER, partition_changes, "", "changes of the division between prefill and decode") \
    X(COUNTER, prefill_steps, "", "steps with prefill or encoder work only") \
    X(COUNTER, prefill_ns, "ns", "total duration of steps with prefill or encoder work only") \
    X(COUNTER, decode_steps, "", "steps with decode work only") \
    X(COUNTER, decode_ns, "ns", "total duration of steps with decode work only") \
    X(COUNTER, mixed_steps, "", "steps with prefill and decode work") \
    X(COUNTER, mixed_ns, "ns", "total duration of steps with prefill and decode work") \
    X(COUNTER, preemptions, "", "running sequences preempted because KV blocks ran out") \
    X(COUNTER, kv_events, "", "changes of the prefix cache sent to lagand (with kv.reuse)") \
    X(COUNTER, kv_events_lost, "", \
      "changes of the prefix cache that were overwritten before lagand could get them") \
    X(COUNTER, ring_full, "", "times a result had to wait because the ring to lagand was full") \
    X(GAUGE,   weight_bytes_loaded, "bytes", "bytes of weights loaded so far") \
    X(GAUGE,   weight_bytes, "bytes", "bytes of weights to load in total") \
    X(COUNTER, adopted, "tokens", "tokens whose KV was taken over from the previous process") \
    X(COUNTER, recomputed, "tokens", "tokens whose KV a replacement worker had to compute again")

/* Statistics of each KV group: layers of equal kind and geometry (worker/kv/kv.h). */
#define GROUP_STATS(X) \
    X(GAUGE,   kind, "", \
      "kind of the KV group: 1 full, 2 window, 3 cross, 4 state; 0: no such group") \
    X(GAUGE,   window, "", "number of positions that a query attends to (sliding window); 0: all") \
    X(GAUGE,   pool, "", "number of its memory pool; groups with equal block size share one") \
    X(GAUGE,   bytes, "bytes", "size of one KV block of the group") \
    X(GAUGE,   blocks, "blocks", \
      "size of its memory pool in KV blocks; free memory of all pools counts in each of them") \
    X(GAUGE,   used, "blocks", "KV blocks of the group that sequences use") \
    X(GAUGE,   cached, "blocks", "unused KV blocks of the group that the prefix cache can reuse") \
    X(GAUGE,   pinned, "blocks", "KV blocks of the group that `laganctl kv pin` keeps") \
    X(COUNTER, allocated, "blocks", "KV blocks of the group allocated for sequences so far") \
    X(COUNTER, allocated_new, "blocks", "allocated KV blocks that had never been used before") \
    X(COUNTER, reused_full, "blocks", "prompt blocks found complete in the prefix cache, shared") \
    X(COUNTER, reused_copied, "blocks", \
      "prompt blocks whose first part was found in the prefix cache and copied") \
    X(COUNTER, reused_moved, "blocks", \
      "prompt blocks whose first part was found in the prefix cache and taken over without a " \
      "copy") \
    X(COUNTER, missed, "blocks", \
      "prompt blocks that were not in the prefix cache and were computed") \
    X(COUNTER, evicted, "blocks", \
      "KV blocks removed from the prefix cache because their memory was needed") \
    X(COUNTER, offloaded, "blocks", \
      "KV blocks of the group copied from the device to the host tier") \
    X(COUNTER, onboarded, "blocks", \
      "KV blocks of the group copied from the host tier to the device") \
    X(COUNTER, host_evicted, "blocks", \
      "KV blocks of the group removed from the host tier because it was full") \
    X(COUNTER, trimmed, "blocks", \
      "KV blocks that sequences freed because they had left the sliding window")
/* clang-format on */

enum stat_kind { STAT_COUNTER, STAT_GAUGE };
enum stat_id {
#define X(kind, name, unit, sentence) STAT_##name,
    STATS(X)
#undef X
        STAT_COUNT
};
_Static_assert((int)STAT_COUNT <= (int)SHM_MAX_STATS, "stats");
enum group_stat_id {
#define X(kind, name, unit, sentence) GROUP_STAT_##name,
    GROUP_STATS(X)
#undef X
        GROUP_STAT_COUNT
};
_Static_assert((int)GROUP_STAT_COUNT == (int)SHM_GROUP_STATS, "stats of a group");

struct stat_row {
    enum stat_kind kind;
    const char *name, *unit, *sentence;
};
extern const struct stat_row stat_rows[STAT_COUNT], group_stat_rows[GROUP_STAT_COUNT];
extern const char *const group_kinds[5]; /* by GROUP_STAT_kind */

struct stats {
    uint64_t v[STAT_COUNT];
    uint64_t group[SHM_MAX_GROUPS][GROUP_STAT_COUNT];
};
/* Stores s in mine for stat_read(). Only one thread may call it; does not block. */
void stat_publish(struct shm_ctl *mine, const struct stats *s);
/* Reads a consistent copy of the peer's statistics. Returns false and leaves *ret unchanged if the
 * peer was publishing at each of three attempts. */
bool stat_read(const struct shm_ctl *peer, struct stats *ret);
