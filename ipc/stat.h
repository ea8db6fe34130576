/* stat.h - counters and gauges of a worker: one table of kind, name, unit and sentence.
 *
 * The values lie in the shared memory that the worker writes (shm_ctl, ipc/shm.h), guarded by a
 * sequence lock. The engine thread of the worker adds to a private copy and publishes it once each
 * loop iteration; lagand reads a consistent copy or none. The rows also give the keys of `workers
 * list`, the metrics lagan_worker_NAME and lagan_kv_NAME, and their HELP lines. A change of a table
 * changes SHM_ABI_MAJOR (ipc/records.h).
 */
#pragma once

#include "base/base.h"
#include "ipc/shm.h"

/* clang-format off */
#define STATS(X) \
    X(COUNTER, requests, "", "requests received from lagand") \
    X(COUNTER, finished, "", "outputs that ended, for any reason") \
    X(COUNTER, prompt_tokens, "tokens", "prompt tokens computed") \
    X(COUNTER, generation_tokens, "tokens", "tokens generated and sent to lagand") \
    X(COUNTER, steps, "", "steps finished, all lanes together") \
    X(GAUGE,   running, "", "sequences that have a slot") \
    X(GAUGE,   waiting, "", "sequences that wait for a slot") \
    X(GAUGE,   blocks, "blocks", "capacity of the KV cache, all pools together") \
    X(GAUGE,   blocks_used, "blocks", "KV blocks that sequences reference") \
    X(GAUGE,   blocks_cached, "blocks", "unreferenced KV blocks with reusable contents") \
    X(GAUGE,   host_blocks, "blocks", "capacity of the host tier (kv.host_memory)") \
    X(GAUGE,   host_blocks_loading, "blocks", \
      "blocks of the host tier that are being copied to the device") \
    X(GAUGE,   host_cached, "blocks", "blocks of the host tier with reusable contents") \
    X(COUNTER, blocks_offloaded, "blocks", "KV blocks copied from the device to the host tier") \
    X(COUNTER, blocks_onboarded, "blocks", "KV blocks copied from the host tier to the device") \
    X(COUNTER, host_blocks_evicted, "blocks", \
      "cached blocks removed from the host tier because it was full") \
    X(GAUGE,   step_tokens, "tokens", "batched tokens of the last step") \
    X(GAUGE,   step_ns, "ns", "duration of the last step") \
    X(COUNTER, device_gaps, "", \
      "times between two steps of a lane that were measured (only with step_timing)") \
    X(COUNTER, device_idle_ns, "ns", \
      "time the device was idle between two steps (only with step_timing)") \
    X(GAUGE,   graphs, "", "captured CUDA graphs, all lanes together") \
    X(GAUGE,   graph_bytes, "bytes", "device memory of the captured CUDA graphs") \
    X(GAUGE,   partition_prefill_units, "units", \
      "device units of the prefill lane; 0: the device is not divided") \
    X(GAUGE,   partition_decode_units, "units", \
      "device units of the decode lane; 0: the device is not divided") \
    X(COUNTER, partition_changes, "", "changes of the device partition") \
    X(COUNTER, prefill_steps, "", "steps with prefill or encoder work only") \
    X(COUNTER, prefill_ns, "ns", "duration of steps with prefill or encoder work only") \
    X(COUNTER, decode_steps, "", "steps with decode work only") \
    X(COUNTER, decode_ns, "ns", "duration of steps with decode work only") \
    X(COUNTER, mixed_steps, "", "steps with prefill and decode work") \
    X(COUNTER, mixed_ns, "ns", "duration of steps with prefill and decode work") \
    X(COUNTER, preemptions, "", "sequences preempted because KV blocks ran out") \
    X(COUNTER, ring_full, "", "times a record did not fit into the response ring") \
    X(GAUGE,   load_done, "bytes", "weights loaded so far") \
    X(GAUGE,   load_total, "bytes", "weights to load") \
    X(COUNTER, adopted, "tokens", "tokens whose KV was adopted from the previous worker") \
    X(COUNTER, recomputed, "tokens", "tokens whose KV the replacement worker computed again")

/* One KV group: layers of equal kind and geometry (worker/kv/kv.h). */
#define GROUP_STATS(X) \
    X(GAUGE,   kind, "", \
      "kind of the KV group: 1 full, 2 window, 3 cross, 4 state; 0: no such group") \
    X(GAUGE,   window, "", "positions that a query attends to; 0: all") \
    X(GAUGE,   pool, "", "pool of the group; groups with equal block size share a pool") \
    X(GAUGE,   bytes, "bytes", "size of one KV block of the group") \
    X(GAUGE,   used, "blocks", "KV blocks of the group that sequences reference") \
    X(GAUGE,   cached, "blocks", "unreferenced KV blocks of the group with reusable contents") \
    X(COUNTER, allocated, "blocks", "KV blocks allocated for sequences") \
    X(COUNTER, allocated_new, "blocks", "KV blocks allocated that were never used before") \
    X(COUNTER, reused_full, "blocks", "prompt blocks found in the prefix cache and shared") \
    X(COUNTER, reused_copied, "blocks", \
      "prompt blocks partly found in the prefix cache and copied") \
    X(COUNTER, reused_moved, "blocks", \
      "prompt blocks partly found in the prefix cache and taken over without a copy") \
    X(COUNTER, missed, "blocks", \
      "prompt blocks that were not in the prefix cache and were computed") \
    X(COUNTER, evicted, "blocks", "cached KV blocks whose memory was reused for other contents") \
    X(COUNTER, offloaded, "blocks", \
      "KV blocks of the group copied from the device to the host tier") \
    X(COUNTER, onboarded, "blocks", \
      "KV blocks of the group copied from the host tier to the device") \
    X(COUNTER, host_evicted, "blocks", \
      "cached blocks of the group removed from the host tier because it was full")
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
/* Publishes s. Called by the only writer of mine; does not block. */
void stat_publish(struct shm_ctl *mine, const struct stats *s);
/* Reads a consistent copy. Returns false, *ret unchanged, if the writer was active at each of three
 * attempts. */
bool stat_read(const struct shm_ctl *peer, struct stats *ret);
