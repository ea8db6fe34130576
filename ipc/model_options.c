/* model_options.c - the table of model options, in the order of the manual; see model_options.h. */
#include "ipc/model_options.h"

#include <unistd.h>

#define AT(field) OPT_AT(model_options, field)
#define RESTART OPT_RESTART

/* clang-format off */
const struct opt model_opts[] = {
    { "path", OPT_STR, AT(path), "", NULL, 0, 0, RESTART, "DIR",
      "model directory as downloaded from Hugging Face: config.json, tokenizer and weights" },
    { "name", OPT_STR, AT(name), "", NULL, 0, 0, 0, "NAME",
      "name of the model in requests of clients; empty: the last component of path" },
    { "device", OPT_STR, AT(device), "auto", NULL, 0, 0, RESTART, "DEVICE",
      "device that runs the model. cpu; cuda: all GPUs of the host; cuda:N[,N...]: the GPUs with "
      "these numbers; auto: cuda if the host has an NVIDIA driver, else cpu" },
    { "weights", OPT_STR, AT(weights), "checkpoint", NULL, 0, 0, RESTART, "SOURCE",
      "where the weights come from. checkpoint: the files in path; random:SEED: random numbers "
      "from this seed, to measure speed without weight files" },
    { "dtype", OPT_ENUM, AT(dtype), "auto", "auto|fp32|bf16|fp16", 0, 0, RESTART, NULL,
      "data type of weights and activations; auto: the data type of the checkpoint. Gemma is "
      "refused in fp16, because its activations exceed the largest number of fp16" },
    { "workers", OPT_U32, AT(workers), "1", NULL, 1, 64, 0, "N",
      "number of workers that serve this model; each has its own copy of the weights, and lagand "
      "distributes the requests over them" },
    { "tensor_parallel", OPT_U32, AT(tensor_parallel), "1", NULL, 1, 64, RESTART, "N",
      "number of processes that share the work of every layer of one worker (tensor "
      "parallelism); on GPUs each uses one GPU; 1: one process" },
    { "standby", OPT_U32, AT(standby), "0", NULL, 0, 1, 0, "N",
      "1: a second process per worker loads the weights in advance and replaces the worker if "
      "it fails; 0: the second process of a GPU worker prepares only the GPU driver, and a CPU "
      "worker has none" },
    { "max_num_seqs", OPT_U32, AT(max_num_seqs), "256", NULL, 1, 65536, RESTART, "N",
      "maximum number of sequences that a worker runs at the same time; each beam and each "
      "output of a request is one sequence" },
    { "max_num_batched_tokens", OPT_U32, AT(max_num_batched_tokens), "auto", NULL, 1, 1 << 20,
      RESTART | OPT_AUTO, "N", "maximum number of decoder tokens computed in a step; a longer "
      "prompt takes several steps (chunked prefill); auto: 512 on the CPU, 8192 on a GPU" },
    { "max_source_tokens", OPT_U32, AT(max_source_tokens), "4096", NULL, 1, 1 << 20, RESTART, "N",
      "maximum length of the encoder input of an encoder-decoder model, in tokens; lagan refuses "
      "requests with a longer input" },
    { "max_model_len", OPT_U32, AT(max_model_len), "auto", NULL, 1, 1 << 28, RESTART | OPT_AUTO,
      "N", "maximum length of prompt and output of a request together, in tokens; auto: the "
      "maximum length in config.json" },
    { "policy", OPT_ENUM, AT(policy), "no_evict", "no_evict|max_utilization|static|max_requests",
      0, 0, RESTART, NULL, "when a worker starts a waiting request. no_evict: when the KV cache "
      "has space for its prompt and its longest output; max_utilization: when the KV cache has "
      "space for its prompt (if space runs out later, running requests are preempted); static: "
      "as many as fit at once, the next when all these have ended; max_requests: when fewer "
      "than max_num_seqs sequences run" },
    { "fairness_quantum", OPT_U32, AT(fairness_quantum), "4096", NULL, 0, 1 << 30, RESTART, "N",
      "tokens that each client is granted per scheduling round while requests of equal priority "
      "compete (deficit round robin); 0: requests start in order of arrival, whatever the client" },
    { "chunk_policy", OPT_ENUM, AT(chunk_policy), "fcfs", "fcfs|equal_progress", 0, 0, RESTART,
      NULL, "how prompts share the prefill tokens of a step. fcfs: the first prompt gets all that "
      "it needs; equal_progress: each prompt gets one KV block of tokens in turn" },
    { "prefill_batch_tokens", OPT_U32, AT(prefill_batch_tokens), "0", NULL, 0, 1 << 20, RESTART,
      "N", "while outputs are being generated, start waiting prompts only when they have this "
      "number of tokens together or batch_wait_timeout has passed; 0: start them at once" },
    { "encoder_batch_size", OPT_U32, AT(encoder_batch_size), "0", NULL, 0, 65536, RESTART, "N",
      "while outputs are being generated, run the encoder only when this number of encoder "
      "inputs waits or batch_wait_timeout has passed; 0: run it at once" },
    { "batch_wait_timeout", OPT_NSEC, AT(batch_wait_timeout), "20ms", NULL, 0, 0, RESTART, "TIME",
      "longest time that prefill_batch_tokens or encoder_batch_size may delay a request" },
    { "numerics", OPT_ENUM, AT(numerics), "fast", "fast|invariant", 0, 0, RESTART, NULL,
      "invariant: no bit of an output depends on the other requests in its batch; fast: outputs "
      "may differ slightly with the batch. On the CPU both mean invariant" },
    { "kv.memory", OPT_BYTES, AT(kv_memory), "auto", NULL, 1 << 16, 0, RESTART | OPT_AUTO, "SIZE",
      "memory for the KV cache in each process of a worker; auto: the GPU memory that is free "
      "after the weights were loaded, less kv.reserve; on the CPU 1/4 of the free memory of the "
      "host, or 1/2 of what the limit of a cgroup leaves, shared by all workers of the model, and "
      "never more than max_num_seqs sequences of maximum length need" },
    { "kv.reserve", OPT_BYTES, AT(kv_reserve), "1GiB", NULL, 0, 0, RESTART, "SIZE",
      "device memory that lagan leaves free for other programs; has an effect only if kv.memory "
      "is auto" },
    { "kv.host_memory", OPT_BYTES, AT(kv_host_memory), "0", NULL, 0, 0, RESTART, "SIZE",
      "host memory for KV blocks that the prefix cache evicts from the device; later requests "
      "can copy them back; needs kv.reuse; 0: none, evicted blocks are lost" },
    { "kv.host_bandwidth", OPT_BYTES, AT(kv_host_bandwidth), "0", NULL, 0, 0, RESTART, "SIZE",
      "speed of copies from host memory to the device, in bytes per second (an estimate, not a "
      "limit). Blocks of kv.host_memory are copied back only if that is faster than computing "
      "them again; 0: measured at the start" },
    { "kv.prefill_rate", OPT_U32, AT(kv_prefill_rate), "0", NULL, 0, UINT32_MAX, RESTART, "N",
      "speed of prefill in prompt tokens per second, to compare with kv.host_bandwidth; 0: "
      "measured in the steps that compute prompts" },
    { "kv.tokens_per_block", OPT_U32, AT(kv_tokens_per_block), "auto", NULL, 4, 128,
      RESTART | OPT_AUTO | OPT_POW2, "N",
      "number of tokens whose keys and values one KV block holds, a power of two; auto: the "
      "largest of 64, 32 and 16 for which a block has at most 16 MiB" },
    { "kv.reuse", OPT_BOOL, AT(kv_reuse), "false", NULL, 0, 0, RESTART, "BOOL",
      "prefix caching. true: keep the KV blocks of ended requests, and reuse them for requests "
      "that have the same first tokens or the same encoder input" },
    { "kv.reuse_scope", OPT_ENUM, AT(kv_reuse_scope), "user", "user|all", 0, 0, RESTART, NULL,
      "with kv.reuse: whose requests may share KV blocks. user: those of one user (uid or API "
      "key), so that no user learns from times or from cached what others sent; all: those of "
      "all users. The request key cache_salt divides further" },
    { "kv.partial_reuse", OPT_BOOL, AT(kv_partial_reuse), "true", NULL, 0, 0, RESTART, "BOOL",
      "with kv.reuse: also reuse the first tokens of one more cached block, if the prompt has only "
      "some of its tokens; false: reuse full blocks only, and never copy a part of a block" },
    { "kv.events", OPT_U32, AT(kv_events), "4096", NULL, 0, 1 << 20, RESTART, "N",
      "number of the latest changes of the prefix cache (KV events) that a worker and lagand keep; "
      "lagand routes by them where a model has several workers, and `laganctl kv events` prints "
      "them; needs kv.reuse; 0: none" },
    { "kv.shares", OPT_STR, AT(kv_shares), "", NULL, 0, 0, RESTART, "KIND=SHARE,...",
      "target shares of kv.memory for kinds of layers, at most 1 together: full (full "
      "attention), window (sliding window), cross (cross-attention), state (recurrent); for "
      "example full=0.4,window=0.6. Cached blocks of a kind above its share are evicted first; "
      "empty: no target shares" },
    { "cross_kv_cache_fraction", OPT_F64, AT(cross_kv_cache_fraction), "0", NULL, 0, 1, RESTART,
      "SHARE", "for encoder-decoder models, instead of kv.shares: target share of kv.memory for "
      "cross-attention; self-attention has the rest; 0: no target shares" },
    { "kv.sink_tokens", OPT_U32, AT(kv_sink_tokens), "0", NULL, 0, 65536, RESTART, "N",
      "number of tokens at the start of each sequence that sliding-window layers always attend "
      "to (attention sinks); 0: none" },
    { "kv.snapshot_interval", OPT_U32, AT(kv_snapshot_interval), "1024", NULL, 0, 1 << 24, RESTART,
      "N", "models with recurrent layers: tokens between two saved copies (snapshots) of the "
      "recurrent state; 0: none, after a crash the worker computes the whole prompt again" },
    { "kv.dtype", OPT_ENUM, AT(kv_dtype), "auto", "auto|fp32|bf16|fp16|fp8", 0, 0, RESTART, NULL,
      "data type of keys and values in the KV cache; auto: the data type that the option dtype "
      "selects" },
    { "split.mode", OPT_ENUM, AT(split_mode), "off", "off|auto|fixed", 0, 0, RESTART, NULL,
      "whether prefill and decode run at the same time, on separate parts of the device. off: "
      "no, a step contains both; fixed: yes, split.context_sm sets the parts; auto: lagan "
      "decides from measured step times and changes the parts while it runs" },
    { "split.context_sm", OPT_STR, AT(split_context_sm), "", NULL, 0, 0, RESTART, "N",
      "with split.mode=fixed: part of the device for prefill, decode has the rest: a number of "
      "SMs (device cpu: threads) such as 64, or a share such as 0.5; 1.0: undivided; empty: 0.5" },
    { "split.context_max_tokens", OPT_I32, AT(split_context_max_tokens), "0", NULL, 0, 0, RESTART,
      "N", "with a divided device: max_num_batched_tokens of the steps that compute prefill; 0 or "
      "less: the value of max_num_batched_tokens" },
    { "split.context_max_seqs", OPT_I32, AT(split_context_max_seqs), "0", NULL, 0, 0, RESTART, "N",
      "with a divided device: maximum number of sequences in prefill; 0 or less: the value of "
      "max_num_seqs" },
    { "split.encoder", OPT_ENUM, AT(split_encoder), "shared", "shared|own", 0, 0, RESTART, NULL,
      "for encoder-decoder models. shared: the encoder runs in turn with prefill; own: the "
      "encoder runs at the same time as prefill and decode, on the part of the device that "
      "prefill uses; also with split.mode=off" },
    { "split.itl_target", OPT_NSEC, AT(split_itl_target), "50ms", NULL, 0, 0, RESTART, "TIME",
      "with split.mode=auto: longest acceptable time between two tokens of an output "
      "(inter-token latency); lagan gives prefill as much of the device as this time permits; 0: "
      "no limit, prefill is preferred" },
    { "threads", OPT_U32, AT(threads), "auto", NULL, 1, 1024, RESTART | OPT_AUTO, "N",
      "number of CPU threads on device cpu, for the whole worker; auto: the number of cores that "
      "the process may use" },
    { "isa", OPT_STR, AT(isa), "auto", NULL, 0, 0, RESTART | OPT_HIDDEN, "NAME",
      "instruction set on device cpu: scalar or avx2; auto: the best that this CPU supports" },
    { "tokenizer.cache_dir", OPT_STR, AT(tokenizer_cache_dir), "", NULL, 0, 0, RESTART, "DIR",
      "directory for preprocessed vocabularies, with which a worker starts faster; empty: "
      "$CACHE_DIRECTORY/vocab if this environment variable is set, else none" },
    { "chat_template", OPT_ENUM, AT(chat_template), "auto",
      "auto|none|llama2|llama3|llama3.1|llama3.2|mistral|mistral-v1|mistral-v3|mistral-nemo|"
      "gemma|gemma3|harmony|qwen2|qwen2.5|qwen3|gemma4|gemma4-e",
      0, 0, RESTART, NULL, "template that converts the messages of a request to a prompt. auto: "
      "the one of these that equals the template of the checkpoint; if none does, the usual one "
      "for the architecture of the model; none: lagan refuses requests with messages" },
    { "graphs.memory", OPT_BYTES, AT(graphs_memory), "2GiB", NULL, 0, 0, RESTART, "SIZE",
      "maximum device memory of captured CUDA graphs; when it is used up, the least recently "
      "used graphs are freed; 0: no graphs are captured" },
    { "cuda.libs", OPT_STR, AT(cuda_libs), "", NULL, 0, 0, RESTART, "DIR",
      "directory of the libraries cuBLASLt and NCCL; empty: lagan searches $CUDA_PATH, then "
      "/usr/local/cuda, then the search path of the dynamic loader" },
    { "cuda.tuning_file", OPT_STR, AT(cuda_tuning_file), "", NULL, 0, 0, RESTART, "FILE",
      "file with the fastest cuBLASLt algorithm of each measured matmul; an idle worker adds "
      "missing matmuls; empty: no measurements, cuBLASLt selects the algorithms" },
    { "kernels", OPT_STR, AT(kernels), "", NULL, 0, 0, RESTART | OPT_HIDDEN, "OP=NAME,...",
      "for a search for a faulty kernel: use only kernel NAME for operation OP, for example "
      "attend=generic,matmul=blas; empty: lagan selects" },
    { "step_timing", OPT_BOOL, AT(step_timing), "false", NULL, 0, 0, RESTART | OPT_HIDDEN, "BOOL",
      "true: measure the idle time of a GPU between two steps, for the metrics device_gaps and "
      "device_idle_ns" },
    { NULL },
};
/* clang-format on */

const char *
model_options_device(const struct model_options *k)
{
    if (strcmp(k->device, "auto")) return k->device;
    return access("/dev/nvidiactl", F_OK) == 0 ? "cuda" : "cpu";
}

bool
model_options_on_gpu(const struct model_options *k)
{
    return strcmp(model_options_device(k), "cpu") != 0;
}

static bool
on_cpu(const struct model_options *k)
{
    return !model_options_on_gpu(k);
}

static bool
is_fixed(const struct model_options *k)
{
    return k->split_mode == SPLIT_FIXED;
}

static bool
reuses(const struct model_options *k)
{
    return k->kv_reuse;
}

static bool
has_host_tier(const struct model_options *k)
{
    return k->kv_host_memory > 0;
}

int
model_options_check(const struct model_options *k, struct err *e)
{
    static const struct {
        const char *key;
        bool (*has_effect)(const struct model_options *);
        const char *needs;
    } rows[] = {
        { "isa", on_cpu, "device cpu" },
        { "graphs.memory", model_options_on_gpu, "a GPU as device" },
        { "cuda.libs", model_options_on_gpu, "a GPU as device" },
        { "cuda.tuning_file", model_options_on_gpu, "a GPU as device" },
        { "kernels", model_options_on_gpu, "a GPU as device" },
        { "step_timing", model_options_on_gpu, "a GPU as device" },
        { "split.context_sm", is_fixed, "split.mode=fixed" },
        { "kv.host_memory", reuses, "kv.reuse=true; only reusable blocks are kept there" },
        { "kv.host_bandwidth", has_host_tier, "kv.host_memory" },
        { "kv.prefill_rate", has_host_tier, "kv.host_memory" },
    };
    struct model_options def;

    opt_defaults(model_opts, &def);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct opt *o = opt_find(model_opts, rows[i].key, strlen(rows[i].key));
        char value[1100], otherwise[1100];

        check(o);
        opt_text(o, k, value, sizeof value);
        if (strcmp(value, opt_text(o, &def, otherwise, sizeof otherwise)) == 0) continue;
        if (rows[i].has_effect(k)) continue;
        return err_set(e, -EINVAL, "%s is %s, which has no effect here: it needs %s", o->key, value,
                       rows[i].needs);
    }
    return 0;
}
