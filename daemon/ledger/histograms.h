/* histograms.h - distributions that lagand measures for each model: latencies and sizes of requests
 * and steps, printed by `laganctl metrics` in the Prometheus form.
 *
 * All histograms have the same 21 buckets: 1, 2, 5, 10, ... 5 000 000 units. The unit of a time is
 * 0.1 ms, so that its buckets end at 0.1 ms ... 500 s; the unit of a size is 1. Values are added
 * without allocation. The counts begin at 0 when lagand starts. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"

/* Name without prefix lagan_, unit (a time in nanoseconds, or a count), HELP. */
/* clang-format off */
#define HISTOGRAMS(X) \
    X(time_to_first_token_seconds,   TIME,  "time from the arrival of a request to its first token") \
    X(inter_token_latency_seconds,   TIME,  "time between two tokens of an output; without beam search") \
    X(request_queue_time_seconds,    TIME,  "time from the arrival of a request to the launch of its first step") \
    X(request_prefill_time_seconds,  TIME,  "time from the launch of the first step of a request to its first token") \
    X(e2e_request_latency_seconds,   TIME,  "time from the arrival of a request to its end") \
    X(request_prompt_tokens,         COUNT, "prompt tokens of a request") \
    X(request_generation_tokens,     COUNT, "generated tokens of a request, all outputs together") \
    X(step_batched_tokens,           COUNT, "batch size: prefill and decode tokens computed in a step")
/* clang-format on */

enum histogram_id {
#define X(name, unit, sentence) HISTOGRAM_##name,
    HISTOGRAMS(X)
#undef X
        N_HISTOGRAMS
};
enum histogram_unit { HISTOGRAM_TIME, HISTOGRAM_COUNT };
enum { HISTOGRAM_BUCKETS = 21 };

struct histogram {
    uint64_t bucket[HISTOGRAM_BUCKETS + 1]; /* the last one: values above all limits */
    uint64_t n, sum;                        /* sum: nanoseconds, or counts */
};
struct histograms {
    struct histogram of[MAX_MODELS][N_HISTOGRAMS];
};
struct histogram_info {
    const char *name, *sentence;
    enum histogram_unit unit;
};
extern const struct histogram_info histogram_infos[N_HISTOGRAMS];

/* Adds one value: nanoseconds (below 0 counts as 0), or a count. */
void histogram_add(struct daemon *d, uint32_t model, enum histogram_id id, int64_t value);
/* Returns the limit of bucket i in units of the histogram: 1, 2, 5, 10, ... */
uint64_t histogram_limit(uint32_t i);
