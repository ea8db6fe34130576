/* model_options.c - the table of model options, in the order of the manual; see model_options.h. */
#include "ipc/model_options.h"

#include <unistd.h>

#define AT(field) OPT_AT(model_options, field)
#define RESTART OPT_RESTART

/* clang-format off */
const struct opt model_opts[] = {
    { "path", OPT_STR, AT(path), "", NULL, 0, 0, RESTART, "DIR",
      "directory of the model, as downloaded from Hugging Face" },
    { "name", OPT_STR, AT(name), "", NULL, 0, 0, 0, "NAME",
      "model name that clients use; empty: name of the directory" },
    { "device", OPT_STR, AT(device), "auto", NULL, 0, 0, RESTART, "DEVICE",
      "auto, cpu, cuda or cuda:N[,N...]; auto: all GPUs of the host, "
      "or the CPU if the host has no NVIDIA driver" },
    { "weights", OPT_STR, AT(weights), "checkpoint", NULL, 0, 0, RESTART, "SOURCE",
      "checkpoint: read the weights from path; random:SEED: generate them, for tests of speed" },
    { "dtype", OPT_ENUM, AT(dtype), "auto", "auto|fp32|bf16|fp16", 0, 0, RESTART, NULL,
      "data type of weights and activations; auto: data type of the checkpoint" },
    { "workers", OPT_U32, AT(workers), "1", NULL, 1, 64, 0, "N",
      "workers that serve this model, each with its own copy of the weights" },
    { "tensor_parallel", OPT_U32, AT(tensor_parallel), "1", NULL, 1, 64, RESTART, "N",
      "processes that share the layers of one worker (tensor parallelism); on GPUs one GPU each" },
    { "standby", OPT_U32, AT(standby), "0", NULL, 0, 1, 0, "N",
      "1: keep a second process with loaded weights that replaces a failed worker; 0: on a "
      "GPU keep a process with an initialised driver, on the CPU none" },
    { "max_num_seqs", OPT_U32, AT(max_num_seqs), "256", NULL, 1, 65536, RESTART, "N",
      "sequences that run at the same time; each beam and each sample is one sequence" },
    { "max_num_batched_tokens", OPT_U32, AT(max_num_batched_tokens), "auto", NULL, 1, 1 << 20,
      RESTART | OPT_AUTO, "N",
      "decoder tokens computed in one step; longer prompts are divided into chunks; auto: 512 "
      "on the CPU, 8192 on a GPU" },
    { "max_source_tokens", OPT_U32, AT(max_source_tokens), "4096", NULL, 1, 1 << 20, RESTART, "N",
      "longest encoder input of an encoder-decoder model, in tokens; "
      "longer requests are rejected" },
    { "max_model_len", OPT_U32, AT(max_model_len), "auto", NULL, 1, 1 << 28, RESTART | OPT_AUTO,
      "N",
      "longest prompt and output together, in tokens; auto: length in config.json" },
    { "policy", OPT_ENUM, AT(policy), "no_evict", "no_evict|max_utilization|static|max_requests",
      0, 0, RESTART, NULL,
      "admission of requests. no_evict: only if the whole output fits into the KV cache; "
      "max_utilization: if the prompt fits, preempting later; static: whole batches; "
      "max_requests: up to max_num_seqs" },
    { "fairness_quantum", OPT_U32, AT(fairness_quantum), "4096", NULL, 0, 1 << 30, RESTART, "N",
      "tokens that each client is served in one round among requests of equal priority; 0: "
      "requests are served in order of arrival" },
    { "chunk_policy", OPT_ENUM, AT(chunk_policy), "fcfs", "fcfs|equal_progress", 0, 0, RESTART,
      NULL,
      "division of a step's prefill tokens. fcfs: the first prompt gets as many as possible; "
      "equal_progress: all prompts get one block in turn" },
    { "prefill_batch_tokens", OPT_U32, AT(prefill_batch_tokens), "0", NULL, 0, 1 << 20, RESTART,
      "N",
      "while decoding, delay new prefills until this many prompt tokens are queued or "
      "batch_wait_timeout has passed; 0: no delay" },
    { "encoder_batch_size", OPT_U32, AT(encoder_batch_size), "0", NULL, 0, 65536, RESTART, "N",
      "while decoding, delay the encoder until this many encoder inputs are queued or "
      "batch_wait_timeout has passed; 0: no delay" },
    { "batch_wait_timeout", OPT_NSEC, AT(batch_wait_timeout), "20ms", NULL, 0, 0, RESTART, "TIME",
      "longest delay that prefill_batch_tokens and encoder_batch_size cause" },
    { "numerics", OPT_ENUM, AT(numerics), "fast", "fast|invariant", 0, 0, RESTART, NULL,
      "invariant: the bits of a result do not depend on the other requests of a batch; fast: "
      "they may. The CPU is always invariant" },
    { "kv.memory", OPT_BYTES, AT(kv_memory), "auto", NULL, 1 << 16, 0, RESTART | OPT_AUTO, "SIZE",
      "memory of the KV cache on each rank; auto: free device memory after loading the "
      "weights, less kv.reserve" },
    { "kv.reserve", OPT_BYTES, AT(kv_reserve), "1GiB", NULL, 0, 0, RESTART, "SIZE",
      "device memory that stays free for other programs if kv.memory is auto" },
    { "kv.host_memory", OPT_BYTES, AT(kv_host_memory), "0", NULL, 0, 0, RESTART, "SIZE",
      "host memory for cached KV blocks that are evicted from the device; needs kv.reuse; "
      "0: none" },
    { "kv.host_bandwidth", OPT_BYTES, AT(kv_host_bandwidth), "0", NULL, 0, 0, RESTART, "SIZE",
      "bytes per second copied from host memory. With kv.prefill_rate: a block is copied back "
      "only if that is faster than computing it; 0: always copied back" },
    { "kv.prefill_rate", OPT_U32, AT(kv_prefill_rate), "0", NULL, 0, UINT32_MAX, RESTART, "N",
      "prompt tokens computed per second, for the comparison of kv.host_bandwidth; 0: no "
      "comparison" },
    { "kv.tokens_per_block", OPT_U32, AT(kv_tokens_per_block), "auto", NULL, 4, 128,
      RESTART | OPT_AUTO | OPT_POW2, "N",
      "tokens in one KV block, a power of two; auto: the largest of 64, 32 and 16 with blocks "
      "of at most 16 MiB" },
    { "kv.reuse", OPT_BOOL, AT(kv_reuse), "false", NULL, 0, 0, RESTART, "BOOL",
      "prefix caching: reuse the KV of earlier requests with the same first tokens or the "
      "same encoder input" },
    { "kv.shares", OPT_STR, AT(kv_shares), "", NULL, 0, 0, RESTART, "KIND=SHARE,...",
      "shares of kv.memory for the kinds full, window, cross and state; cached blocks of a "
      "kind above its share are evicted first; empty: no shares" },
    { "cross_kv_cache_fraction", OPT_F64, AT(cross_kv_cache_fraction), "0", NULL, 0, 1, RESTART,
      "SHARE",
      "encoder-decoder: share of kv.memory for cross-attention, the rest is for "
      "self-attention; 0: no shares" },
    { "kv.sink_tokens", OPT_U32, AT(kv_sink_tokens), "0", NULL, 0, 65536, RESTART, "N",
      "first tokens of a sequence that sliding-window attention always keeps (attention sinks)" },
    { "kv.snapshot_interval", OPT_U32, AT(kv_snapshot_interval), "1024", NULL, 0, 1 << 24, RESTART,
      "N",
      "tokens between two snapshots of recurrent state; 0: no snapshots, the whole prompt is "
      "computed again after a crash" },
    { "kv.dtype", OPT_ENUM, AT(kv_dtype), "auto", "auto|fp32|bf16|fp16|fp8", 0, 0, RESTART, NULL,
      "data type of keys and values in the KV cache; auto: dtype" },
    { "split.mode", OPT_ENUM, AT(split_mode), "off", "off|auto|fixed", 0, 0, RESTART, NULL,
      "divide the device between a prefill lane and a decode lane. off: one lane; fixed: by "
      "split.context_sm; auto: lagan selects the partition" },
    { "split.context_sm", OPT_STR, AT(split_context_sm), "", NULL, 0, 0, RESTART, "N",
      "with split.mode=fixed: SMs (64) or share (0.5) of the prefill lane, on the CPU "
      "threads; 1.0: one lane; empty: 0.5" },
    { "split.context_max_tokens", OPT_I32, AT(split_context_max_tokens), "0", NULL, 0, 0, RESTART,
      "N",
      "max_num_batched_tokens of the prefill lane; 0 or less: max_num_batched_tokens" },
    { "split.context_max_seqs", OPT_I32, AT(split_context_max_seqs), "0", NULL, 0, 0, RESTART, "N",
      "max_num_seqs of the prefill lane; 0 or less: max_num_seqs" },
    { "split.encoder", OPT_ENUM, AT(split_encoder), "shared", "shared|own", 0, 0, RESTART, NULL,
      "lane of the encoder. shared: the prefill lane; own: a third lane on the SMs of the "
      "prefill lane, whatever split.mode is" },
    { "split.itl_target", OPT_NSEC, AT(split_itl_target), "50ms", NULL, 0, 0, RESTART, "TIME",
      "with split.mode=auto: highest inter-token latency that is acceptable; 0: prefer prefill" },
    { "threads", OPT_U32, AT(threads), "auto", NULL, 1, 1024, RESTART | OPT_AUTO, "N",
      "threads of the CPU device, all lanes and ranks together; auto: the cores that the "
      "process may use" },
    { "isa", OPT_STR, AT(isa), "auto", NULL, 0, 0, RESTART | OPT_HIDDEN, "NAME",
      "instruction set of the CPU device: auto, scalar or avx2; auto: the best of this CPU" },
    { "tokenizer.cache_dir", OPT_STR, AT(tokenizer_cache_dir), "", NULL, 0, 0, RESTART, "DIR",
      "directory for preprocessed vocabularies; empty: $CACHE_DIRECTORY/vocab if "
      "CACHE_DIRECTORY is set, else none" },
    { "chat_template", OPT_ENUM, AT(chat_template), "auto",
      "auto|none|llama2|llama3|llama3.1|llama3.2|mistral|mistral-v1|mistral-v3|mistral-nemo|"
      "gemma|gemma3|harmony|qwen2|qwen2.5|qwen3|gemma4|gemma4-e",
      0, 0, RESTART, NULL,
      "chat template for messages; auto: the known template of the checkpoint, else of its "
      "architecture; none: messages are rejected" },
    { "graphs.memory", OPT_BYTES, AT(graphs_memory), "2GiB", NULL, 0, 0, RESTART, "SIZE",
      "device memory for captured CUDA graphs; the least recently used graphs are freed first" },
    { "cuda.libs", OPT_STR, AT(cuda_libs), "", NULL, 0, 0, RESTART, "DIR",
      "directory of cuBLASLt and NCCL; empty: $CUDA_PATH, /usr/local/cuda, then the search "
      "path of the loader" },
    { "cuda.tuning_file", OPT_STR, AT(cuda_tuning_file), "", NULL, 0, 0, RESTART, "FILE",
      "tuning file: measured cuBLASLt algorithms; an idle worker adds missing ones; empty: "
      "algorithms that cuBLASLt proposes" },
    { "kernels", OPT_STR, AT(kernels), "", NULL, 0, 0, RESTART | OPT_HIDDEN, "OP=NAME,...",
      "use only the named kernel of an op, to find a faulty one, for example "
      "attend=generic,matmul=blas" },
    { "step_timing", OPT_BOOL, AT(step_timing), "false", NULL, 0, 0, RESTART | OPT_HIDDEN, "BOOL",
      "measure the idle time of a GPU between two steps: statistics device_gaps and "
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
