/* model_options.h - the options of one model: an entry of `models` in lagand's configuration.
 *
 * lagand and lagan-worker use one table of them (base/opt.h), which says what each option means.
 * lagand validates an entry before it starts a worker, and passes each option that differs from its
 * default to the worker as --key=value. */
#pragma once
#include "base/base.h"
#include "base/opt.h"

enum { DTYPE_AUTO, DTYPE_FP32, DTYPE_BF16, DTYPE_FP16 };
enum { SPLIT_OFF, SPLIT_AUTO, SPLIT_FIXED };
enum { SPLIT_ENCODER_SHARED, SPLIT_ENCODER_OWN };
enum { NUMERICS_FAST, NUMERICS_INVARIANT };
enum { REUSE_SCOPE_USER, REUSE_SCOPE_ALL };

struct model_options {
    char path[1024];
    char name[64];
    char device[64];  /* auto | cpu | cuda | cuda:N */
    char weights[64]; /* checkpoint | random:SEED */
    uint32_t dtype, workers, tensor_parallel, standby;
    uint32_t max_num_seqs, max_num_batched_tokens, max_source_tokens, max_model_len;
    uint32_t policy, fairness_quantum, numerics;
    uint32_t chunk_policy; /* enum chunks of the scheduler */
    uint32_t prefill_batch_tokens, encoder_batch_size;
    nsec batch_wait_timeout;
    uint64_t kv_memory, kv_reserve, kv_host_memory; /* kv_memory 0: auto */
    uint64_t kv_host_bandwidth;                     /* bytes per second; 0: unknown */
    uint32_t kv_prefill_rate;                       /* prompt tokens per second; 0: unknown */
    uint32_t kv_tokens_per_block, kv_sink_tokens, kv_snapshot_interval, kv_dtype;
    bool kv_reuse, kv_partial_reuse;
    uint32_t kv_reuse_scope; /* used by lagand alone: it sets the salt of each request */
    uint32_t kv_events;
    char kv_shares[80];
    double cross_kv_cache_fraction;
    uint32_t split_mode;
    char split_context_sm[16];
    int32_t split_context_max_tokens, split_context_max_seqs;
    uint32_t split_encoder;
    nsec split_itl_target;
    uint32_t threads;               /* CPU: all lanes together; 0: all available cores */
    char isa[16];                   /* CPU: auto | scalar | avx2 */
    char tokenizer_cache_dir[1024]; /* empty: $CACHE_DIRECTORY/vocab */
    uint32_t chat_template;         /* enum of worker/text/chat.h */
    uint64_t graphs_memory;
    bool step_timing;
    char kernels[256];                            /* CUDA: op=name,... */
    char cuda_libs[1024], cuda_tuning_file[1024]; /* empty: see the table */
};

extern const struct opt model_opts[];

/* Returns the option device: "cpu", "cuda" or "cuda:N,M...". For auto it returns "cuda" on a host
 * with an NVIDIA driver, even if no GPU can be used, so that lagan does not silently use the CPU.
 * The text is a field of k or static. */
const char *model_options_device(const struct model_options *k);
bool model_options_on_gpu(const struct model_options *k);
/* Checks that each option that differs from its default has an effect on this device and beside the
 * other options. Options whose effect depends on the model are checked when the model is opened.
 * -EINVAL: one has none; the sentence names its key, its value and what the option needs. */
int model_options_check(const struct model_options *k, struct err *e) MUST_USE;
