/* stat.h - counters and gauges of a worker, in W's seqlock: one table of name, unit and sentence.
 *
 * The worker's engine thread adds to its private copy and publishes once a turn; lagand reads a
 * consistent copy or none. The same rows give laganctl's tables and the metrics' HELP lines.
 */
#ifndef IPC_STAT_H
#define IPC_STAT_H

#include "base/base.h"
#include "ipc/shm.h"

/* clang-format off */
#define STATS(X)                                                                          \
    X(COUNTER, requests,       "",       "requests taken from the ring")                  \
    X(COUNTER, finished,       "",       "outputs ended, for whatever reason")            \
    X(COUNTER, tokens_in,      "tokens", "prompt tokens computed")                        \
    X(COUNTER, tokens_out,     "tokens", "tokens sampled and sent")                       \
    X(COUNTER, steps,          "",       "steps finished, all lanes")                     \
    X(GAUGE,   running,        "",       "sequences with a seat")                         \
    X(GAUGE,   waiting,        "",       "sequences without one")                         \
    X(GAUGE,   blocks,         "blocks", "blocks the arena can hold, all pools")          \
    X(GAUGE,   blocks_used,    "blocks", "blocks held by sequences")                      \
    X(GAUGE,   blocks_cached,  "blocks", "free blocks that still hold reusable content")  \
    X(GAUGE,   host_blocks,    "blocks", "blocks that kv.host_memory can hold")           \
    X(GAUGE,   host_used,      "blocks", "of those, being fetched")                       \
    X(GAUGE,   host_cached,    "blocks", "of those, with reusable content")               \
    X(COUNTER, offloaded,      "blocks", "blocks copied to the host")                     \
    X(COUNTER, fetched,        "blocks", "blocks copied from the host")                   \
    X(COUNTER, host_dropped,   "blocks", "blocks that the host had no room for any more") \
    X(GAUGE,   step_rows,      "rows",   "token rows in the last step")                   \
    X(GAUGE,   step_ns,        "ns",     "duration of the last step")                     \
    X(COUNTER, gaps,           "",       "times a lane went from one step to the next (with timing)") \
    X(COUNTER, idle_ns,        "ns",     "what lay between them")                         \
    X(GAUGE,   graphs,         "",       "captured steps, all lanes")                     \
    X(GAUGE,   graph_bytes,    "bytes",  "device memory that they take")                  \
    X(GAUGE,   split_context,  "units",  "of the device for prompts; 0: all work shares the whole") \
    X(GAUGE,   split_generation, "units", "of the device for answers; 0: likewise")       \
    X(COUNTER, split_changes,  "",       "changes of the division")                       \
    X(COUNTER, prompt_steps,   "",       "steps of prompts and sources alone")            \
    X(COUNTER, prompt_ns,      "ns",     "time they took")                                \
    X(COUNTER, answer_steps,   "",       "steps of answers alone")                        \
    X(COUNTER, answer_ns,      "ns",     "time they took")                                \
    X(COUNTER, mixed_steps,    "",       "steps of both")                                 \
    X(COUNTER, mixed_ns,       "ns",     "time they took")                                \
    X(COUNTER, preemptions,    "",       "sequences put back because blocks ran out")     \
    X(COUNTER, ring_full,      "",       "times the response ring was full")              \
    X(GAUGE,   load_done,      "bytes",  "weights loaded so far")                         \
    X(GAUGE,   load_total,     "bytes",  "weights to load")                               \
    X(COUNTER, adopted,        "tokens", "of a predecessor's KV, taken over")             \
    X(COUNTER, recomputed,     "tokens", "of it, computed again")

/* Of one group of KV blocks: layers of one kind and geometry (worker/kv/kv.h). A group without blocks: there is none. */
#define GROUP_STATS(X)                                                                    \
    X(GAUGE,   kind,           "",       "1 full, 2 window, 3 cross, 4 state; 0: there is no such group") \
    X(GAUGE,   window,         "",       "positions that a query sees; 0: all")           \
    X(GAUGE,   pool,           "",       "groups of equal blocks share one")              \
    X(GAUGE,   bytes,          "bytes",  "a block of it")                                 \
    X(GAUGE,   used,           "blocks", "held by sequences")                             \
    X(GAUGE,   cached,         "blocks", "free, and still hold reusable content")         \
    X(COUNTER, taken,          "blocks", "given out")                                     \
    X(COUNTER, fresh,          "blocks", "of those, for the first time")                  \
    X(COUNTER, shared,         "blocks", "of prompts, that were there whole")             \
    X(COUNTER, copied,         "blocks", "of prompts, of which a part was there and copied") \
    X(COUNTER, moved,          "blocks", "of prompts, of which a part was there and taken over") \
    X(COUNTER, missed,         "blocks", "of prompts, that had to be computed")           \
    X(COUNTER, evicted,        "blocks", "cached ones that were taken for others")        \
    X(COUNTER, offloaded,      "blocks", "copied to the host")                            \
    X(COUNTER, fetched,        "blocks", "copied from the host")                          \
    X(COUNTER, host_dropped,   "blocks", "that the host had no room for any more")
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
void stat_publish(struct shm_ctl *mine, const struct stats *s);
bool stat_read(const struct shm_ctl *peer,
               struct stats *ret); /* false: written meanwhile, thrice */

#endif
