#!/usr/bin/env python3
"""Writes the beam searches of models with recurrent state, and log-probabilities of beams' tokens:
tests/data/golden/MODEL/beams.json; and searches with stop strings over the bundled models:
tests/data/golden/stop_beams.json.

    tools/beam_cases.py

Searches of transformers in float32 with eager attention, over the checkpoints and prompts that
tests/data/golden/README.md describes. `logprobs` has a value for each token of each sequence:
compute_transition_scores() without normalising. `tops` and `logits` (searches of prompt 3) are of
the row of the beam from which each token was taken (beam_indices): the TOPS best of `scores` with
their values; the logits of the first and the last token of the vocabulary and of the token.
Without a cache, because the cached steps of Nemotron-H differ from the model by up to 5e-3 in a
log-probability.
pip: torch, transformers 5.17.0. Never run by the build.
"""
import json
import os
import pathlib

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "golden"
MODELS = ["bamba", "granite_hybrid", "nemotron_h", "llama3", "t5_relu"]
N_NEW = 20
TOPS = 2
SEARCHES = [
    dict(num_beams=b, length_penalty=lp, early_stopping=early)
    for b in (2, 4)
    for lp in (1.0, 2.0)
    for early in (False, True)
] + [
    dict(num_beams=4, length_penalty=1.0, early_stopping="never", no_repeat_ngram_size=2),
    dict(num_beams=3, length_penalty=1.0, early_stopping=False, repetition_penalty=1.3),
]


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder
            else transformers.AutoModelForCausalLM)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def without_padding(tokens, eos):
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def rows(o, new):
    """The tops and logits of each token of each sequence."""
    tops, logits = [], []
    for indices, tokens in zip(o.beam_indices.tolist(), new):
        best = [o.scores[t][row].topk(TOPS) for t, row in zip(range(len(tokens)), indices)]
        raw = [o.logits[t][row] for t, row in zip(range(len(tokens)), indices)]
        tops.append([[[int(i), round(float(v), 6)] for v, i in zip(b.values, b.indices)]
                     for b in best])
        logits.append([[round(float(x[k]), 5) for k in (0, -1, token)]
                       for x, token in zip(raw, tokens)])
    return dict(tops=tops, logits=logits)


def search(model, prompt, params, eos, with_rows=False):
    ids = torch.tensor([prompt["input_ids"]])
    encoder = model.config.is_encoder_decoder
    start = model.generation_config.decoder_start_token_id
    base = dict(pad_token_id=0, eos_token_id=eos, max_new_tokens=N_NEW)
    if encoder:
        base["decoder_start_token_id"] = start
    model.generation_config = transformers.GenerationConfig(**base)
    with torch.no_grad():
        o = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           num_return_sequences=params["num_beams"], output_scores=True,
                           output_logits=True, return_dict_in_generate=True, use_cache=False,
                           **params)
    per_token = model.compute_transition_scores(o.sequences, o.scores, o.beam_indices,
                                                normalize_logits=False)
    first = 1 if encoder else ids.shape[1]
    new = [without_padding(s[first:].tolist(), eos) for s in o.sequences]
    return dict(
        prompt=prompt["name"],
        params=dict(base, no_repeat_ngram_size=params.get("no_repeat_ngram_size", 0), **{
            k: v for k, v in params.items() if k != "no_repeat_ngram_size"}),
        sequences=[([start] if encoder else []) + s for s in new],
        scores=[round(float(x), 6) for x in o.sequences_scores],
        logprobs=[[round(float(x), 6) for x in p[: len(s)]] for p, s in zip(per_token, new)],
        **(rows(o, new) if with_rows else {}),
    )


STOPS = [
    ("numbers-t5", "1284", ["hundred"]),
    ("numbers-t5", "1284", ["e", "xx"]),
    ("numbers-t5", "990017", ["and s", "teen", "th"]),
    ("numbers-t5", "forty-two thousand six", ["20"]),
    ("recall-gemma3", "k3=blue;q7=stone;m1=river;q7?", ["on", "z"]),
    ("recall-gemma3", "k3=blue;q7=stone;m1=river;k3", ["e;m", "u"]),
]


def search_with_stops(name, text, stops, params):
    folder = ROOT.parent.parent.parent / "models" / name
    model = load(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(text)])
    encoder = model.config.is_encoder_decoder
    start = model.generation_config.decoder_start_token_id
    base = dict(pad_token_id=2, eos_token_id=1, max_new_tokens=N_NEW)
    if encoder:
        base["decoder_start_token_id"] = start
    model.generation_config = transformers.GenerationConfig(**base)
    with torch.no_grad():
        o = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           num_return_sequences=params["num_beams"], output_scores=True,
                           return_dict_in_generate=True, use_cache=False, stop_strings=stops,
                           tokenizer=tokenizer, **params)
    first = 1 if encoder else ids.shape[1]
    new = [s[first:].tolist() for s in o.sequences]
    for s in new:  # padding is the token 2, which neither model generates
        while s and s[-1] == 2:
            s.pop()
    return dict(model=name, ids=ids[0].tolist(), stop=stops,
                params=dict(base, no_repeat_ngram_size=0, **params),
                sequences=[([start] if encoder else []) + s for s in new],
                scores=[round(float(x), 6) for x in o.sequences_scores])


def stop_beams():
    cases = [search_with_stops(*case, params)
             for case in STOPS
             for params in (dict(num_beams=2, length_penalty=1.0, early_stopping=False),
                            dict(num_beams=4, length_penalty=2.0, early_stopping=True),
                            dict(num_beams=4, length_penalty=-1.0, early_stopping="never"))]
    lines = ",\n".join(json.dumps(c) for c in cases)
    (ROOT / "stop_beams.json").write_text('{"beams": [\n%s\n]}\n' % lines)


def main():
    stop_beams()
    for name in MODELS:
        model = load(ROOT / name)
        prompts = json.load(open(ROOT / name / "expected.json"))["prompts"]
        cases = []
        for k, params in enumerate(SEARCHES):
            for p in (1, 3, 5):
                # an end token that a search without one contains at an early or a late position
                free = search(model, prompts[p], params, None)["sequences"][0]
                eos = free[(4 + 5 * k) % len(free)]
                cases.append(search(model, prompts[p], params, eos, with_rows=p == 3))
        lines = ",\n".join(json.dumps(c) for c in cases)
        (ROOT / name / "beams.json").write_text(
            '{"transformers": "%s", "torch": "%s", "beams": [\n%s\n]}\n'
            % (transformers.__version__, torch.__version__, lines))
        print(name, len(cases), sorted({len(c["sequences"][0]) for c in cases}))


main()
