/* model_options.c - see keys.h. Order is the manual's order. */
#include "ipc/model_options.h"

#include <string.h>
#include <unistd.h>

#define AT(field) OPT_AT(model_options, field)
#define RESTART OPT_RESTART

/* clang-format off */
const struct opt model_opts[] = {
    { "path", OPT_STR, AT(path), "", NULL, 0, 0, RESTART, "DIR",
      "directory of the model as downloaded from Hugging Face" },
    { "name", OPT_STR, AT(name), "", NULL, 0, 0, 0, "NAME",
      "name under which clients ask for it; empty: the directory's" },
    { "device", OPT_STR, AT(device), "auto", NULL, 0, 0, RESTART, "DEVICE",
      "auto, cpu, cuda or cuda:N[,N...]; auto: the GPUs if there are any, else the CPU" },
    { "weights", OPT_STR, AT(weights), "checkpoint", NULL, 0, 0, RESTART, "SOURCE",
      "checkpoint, or random:SEED to run a shape without its weights" },
    { "dtype", OPT_ENUM, AT(dtype), "auto", "auto|fp32|bf16|fp16", 0, 0, RESTART, NULL,
      "type that weights and activations are computed in; auto: the checkpoint's" },
    { "workers", OPT_U32, AT(workers), "1", NULL, 1, 64, 0, "N",
      "workers that serve this model, each a process and a copy" },
    { "tensor_parallel", OPT_U32, AT(tensor_parallel), "1", NULL, 1, 64, RESTART, "N",
      "processes that have a part of the model each, and are one worker" },
    { "pipeline_parallel", OPT_U32, AT(pipeline_parallel), "1", NULL, 1, 64, RESTART, "N",
      "not served yet, only 1" },
    { "context_parallel", OPT_U32, AT(context_parallel), "1", NULL, 1, 64, RESTART, "N",
      "not served yet, only 1" },
    { "expert_parallel", OPT_U32, AT(expert_parallel), "1", NULL, 1, 64, RESTART, "N",
      "not served yet, only 1: of experts each rank has a slice" },
    { "attention_data_parallel", OPT_U32, AT(attention_data_parallel), "1", NULL, 1, 64, RESTART,
      "N", "not served yet, only 1" },
    { "standby", OPT_U32, AT(standby), "0", NULL, 0, 1, 0, "N",
      "1: keep a process with all loaded to take a dead worker's place; 0: on a GPU one that keeps its driver up" },
    { "max_num_seqs", OPT_U32, AT(max_num_seqs), "256", NULL, 1, 65536, RESTART, "N",
      "sequences that may run at once; each beam is one" },
    { "max_num_batched_tokens", OPT_U32, AT(max_num_batched_tokens), "auto", NULL, 1, 1 << 20,
      RESTART | OPT_AUTO, "N",
      "decoder rows of one step, longer prompts are computed in chunks; auto: 512 on the CPU, else 8192" },
    { "max_source_tokens", OPT_U32, AT(max_source_tokens), "4096", NULL, 1, 1 << 20, RESTART, "N",
      "longest encoder input that is accepted" },
    { "max_model_len", OPT_U32, AT(max_model_len), "auto", NULL, 1, 1 << 28, RESTART | OPT_AUTO, "N",
      "longest prompt and answer together; auto: what config.json says" },
    { "policy", OPT_ENUM, AT(policy), "no_evict", "no_evict|max_utilization|static|max_requests",
      0, 0, RESTART, NULL,
      "who is admitted: only what surely fits, what fits now, whole batches, or a count" },
    { "quantum", OPT_U32, AT(quantum), "4096", NULL, 0, 1 << 30, RESTART, "N",
      "tokens a client may have in its turn among requests of equal priority; 0: the order of arrival" },
    { "chunks", OPT_ENUM, AT(chunks), "first_come", "first_come|equal", 0, 0, RESTART, NULL,
      "rows of a step for prompts: the first takes what it can, or each a block in turn" },
    { "prompt_batch", OPT_U32, AT(prompt_batch), "0", NULL, 0, 1 << 20, RESTART, "N",
      "beside answers, new prompts wait until they are so many tokens together, or batch_wait is over; 0: never" },
    { "source_batch", OPT_U32, AT(source_batch), "0", NULL, 0, 65536, RESTART, "N",
      "beside answers, new sources wait until so many can be encoded together, or batch_wait is over; 0: never" },
    { "batch_wait", OPT_NSEC, AT(batch_wait), "20ms", NULL, 0, 0, RESTART, "TIME",
      "longest that prompt_batch and source_batch let anybody wait" },
    { "numerics", OPT_ENUM, AT(numerics), "fast", "fast|invariant", 0, 0, RESTART, NULL,
      "invariant: a row's bits never depend on its neighbours; the CPU always computes so" },
    { "kv.memory", OPT_BYTES, AT(kv_memory), "auto", NULL, 1 << 16, 0, RESTART | OPT_AUTO, "SIZE",
      "memory of the KV cache, of each rank; auto: what the weights leave, less kv.reserve" },
    { "kv.reserve", OPT_BYTES, AT(kv_reserve), "1GiB", NULL, 0, 0, RESTART, "SIZE",
      "device memory left for others when kv.memory is auto" },
    { "kv.host_memory", OPT_BYTES, AT(kv_host_memory), "0", NULL, 0, 0, RESTART, "SIZE",
      "host memory that cached blocks move to before they are dropped" },
    { "kv.host_bandwidth", OPT_BYTES, AT(kv_host_bandwidth), "0", NULL, 0, 0, RESTART, "SIZE",
      "bytes a second from there; with kv.prompt_rate: what is computed sooner is not fetched. 0: all is" },
    { "kv.prompt_rate", OPT_U32, AT(kv_prompt_rate), "0", NULL, 0, UINT32_MAX, RESTART, "N",
      "tokens of a prompt that are computed in a second; 0: what lies on the host is always fetched" },
    { "kv.tokens_per_block", OPT_U32, AT(kv_tokens_per_block), "auto", NULL, 4, 128,
      RESTART | OPT_AUTO | OPT_POW2, "N",
      "tokens in a block; auto: the largest of 64, 32, 16 that keeps blocks at 16 MiB or less" },
    { "kv.reuse", OPT_BOOL, AT(kv_reuse), "false", NULL, 0, 0, RESTART, "BOOL",
      "keep what was computed for requests that begin alike or have the same source" },
    { "kv.shares", OPT_STR, AT(kv_shares), "", NULL, 0, 0, RESTART, "KIND=SHARE,...",
      "parts of kv.memory for full, window, cross, state: a kind above its own gives way first. Empty: none" },
    { "cross_kv_cache_fraction", OPT_F64, AT(cross_kv_cache_fraction), "0", NULL, 0, 1, RESTART, "SHARE",
      "kv.shares of an encoder-decoder: so much for cross, the rest for the decoder's own; 0: none" },
    { "kv.sink_tokens", OPT_U32, AT(kv_sink_tokens), "0", NULL, 0, 65536, RESTART, "N",
      "first tokens of a sequence that sliding windows keep" },
    { "kv.snapshot_interval", OPT_U32, AT(kv_snapshot_interval), "1024", NULL, 0, 1 << 24, RESTART, "N",
      "tokens from one snapshot of recurrent state to the next; 0: none, a death costs the whole prompt" },
    { "kv.dtype", OPT_ENUM, AT(kv_dtype), "auto", "auto|fp32|bf16|fp16|fp8", 0, 0, RESTART, NULL,
      "type of keys and values in the cache; auto: dtype" },
    { "split.mode", OPT_ENUM, AT(split_mode), "off", "off|auto|fixed", 0, 0, RESTART, NULL,
      "compute prompts and answers on separate parts of the device; auto: when that pays, and in which" },
    { "split.context_sm", OPT_STR, AT(split_context_sm), "", NULL, 0, 0, RESTART, "N",
      "with fixed: the context lane's SMs (64) or share (0.5), on the CPU threads; 1.0 is off, empty is half" },
    { "split.context_max_tokens", OPT_I32, AT(split_context_max_tokens), "0", NULL, 0, 0, RESTART, "N",
      "max_num_batched_tokens of the context lane; 0 or less: the same" },
    { "split.context_max_seqs", OPT_I32, AT(split_context_max_seqs), "0", NULL, 0, 0, RESTART, "N",
      "max_num_seqs of the context lane; 0 or less: the same" },
    { "split.encoder", OPT_ENUM, AT(split_encoder), "context", "context|own", 0, 0, RESTART, NULL,
      "own: sources are encoded in a lane of their own, whatever split.mode is; it shares the part of prompts" },
    { "split.target", OPT_NSEC, AT(split_target), "50ms", NULL, 0, 0, RESTART, "TIME",
      "with auto: how long it may take from one token to the next; 0: prompts come first" },
    { "threads", OPT_U32, AT(threads), "auto", NULL, 1, 1024, RESTART | OPT_AUTO, "N",
      "threads of the CPU device, all lanes and ranks together; auto: every core we may use" },
    { "isa", OPT_STR, AT(isa), "auto", NULL, 0, 0, RESTART | OPT_HIDDEN, "NAME",
      "instruction set of the CPU device: auto, scalar or avx2" },
    { "text.cache", OPT_STR, AT(text_cache), "", NULL, 0, 0, RESTART, "DIR",
      "where vocabularies are kept as they lie in memory; empty: $CACHE_DIRECTORY/vocab, if that is set" },
    { "chat_template", OPT_ENUM, AT(chat_template), "auto",
      "auto|none|llama2|llama3|llama3.1|llama3.2|mistral|mistral-v1|mistral-v3|mistral-nemo|gemma|gemma3|harmony|qwen2|qwen2.5|qwen3|"
      "gemma4|gemma4-e",
      0, 0, RESTART, NULL,
      "how a conversation is put into text; auto: by the checkpoint's own template, then by its architecture" },
    { "graphs.memory", OPT_BYTES, AT(graphs_memory), "2GiB", NULL, 0, 0, RESTART, "SIZE",
      "device memory that captured graphs may take; the least recently used go" },
    { "cuda.libs", OPT_STR, AT(cuda_libs), "", NULL, 0, 0, RESTART, "DIR",
      "folder of cuBLASLt and NCCL; empty: CUDA_PATH, /usr/local/cuda, then the loader's path" },
    { "cuda.tuned", OPT_STR, AT(cuda_tuned), "", NULL, 0, 0, RESTART, "FILE",
      "measured matmul algorithms; an idle worker adds those it lacks. Empty: the library's own guess" },
    { "kernels", OPT_STR, AT(kernels), "", NULL, 0, 0, RESTART | OPT_HIDDEN, "OP=NAME,...",
      "only these candidates of an op, to find out which one is wrong: attend=any,matmul=blas" },
    { "timing", OPT_BOOL, AT(timing), "false", NULL, 0, 0, RESTART | OPT_HIDDEN, "BOOL",
      "measure how long a GPU is idle between steps: statistics gaps and idle_ns" },
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
