#!/usr/bin/env python3
"""hf_bench.py - transformers with the shapes and lengths of bench_serve, as its peer.

    hf_bench.py [llama] [burst] [t5] [bart] [beams]      prints JSON lines (bench/README.md)

Weights are random, N(0, 0.02^2), in bf16; prompts are random, lengths forced. llama: generate(),
eager, dynamic cache; prefill is the time of the first token, decode the rate after the first 8.
burst: continuous batching with paged KV, the 192 requests of `traces.py openorca`, at most 512
tokens each. t5, bart: generate() with the encoder. beams: both with four beams. All cases but the
256 prompts run once before the timing, beams for a few tokens.
"""
import gc
import json
import os
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import transformers
from transformers import AutoConfig, StoppingCriteria, StoppingCriteriaList

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from traces import trace

HERE = os.path.dirname(os.path.abspath(__file__))
SETTLED = 8  # tokens before the rate is measured


def say(case, values, unit):
    v = sorted(values)
    m = statistics.median(v)
    print(json.dumps({"bench": "hf", "case": case, "value": m, "unit": unit, "n": len(v),
                      "min": v[0], "median": m, "max": v[-1]}), flush=True)


def build(name):
    config = AutoConfig.from_pretrained(os.path.join(HERE, "configs", name))
    if name.startswith("llama"):
        config._attn_implementation = "sdpa"
    cls = getattr(transformers, config.architectures[0])
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = cls(config)
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
    torch.set_default_dtype(torch.float32)
    model.eval()
    g = model.generation_config
    g.eos_token_id = g.forced_bos_token_id = g.forced_eos_token_id = None
    g.pad_token_id = 0
    return model


def seconds(f, n):
    out = []
    for _ in range(n):
        torch.cuda.synchronize()
        since = time.perf_counter()
        f()
        torch.cuda.synchronize()
        out.append(time.perf_counter() - since)
    return out


def prompts(batch, length, vocab):
    return torch.randint(10, vocab - 10, (batch, length), device="cuda")


class Clock(StoppingCriteria):
    """The time of each token."""

    def __init__(self):
        self.at = []

    def __call__(self, ids, scores, **more):
        torch.cuda.synchronize()
        self.at.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


def generate(model, ids, n, clock=None, **more):
    criteria = StoppingCriteriaList([clock] if clock else [])
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                          max_new_tokens=n, min_new_tokens=n, stopping_criteria=criteria, **more)


def llama():
    model = build("llama-3.1-8b")
    for batch, tokens, runs in (1, 81, 3), (64, 41, 3), (256, 25, 1):
        ids, first, rate = prompts(batch, 1024, model.config.vocab_size), [], []
        if runs > 1:
            generate(model, ids, 4)
        for _ in range(runs):
            clock = Clock()
            torch.cuda.synchronize()
            since = time.perf_counter()
            generate(model, ids, tokens, clock)
            first.append(batch * 1024 / (clock.at[0] - since))
            rate.append(batch * (tokens - 1 - SETTLED) / (clock.at[-1] - clock.at[SETTLED]))
        say(f"llama-3.1-8b decode={batch}:1024", rate, "tok/s")
        if batch > 1:
            say(f"llama-3.1-8b prefill={batch}:1024", first, "tok/s")


def varlen(module, q, k, v, attention_mask, cache=None, cu_seq_lens_q=None, cu_seq_lens_k=None,
           max_seqlen_q=None, max_seqlen_k=None, **more):
    """Paged attention for continuous batching by PyTorch's own flash attention."""
    kind = lambda x: x["full_attention"] if isinstance(x, dict) else x
    k, v = cache.update(key_states=k, value_states=v, layer_idx=module.layer_idx,
                        read_index=more["read_index"], write_index=more["write_index"])
    out = torch.ops.aten._flash_attention_forward(
        q.transpose(1, 2).squeeze(0).contiguous(), k.contiguous(), v.contiguous(),
        kind(cu_seq_lens_q).to(torch.int32), kind(cu_seq_lens_k).to(torch.int32),
        int(kind(max_seqlen_q)), int(kind(max_seqlen_k)), 0.0, True, False, scale=module.scaling)[0]
    return out.unsqueeze(0), None


def burst():
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("paged|varlen", varlen)
    model = build("llama-3.1-8b")
    model.config._attn_implementation = "paged|varlen"
    # No other work on the device while the thread of the manager captures its graphs.
    requests = [(prompts(1, q["isl"], model.config.vocab_size)[0].tolist(), min(q["osl"], 512))
                for q in trace("openorca", 192)]
    rates = []
    for run in range(2):
        batching = ContinuousBatchingConfig(
            block_size=256, max_requests_per_batch=192, allow_block_sharing=False, num_blocks=512,
            max_batch_tokens=2048, use_cuda_graph=(True, False), use_async_batching=True)
        config = GenerationConfig(max_new_tokens=512, do_sample=False, eos_token_id=-1,
                                  pad_token_id=0)
        with model.continuous_batching_context_manager(
                generation_config=config, continuous_batching_config=batching,
                timeout=5) as manager:
            since, tokens, done = time.perf_counter(), 0, 0
            for ids, most in requests:
                manager.add_request(ids, max_new_tokens=most)
            while done < len(requests) and time.perf_counter() - since < 40:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    done += 1
                    tokens += len(result.generated_tokens)
            took = time.perf_counter() - since
        if done < len(requests):
            raise RuntimeError(f"{done} of {len(requests)} requests finished in {took:.0f} s")
        if run:
            rates.append(tokens / took)
    say("llama-3.1-8b trace=openorca-192:512", rates, "tok/s")


def t5():
    model = build("t5-large")
    for batch in (1, 32, 128):
        ids = prompts(batch, 512, model.config.vocab_size)
        generate(model, ids, 8)
        took = seconds(lambda: generate(model, ids, 64), 2)
        say(f"t5-large batch={batch}:512:64", [batch / t for t in took], "req/s")


def bart():
    model = build("bart-large-cnn")
    for batch in (1, 32, 128):
        ids = prompts(batch, 1024, model.config.vocab_size)
        generate(model, ids, 128)
        took = seconds(lambda: generate(model, ids, 128), 2)
        say(f"bart-large-cnn batch={batch}:1024:128", [batch / t for t in took], "req/s")


def beams():
    four = {"num_beams": 4, "no_repeat_ngram_size": 0, "length_penalty": 1.0,
            "early_stopping": False}
    for name, length, tokens in ("t5-large", 512, 64), ("bart-large-cnn", 1024, 128):
        model = build(name)
        for batch, runs in (32, 2), (128, 1):
            ids = prompts(batch, length, model.config.vocab_size)
            generate(model, ids, 8, **four)
            took = seconds(lambda: generate(model, ids, tokens, **four), runs)
            say(f"{name} beam={batch}:{length}:{tokens}:4", [batch / t for t in took], "req/s")


with torch.no_grad():
    for section in sys.argv[1:] or ["llama", "burst", "t5", "bart", "beams"]:
        try:
            {"llama": llama, "burst": burst, "t5": t5, "bart": bart, "beams": beams}[section]()
        except Exception as why:  # the other sections run if one fails
            print(f"hf_bench {section}: {why!r}"[:500], file=sys.stderr, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
