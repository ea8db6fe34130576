/* worker.h - struct worker: all data of one worker process, as pointers to its parts.
 *
 * The struct of a part is defined in the header or .c file of the part; this header includes none
 * of them. main.c owns the storage of the parts. The loader thread fills the model's objects; the
 * engine thread owns them afterwards. The engine thread is the only writer of W and the only reader
 * of D, the shared memories with the response ring (W) and the request ring (D). Other threads also
 * use loader, tuning, cache_flush, cache_pin, partition_ctl (see their headers). */
#pragma once
#include "base/base.h"

struct worker {
    /* Identity and inherited descriptors: set by main.c, constant afterwards. */
    const struct model_options *keys;
    char name[32];
    uint32_t rank; /* 0 .. tensor_parallel - 1; ranks above 0 have no scheduler and no tokenizer */
    struct heritage *heritage;
    struct channel *channel;
    int fd_channel;
    const struct cgroup *cgroup; /* where the memory limits of the process are */
    uint64_t max_kv;             /* limit of the KV memory after OOM kills, in bytes; 0: none */

    /* The model's objects: used by the loader thread while it runs, then by the engine thread. */
    struct gpu *gpu;
    struct model *model;
    struct tokenizer *tokenizer; /* NULL: the model has none; why_no_text gives the reason */
    struct chat *chat;           /* chat template; valid if tokenizer is not NULL */
    char why_no_text[200];
    bool tokenizer_fault; /* tokenizer.json exists but cannot be loaded */
    uint32_t max_source;  /* most tokens of encoder input; 0: a decoder-only model */
    struct kv_config *kv_config;
    struct kv *kv;
    void *kv_memory; /* memory in which kv allocates its structures */
    struct exec_config *steps;
    struct exec *exec;
    struct scheduler_limits *limits;
    struct scheduler *sched; /* NULL in ranks above 0 */

    /* Parts. */
    struct loader *loader;       /* load/ */
    struct plan_ring *plan;      /* tp/ */
    struct adopt *adopt;         /* handover/ */
    struct host_tier *host_tier; /* handover/ */
    struct partition_ctl *partition_ctl;
    struct tuning *tuning;
    struct cache_flush *cache_flush;
    struct cache_pin *cache_pin;
    struct control *control; /* NULL: the worker has no control channel */
    struct requests *requests;
    struct intake *intake;
    struct outbox *outbox;
    struct kv_publish *kv_publish;
    struct text_thread *text; /* NULL: the model has no tokenizer */
    char *text_buf; /* [text_cap] text that one token completes, held-back text included */
    size_t text_cap;
    struct stats *stats;

    /* State of the engine thread. */
    nsec ready_at; /* when READY was queued */
    bool loaded;   /* the loader has finished: the engine thread owns the model's objects */
    bool draining;
};
