#!/usr/bin/env python3
"""Writes tests/data/golden/MODEL/fp8.safetensors: the logits of models whose KV cache is fp8.

    tools/fp8_cases.py

transformers in float32 with eager attention, over the checkpoints and prompts that
tests/data/golden/README.md describes; each cache layer rounds K and V to E4M3, saturating at 448,
before attention reads them. `pN.logits_last` [V]: the logits after prompt N.
pip: torch, transformers 5.17.0. Never run by the build.
"""
import json
import os
import pathlib

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import transformers
from safetensors.torch import save_file
from transformers import cache_utils

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"
n_rounded = 0


def rounded(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def round_updates(kind):
    update = kind.update

    def update_rounded(self, key_states, value_states, *args, **kwargs):
        global n_rounded
        n_rounded += 1
        return update(self, rounded(key_states), rounded(value_states), *args, **kwargs)

    if "update" in vars(kind):
        kind.update = update_rounded


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder
            else transformers.AutoModelForCausalLM)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    global n_rounded
    for kind in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
        round_updates(kind)
    for folder in sorted(p.parent for p in ROOT.glob("*/expected.json")):
        if folder.name == "gpt_oss_mxfp4":  # transformers reads MXFP4 on GPUs only
            continue
        model = load(folder)
        tensors = {}
        n_rounded = 0
        for i, p in enumerate(json.load(open(folder / "expected.json"))["prompts"]):
            kwargs = {}
            if "decoder_input_ids" in p:
                kwargs["decoder_input_ids"] = torch.tensor([p["decoder_input_ids"]])
            with torch.no_grad():
                o = model(torch.tensor([p["input_ids"]]), use_cache=True, **kwargs)
            tensors["p%d.logits_last" % i] = o.logits[0, -1].contiguous()
        assert n_rounded > 0, folder
        save_file(tensors, folder / "fp8.safetensors")
        print(folder.name, n_rounded, "updates")


main()
