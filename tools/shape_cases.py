#!/usr/bin/env python3
"""Writes small fixtures of shapes and rotary types that no larger fixture has:
tests/data/golden/{gemma3n_streams,llama_longrope}.

    tools/shape_cases.py

Tiny random checkpoints and the results of transformers in float32 with eager attention, in the
layout that tests/data/golden/README.md describes.
pip: torch, transformers 5.17.0. Never run by the build.
"""
import copy
import json
import os
import pathlib
import random

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"
N_NEW = 32
SHAPE = dict(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
MODELS = {
    # 3 streams; stream 2 is active
    "gemma3n_streams": dict(
        seed=2501,
        embed=0.02,
        lengths=[1, 2, 7, 20],
        config=transformers.Gemma3nTextConfig(
            **SHAPE,
            num_hidden_layers=3,
            num_kv_shared_layers=1,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            sliding_window=8,
            altup_num_inputs=3,
            altup_active_idx=2,
            laurel_rank=5,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=128,
            activation_sparsity_pattern=[0.6, 0.0, 0.0],
        ),
    ),
    # every prompt is longer than the original positions, so that transformers uses long_factor
    "llama_longrope": dict(
        seed=2502,
        embed=0.5,
        lengths=[5, 6, 33, 100],
        config=transformers.LlamaConfig(
            **SHAPE,
            num_hidden_layers=3,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 1.25, 1.5, 2.5, 4.0, 8.0, 16.0, 30.0],
                "original_max_position_embeddings": 4,
            },
        ),
    ),
}


def fill(model, seed, embed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.state_dict().items()):
        if not p.is_floating_point() or name.endswith("inv_freq"):
            continue
        v = torch.randn(p.shape, generator=g)
        if p.ndim == 1:
            v = 1 + 0.25 * v
        elif "embed_tokens" in name:
            v *= embed
        else:
            v *= 1.3 / p.shape[-1] ** 0.5
        p.copy_(v)


def greedy(model, ids):
    """Without a cache: everything is run again for each token."""
    out, margin, logprob, now = [], [], [], list(ids)
    for _ in range(N_NEW):
        logits = model(torch.tensor([now]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2).values
        out.append(int(logits.argmax()))
        margin.append(round(float(best[0] - best[1]), 6))
        logprob.append(round(float(torch.log_softmax(logits, -1)[out[-1]]), 6))
        now.append(out[-1])
    return dict(ids=out, margin=margin, logprob=logprob)


def case(name, seed, embed, lengths, config):
    rng, out = random.Random(seed), ROOT / name
    config._attn_implementation = "eager"
    family = type(config).__name__.replace("Text", "").replace("Config", "ForCausalLM")
    cls = getattr(transformers, family)
    model = cls(config).eval()
    fill(model, seed, embed)
    model.generation_config = transformers.GenerationConfig(bos_token_id=1, eos_token_id=2)
    model.to(torch.bfloat16).save_pretrained(out)
    model = cls.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    half = copy.deepcopy(model).to(torch.bfloat16)
    tensors, prompts = {}, []
    for i, n in enumerate(lengths):
        ids = [rng.randrange(8, 120) for _ in range(n)]
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        tensors[f"p{i}.logits_last"] = logits[-1].clone()
        if i == 2:
            tensors[f"p{i}.logits_all"] = logits.clone()
        error = (half(torch.tensor([ids])).logits[0, -1].float() - logits[-1]).abs().max()
        error = round(float(error / logits[-1].abs().max()), 5)
        prompts.append(
            dict(name=f"p{i}", input_ids=ids, greedy=greedy(model, ids), bf16_rel_err=error)
        )
    save_file(tensors, out / "expected.safetensors")
    (out / "expected.json").write_text(
        '{\n "arch": "%s", "transformers": "%s", "torch": "%s", "seed": %d, '
        '"vocab_size": %d,\n "prompts": [\n  %s\n ]\n}\n'
        % (
            name,
            transformers.__version__,
            torch.__version__,
            seed,
            config.vocab_size,
            ",\n  ".join(json.dumps(p) for p in prompts),
        )
    )
    margins = [m for p in prompts for m in p["greedy"]["margin"]]
    print(name, "least margin", min(margins), [len(set(p["greedy"]["ids"])) for p in prompts])


torch.set_grad_enabled(False)
torch.set_num_threads(1)
for model_name, spec in MODELS.items():
    case(model_name, **spec)
