/* partition_choose.h - the partition controller of split.mode auto.
 *
 * Before each plan it selects a mode: a partition, and the size of steps with prefill. Among the
 * modes whose inter-token time is within the target it takes the one with the highest throughput;
 * if none is, the one with the lowest inter-token time. Partition 0 is one lane for both phases on
 * the whole device, as with split.mode off. Its steps are long enough that each has prompt tokens
 * and few decode steps read the weights alone, or shorter where the target requires it. On other
 * partitions each phase has its own units.
 *
 * The load is the prompt and output tokens of the steps of the last 3 s. (A mean over 30 s would
 * still describe a burst that is over.) If decode is faster than prefill supplies sequences, fewer
 * sequences decode and prefill limits the throughput. If decode is slower, all sequences decode,
 * prefill runs out, and decode then has the whole device.
 *
 * A mode is kept for some steps, then left for one that is clearly better; the margin falls with
 * time. Pure: times come from step_time.h.
 *
 * Why not minimize prefill time: with a generous target that nearly always selects partition 0, and
 * costs 10 % of the throughput where a partition would serve both phases (docs/lab/partitions.md).
 */
#pragma once

#include "worker/partition/step_time.h"
#include "worker/sched/scheduler.h"

/* The work to be done. */
struct partition_load {
    struct step_cost decode; /* a decode step of n_decode sequences */
    uint32_t n_decode;       /* decoding sequences */
    uint32_t n_there;        /* sequences that could decode together, at least n_decode */
    struct step_cost row;    /* mean of a prompt token; weights: of a step with prefill */
    uint64_t n_tokens;       /* prompt tokens that could be computed now */
    double tokens;           /* output tokens per prompt token */
    double prompt;           /* prompt tokens per prefill step that ends a prompt; 0: unknown */
    double each;             /* tokens of a prompt; 0: unknown */
};
struct partition_mode {
    unsigned partition;
    uint32_t rows; /* max tokens of a step with prefill while sequences decode */
};
struct partition_limits {
    uint32_t min_tokens, max_tokens; /* prompt tokens in a step */
    nsec target;                     /* inter-token time; 0: none */
    uint32_t tile; /* matrix products round tokens up to a multiple of it; 0: they do not */
};

struct split {
    struct step_time time;
    struct partition_limits l;
    struct partition_mode now;
    uint32_t since;     /* selections since the mode changed */
    uint64_t n_changes; /* of the partition */

    /* Observed from launched and retired steps. */
    struct step_costs costs;
    const struct kv_config *kv;
    struct partition_load load;
    struct partition_lane {
        nsec busy, began;          /* total time of retired steps; start of the oldest in flight */
        nsec others;               /* busy time of the other lanes at `began` */
        uint32_t n_out, n_prompts; /* steps in flight; those with prefill */
        uint64_t done;
        struct step_dependency wait[2]; /* of steps in flight, by step % 2; step 0: none */
    } lane[MAX_LANES];
    struct {                   /* decaying sums over steps */
        double rows, tokens;   /* prompt tokens, output tokens */
        double ends, prompts;  /* steps that ended a prompt; prompts ended */
        struct step_cost work; /* of the prompt tokens */
        uint32_t last;         /* output tokens of the last step with decode */
    } flow;
    nsec at;   /* when a step was last retired */
    bool news; /* a step was retired since the last selection */
};

/* kv must outlive s. bandwidth, peak: bytes and FLOP per second of the whole device. */
void partition_choose_init(struct split *s, const struct partition_limits *l,
                           const struct partition_list *list, const struct step_costs *costs,
                           const struct kv_config *kv, double bandwidth, double peak);
/* Call when a step is launched, and when the oldest step of its lane is retired. Partition 0 in a
 * step means that it had the whole device. Retired returns the step's time. */
void partition_choose_launched(struct split *s, const struct batch *b, nsec now);
nsec partition_choose_retired(struct split *s, const struct batch *b, nsec now);
/* Selects that partition now, without comparison. */
void partition_choose_start(struct split *s, unsigned partition);
/* The mode for the following plans. */
struct partition_mode partition_choose(struct split *s, const struct partition_list *list,
                                       const struct scheduler *sched);
/* As partition_choose(), for a given load. */
struct partition_mode partition_choose_for(struct split *s, const struct partition_list *list,
                                           const struct partition_load *load);

/* Expected of a partition under a load with both phases: ns per prompt token, inter-token time in
 * ns, and throughput in prompt tokens per ns, each with its output tokens. */
struct partition_expect {
    double row, token, done;
    struct partition_mode way;
};
struct partition_expect partition_expect(const struct split *s, unsigned partition,
                                         const struct partition_load *load);
/* The best mode for a load, independent of the current mode. */
struct partition_expect partition_choose_best(const struct split *s,
                                              const struct partition_list *list,
                                              const struct partition_load *load);
