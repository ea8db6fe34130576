#!/usr/bin/env python3
"""Writes the fixtures of Qwen 2 and 3: tests/data/golden/qwen{2,3} and
tests/data/tokenizers/bpe_qwen2.

    tools/qwen_cases.py

Tiny random checkpoints and the results of transformers in float32 with eager attention, in the
layout that tests/data/golden/README.md describes; a tokenizer with Qwen's normaliser and pattern
over the vocabulary of bpe_llama3, and the ids that Hugging Face gives for its texts. A pattern for
the next family (docs/adding-a-model.md).
pip: torch 2.11.0, transformers 5.17.0. Never run by the build.
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
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
N_NEW = 32
WINDOW = 8

SHAPE = dict(
    vocab_size=320,
    intermediate_size=160,
    num_hidden_layers=4,
    max_position_embeddings=512,
    bos_token_id=300,
    eos_token_id=301,
    pad_token_id=300,
)
MODELS = {
    "qwen2": dict(  # biases, a window in the upper layers, tied
        seed=2201,
        dtype=torch.bfloat16,
        embed=0.06,
        config=transformers.Qwen2Config(
            **SHAPE,
            hidden_size=80,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=WINDOW,
            max_window_layers=2,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
    ),
    "qwen3": dict(  # norms of q and k, heads wider than the hidden size holds, YaRN
        seed=2202,
        dtype=torch.bfloat16,
        embed=0.4,
        config=transformers.Qwen3Config(
            **SHAPE,
            hidden_size=64,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=32,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
}
LENGTHS = [1, 2, 5, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 6 * WINDOW + 5, 200]


def fill(model, seed, embed):
    """Every tensor from one seeded generator; logits are scaled so that greedy text has no loop."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.state_dict().items()):
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        v = torch.randn(p.shape, generator=g)
        if name.endswith("bias"):
            v *= 0.3
        elif p.ndim == 1:
            v = 1 + 0.25 * v
        elif "embed_tokens" in name:
            v *= embed
        else:
            v *= 1.3 / p.shape[-1] ** 0.5
        p.copy_(v)
    probe = torch.randint(8, 300, (1, 24), generator=g)
    last = model.model.norm.weight if model.config.tie_word_embeddings else model.lm_head.weight
    last.mul_(3 / model(probe).logits.std(-1).mean())


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


def older(config):
    """The same in the fields of checkpoints published before transformers 5."""
    c = copy.deepcopy(config)
    rope = c.pop("rope_parameters")
    c["torch_dtype"] = c.pop("dtype")
    c["rope_theta"] = rope.pop("rope_theta")
    c["rope_scaling"] = None if rope.pop("rope_type") == "default" else dict(rope, type="yarn")
    c.pop("layer_types", None)
    return c


def model_case(name, seed, dtype, embed, config):
    rng = random.Random(seed)
    out = ROOT / "golden" / name
    config._attn_implementation = "eager"
    cls = getattr(transformers, type(config).__name__.replace("Config", "ForCausalLM"))
    model = cls(config).eval()
    fill(model, seed, embed)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=300, eos_token_id=[301, 302], pad_token_id=300
    )
    model.to(dtype).save_pretrained(out)
    model = cls.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    half = copy.deepcopy(model).to(torch.bfloat16)
    tensors, prompts = {}, []
    for i, n in enumerate(LENGTHS):
        ids = [rng.randrange(8, 300) for _ in range(n)]
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        scale = float(logits[-1].abs().max())
        tensors[f"p{i}.logits_last"] = logits[-1].clone()
        if i in (2, len(LENGTHS) - 2):
            tensors[f"p{i}.logits_all"] = logits.clone()
        g = greedy(model, ids)
        cached = model.generate(
            torch.tensor([ids]), max_new_tokens=N_NEW, do_sample=False, eos_token_id=None
        )
        assert cached[0, n:].tolist() == g["ids"], (name, i)
        error = (
            float((half(torch.tensor([ids])).logits[0, -1].float() - logits[-1]).abs().max())
            / scale
        )
        case = dict(name=f"p{i}", input_ids=ids, greedy=g, bf16_rel_err=round(error, 5))
        end = next((k for k in range(4, 28) if g["ids"][k] not in g["ids"][:k]), None)
        if end is not None:
            case["greedy_eos"] = dict(eos_token_id=g["ids"][end], ids=g["ids"][: end + 1])
        prompts.append(case)
    save_file(tensors, out / "expected.safetensors")
    older_config = older(json.loads((out / "config.json").read_text()))
    (out / "config_legacy.json").write_text(json.dumps(older_config, indent=2) + "\n")
    again = cls.from_pretrained(
        out,
        config=type(config).from_dict(dict(older_config)),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    assert torch.equal(
        again(torch.tensor([prompts[-1]["input_ids"]])).logits[0, -1],
        tensors[f"p{len(LENGTHS) - 1}.logits_last"],
    )
    lines = ",\n  ".join(json.dumps(p) for p in prompts)
    (out / "expected.json").write_text(
        '{\n "arch": "%s", "transformers": "%s", "torch": "%s", "seed": %d, '
        '"vocab_size": %d,\n "prompts": [\n'
        '  %s\n ]\n}\n'
        % (name, transformers.__version__, torch.__version__, seed, config.vocab_size, lines)
    )
    margins = [m for p in prompts for m in p["greedy"]["margin"]]
    print(
        name,
        "least margin",
        min(margins),
        "tokens",
        [len(set(p["greedy"]["ids"])) for p in prompts],
        "bf16",
        max(p["bf16_rel_err"] for p in prompts),
    )


def tokenizer_case():
    doc = json.loads((ROOT / "tokenizers/bpe_llama3/tokenizer.json").read_text())
    texts = [
        c["text"] for c in json.loads((ROOT / "tokenizers/bpe_llama3/cases.json").read_text())[:197]
    ]
    first = min(t["id"] for t in doc["added_tokens"])
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    doc["added_tokens"] = [
        dict(
            id=first + i,
            content=n,
            single_word=False,
            lstrip=False,
            rstrip=False,
            normalized=False,
            special=not n.endswith("think>"),
        )
        for i, n in enumerate(names)
    ]
    doc["normalizer"] = {"type": "NFC"}
    doc["pre_tokenizer"]["pretokenizers"][0]["pattern"][
        "Regex"
    ] = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    doc["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    doc["model"]["ignore_merges"] = False
    text = json.dumps(doc, ensure_ascii=False, indent=1)
    t = Tokenizer.from_str(text)
    texts += [
        "<|im_start|>user\nHi<|im_end|>\n",
        "e\u0301 \u1100\u1161 2024-11-22",
        "<think>\n\n</think>\n\nYes",
    ]
    cases = []
    for s in texts:
        ids = t.encode(s, add_special_tokens=True).ids
        bare = t.encode(s, add_special_tokens=False).ids
        cases.append(
            dict(
                text=s,
                ids=ids,
                ids_bare=bare,
                decoded=t.decode(ids, skip_special_tokens=True),
                decoded_keep=t.decode(bare, skip_special_tokens=False),
            )
        )
    out = ROOT / "tokenizers/bpe_qwen2"
    out.mkdir(exist_ok=True)
    (out / "tokenizer.json").write_text(text + "\n")
    (out / "cases.json").write_text(
        "[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n"
    )
    print("bpe_qwen2", t.get_vocab_size(), "tokens,", len(cases), "texts")


torch.set_grad_enabled(False)
torch.set_num_threads(1)
for model_name, spec in MODELS.items():
    model_case(model_name, **spec)
tokenizer_case()
