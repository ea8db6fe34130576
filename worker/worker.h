/* worker.h - one worker process: the struct that joins its parts.
 *
 * Each part's struct is defined in the part's header or .c file; this header includes none of them.
 * main.c owns the storage of the parts. The loader thread fills the model's objects; the engine
 * thread owns them afterwards. The engine thread is the only writer of W and the only reader of D.
 * Parts that another thread also uses (loader, tuning, cache_flush, partition_ctl) say so in their
 * headers.
 */
#pragma once

#include "base/base.h"

struct worker {
    /* Identity and inherited descriptors: set by main.c, constant afterwards. */
    const struct model_options *keys;
    char name[32];
    uint32_t rank; /* 0 .. tensor_parallel - 1; ranks above 0 have no scheduler, text or D */
    struct heritage *heritage;
    struct channel *channel;
    int fd_channel;

    /* The model's objects: used by the loader thread while it runs, then by the engine thread. */
    struct gpu *gpu;
    struct model *model;
    struct tokenizer *tokenizer; /* NULL: none; why_no_text gives the reason */
    struct chat *chat;           /* valid if tokenizer is not NULL */
    char why_no_text[200];
    uint32_t max_source; /* tokens of encoder input; 0: decoder-only */
    struct kv_config *kv_config;
    struct kv *kv;
    void *kv_memory; /* storage of the KV manager */
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
    struct control *control; /* NULL: no control channel */
    struct requests *requests;
    struct intake *intake;
    struct outbox *outbox;
    struct text_thread *text; /* NULL: no tokenizer */
    char *text_buf; /* [text_cap] text of one token: held-back text and the longest token text */
    size_t text_cap;
    struct stats *stats;

    /* State of the engine thread. */
    nsec ready_at; /* when READY was queued */
    bool loaded;   /* the loader has finished: the engine thread owns the model's objects */
    bool draining;
};
