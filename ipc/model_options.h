/* model_options.h - the settings of one model's section: what lagand reads from the configuration and a
 * worker gets at exec.
 *
 * One table (opt.h) for both programs: lagand validates the section before it spawns anything and
 * hands each key that differs from its default on as --set key=value.
 */
#ifndef IPC_MODEL_OPTIONS_H
#define IPC_MODEL_OPTIONS_H

#include "base/base.h"
#include "base/opt.h"

enum { DTYPE_AUTO, DTYPE_FP32, DTYPE_BF16, DTYPE_FP16 };
enum { SPLIT_OFF, SPLIT_AUTO, SPLIT_FIXED };
enum { SPLIT_ENCODER_CONTEXT, SPLIT_ENCODER_OWN };
enum { NUMERICS_FAST, NUMERICS_INVARIANT };

struct model_options {
    char path[1024];
    char name[64];
    char device[64];  /* auto | cpu | cuda | cuda:N */
    char weights[64]; /* checkpoint | random:SEED */
    uint32_t dtype, workers, tensor_parallel, standby;
    uint32_t pipeline_parallel, context_parallel, expert_parallel, attention_data_parallel;
    uint32_t max_num_seqs, max_num_batched_tokens, max_source_tokens, max_model_len;
    uint32_t policy, quantum, numerics;
    uint32_t chunks, prompt_batch, source_batch; /* chunks: enum chunks of the scheduler */
    nsec batch_wait;
    uint64_t kv_memory, kv_reserve, kv_host_memory; /* kv_memory 0: auto */
    uint64_t kv_host_bandwidth;                     /* bytes a second */
    uint32_t kv_prompt_rate; /* tokens a second; either 0: what is there is fetched */
    uint32_t kv_tokens_per_block, kv_sink_tokens, kv_snapshot_interval, kv_dtype;
    bool kv_reuse;
    char kv_shares[80];
    double cross_kv_cache_fraction;
    uint32_t split_mode;
    char split_context_sm[16];
    int32_t split_context_max_tokens, split_context_max_seqs;
    uint32_t split_encoder;
    nsec split_target;
    uint32_t threads;       /* CPU: all lanes together; 0: every core we may use */
    char isa[16];           /* CPU: auto | scalar | avx2 */
    char text_cache[1024];  /* a folder; empty: systemd's */
    uint32_t chat_template; /* as in worker/text/chat.h */
    uint64_t graphs_memory;
    bool timing;
    char kernels[256];                      /* CUDA: op=name,... */
    char cuda_libs[1024], cuda_tuned[1024]; /* a folder, a file; empty: where they are looked for */
};

extern const struct opt model_opts[];

/* "cpu", "cuda" or "cuda:N,M...": auto is the GPUs of a host that has any, which never falls back to the CPU unasked. */
const char *model_options_device(const struct model_options *k);
bool model_options_on_gpu(const struct model_options *k);

#endif
