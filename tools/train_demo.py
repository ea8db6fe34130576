#!/usr/bin/env python3
"""Train the two tiny checkpoints under models/ and write what they must answer.

numbers-t5     T5 v1.1: digits to English words and back, 0 to 999,999,999.
recall-gemma3  Gemma 3: recalls a value by its key from up to 512 bytes back; only its one full
               layer in six can reach that far.

    python3 tools/train_demo.py --out models --seed 1             # train both, one after the other
    python3 tools/train_demo.py --out models --only recall        # one of them
    python3 tools/train_demo.py --out models --evaluate           # figures and demo.json again

Needs torch, transformers and a GPU for some minutes each; --evaluate runs on a CPU. The data is
made here; a case whose text hashes to 0 modulo 64 is never trained on, and only such cases are
evaluated. The saved checkpoint is measured: rounded to bf16, loaded as fp32.
"""
import argparse
import contextlib
import copy
import functools
import json
import math
import multiprocessing
import os
import random
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F

VOCAB = 264  # 256 bytes and the special tokens, rounded up to a multiple of 8
EOS_BYTE = 1  # in the data made here, byte 1 stands for the end token and byte 0 for padding


def held_out(text):
    return zlib.crc32(text.encode()) % 64 == 0


# ---- numbers

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "? ? twenty thirty forty fifty sixty seventy eighty ninety".split()


@functools.lru_cache(1000)
def below_1000(n):
    words = []
    if n >= 100:
        words += [ONES[n // 100], "hundred"]
        n %= 100
    if n >= 20:
        words.append(TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else ""))
    elif n:
        words.append(ONES[n])
    return " ".join(words)


def in_words(n):
    if n == 0:
        return "zero"
    parts = []
    for scale, name in ((10**6, " million"), (10**3, " thousand"), (1, "")):
        if n // scale % 1000:
            parts.append(below_1000(n // scale % 1000) + name)
    return " ".join(parts)


def a_number(rng):
    """All lengths alike, with whole groups and single digits often zero: the cases that are rare
    among uniform numbers and that people type."""
    digits = [rng.choice("0123456789") for _ in range(rng.randint(1, 9))]
    if rng.random() < 0.3:
        for i in range(1, len(digits)):
            if rng.random() < 0.6:
                digits[i] = "0"
    if rng.random() < 0.2:
        for i in range(len(digits)):
            if (len(digits) - 1 - i) // 3 == rng.randrange(3):
                digits[i] = "0"
    return int("".join(digits))


def fit(data, width):
    assert len(data) <= width, (len(data), width)
    return data.ljust(width, b"\0")


DIGITS_WIDE, WORDS_WIDE = 10, 112


def numbers_chunk(args):
    seed, n = args
    rng = random.Random(seed)
    digits, words = [], []
    while len(digits) < n:
        x = a_number(rng)
        if held_out(str(x)):
            continue
        digits.append(fit(str(x).encode() + b"\1", DIGITS_WIDE))
        words.append(fit(in_words(x).encode() + b"\1", WORDS_WIDE))
    return b"".join(digits), b"".join(words)


def unseen_numbers(seed, n):
    """Half uniform over the whole range, half with the training mix of lengths; no number twice."""
    rng = random.Random(seed)
    out = {}
    while len(out) < n:
        x = rng.randrange(10**9) if len(out) % 2 else a_number(rng)
        if held_out(str(x)):
            out[x] = True
    return list(out)


# ---- recall

VALUES = (
    "amber apple arrow atlas badge basil beach birch black blade bloom blue boat bone book brass "
    "bread brick broom brown cabin camel candle canoe cedar chalk chess cliff cloud clover coal "
    "coral cork crane crow dawn delta desk dove drum dune eagle earth elbow ember fable falcon "
    "fern field finch flame flint flute forest fox frost garden gate glass glove gold grape grass "
    "green grey harbor harp hawk hazel heron honey horn house ice iris iron island ivory jade "
    "kite lake lamp larch lark leaf lemon lime linen lion lotus maple marble meadow melon mint "
    "moon moss nest night north oak oasis ocean olive onyx opal orange otter owl paper peach "
    "pearl pebble pine plum pond poppy quartz quill rain raven red reed river robin rope rose "
    "ruby rust sage salt sand scarf shell silk silver slate snow south spice spruce star stone "
    "storm sugar sun swan table teal tiger topaz tower tulip tundra velvet violet water wheat "
    "willow wind wolf wood wren yarrow"
).split()
REACH = 512


def a_key(rng):
    return rng.choice("abcdefghijklmnopqrstuvwxyz") + rng.choice("0123456789")


def a_value(rng):
    if rng.random() < 0.5:
        return rng.choice(VALUES)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 6)))


def pairs_of(rng, size):
    """About size bytes of "k3=blue;" with different keys: the text, its pairs and positions."""
    text, pairs, used = "", [], set()
    while True:
        key = a_key(rng)
        if key in used:
            continue
        pair = "%s=%s;" % (key, a_value(rng))
        if len(text) + len(pair) > size:
            return text, pairs
        used.add(key)
        pairs.append((key, pair[3:-1], len(text)))
        text += pair


def recall_chunk(args):
    """Rows of pairs, then as many questions and answers as fit. Only the answers are learned."""
    seed, n, most, width = args
    rng = random.Random(seed)
    rows, marks = [], []
    while len(rows) < n:
        text, pairs = pairs_of(rng, rng.randint(min(24, most), most))
        if not pairs or held_out(text):
            continue
        mark = bytes(len(text))
        while True:
            key, value, _ = rng.choice(pairs)
            turn = "%s?%s\1" % (key, value)
            if len(text) + len(turn) > width:
                break
            text += turn
            mark += bytes(3) + b"\1" * (len(turn) - 3)
        rows.append(fit(text.encode(), width))
        marks.append(fit(mark, width))
    return b"".join(rows), b"".join(marks)


def unseen_recalls(seed, n):
    """Prompts with 512 bytes of pairs whose wanted value begins 15 to 512 bytes before the end,
    spread evenly."""
    rng = random.Random(seed)
    out = []
    while len(out) < n:
        text, pairs = pairs_of(rng, REACH)
        if not held_out(text):
            continue
        far = 16 + (REACH - 16) * len(out) // n  # the distance wanted, met to within a pair
        key, value, at = min(pairs, key=lambda p: abs(len(text) - p[2] - far))
        out.append((text + key + "?", value, len(text) - at))
    return out


# ---- checkpoints


def byte_chars():
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, spare = {}, 256
    for b in range(256):
        table[b] = chr(b if b in keep else spare)
        spare += b not in keep
    return table


def write_tokenizer(path, special, template):
    """Byte-level BPE without merges: token of byte b is len(special) + b."""
    vocab = {name: i for i, name in enumerate(special)}
    vocab.update({c: len(special) + b for b, c in byte_chars().items()})
    single = [
        (
            {"Sequence": {"id": "A", "type_id": 0}}
            if t == "A"
            else {"SpecialToken": {"id": t, "type_id": 0}}
        )
        for t in template
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    doc = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, name in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single
            + [
                {"Sequence": {"id": "B", "type_id": 1}} if "SpecialToken" not in t else t
                for t in single
            ],
            "special_tokens": {
                t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in template if t != "A"
            },
        },
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


T5_SPECIAL, GEMMA_SPECIAL = ["<pad>", "</s>", "<unk>"], ["<pad>", "<eos>", "<bos>", "<unk>"]


def new_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    m = T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB,
            d_model=128,
            d_kv=32,
            d_ff=160,
            num_layers=3,
            num_decoder_layers=3,
            num_heads=4,
            relative_attention_num_buckets=32,
            relative_attention_max_distance=128,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        )
    )
    torch.nn.init.normal_(m.lm_head.weight, std=128**-0.5)
    return m


def new_gemma():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=32,
            layer_types=kinds,
            max_position_embeddings=1024,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
            attn_implementation="sdpa",
        )
    )


def save(model, path, special, template):
    """The layout of published checkpoints: bf16 weights, config.json, generation_config.json,
    tokenizer.json."""
    # A copy, because the rotary frequencies must stay fp32 in the model that trains on.
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(path)
    write_tokenizer(path, special, template)


# ---- training


@contextlib.contextmanager
def fused_norms():
    """One kernel a norm instead of six, the same arithmetic; training only."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    was = Gemma3RMSNorm.forward, T5LayerNorm.forward
    Gemma3RMSNorm.forward = lambda s, x: F.rms_norm(
        x.float(), x.shape[-1:], 1.0 + s.weight, s.eps
    ).type_as(x)
    T5LayerNorm.forward = lambda s, x: F.rms_norm(
        x.float(), x.shape[-1:], s.weight, s.variance_epsilon
    )
    yield
    Gemma3RMSNorm.forward, T5LayerNorm.forward = was


def as_tokens(data, width, first, device):
    """uint8 rows to token ids on the device."""
    rows = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, width).copy()).to(device)
    table = torch.arange(256, device=device) + first
    table[0], table[EOS_BYTE] = 0, 1
    return rows, table


class Schedule:
    """Warm-up and cosine over a number of steps that is cut to what fits into the time left."""

    def __init__(self, model, steps, peak, seconds):
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        on_gpu = next(model.parameters()).is_cuda
        self.opt = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
            lr=peak,
            betas=(0.9, 0.98),
            fused=on_gpu,
        )
        self.model, self.steps, self.peak, self.end = model, steps, peak, time.time() + seconds
        self.step_no = 0

    def done(self):
        return self.step_no >= self.steps

    def shorten(self, cost):
        """cost: seconds a step takes now."""
        fits = self.step_no + int(max(0.0, self.end - time.time()) / cost)
        if fits < self.steps:
            print("  only %d of %d steps fit" % (fits, self.steps), flush=True)
            self.steps = fits

    def step(self):
        warm = min(1.0, (self.step_no + 1) / 300)
        cool = 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.step_no / self.steps))
        for g in self.opt.param_groups:
            g["lr"] = self.peak * warm * max(cool, 0.01)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.step_no += 1


def autocast(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def in_chunks(pool, work, seed, total, *rest):
    n = max(1, min(20000, total // 16))
    jobs = [(seed * 1000003 + i, n) + rest for i in range(-(-total // n))]
    parts = pool.map(work, jobs, chunksize=1)
    return [b"".join(p[i] for p in parts) for i in range(len(parts[0]))]


def train_numbers(out, seed, device, o):
    torch.manual_seed(seed)
    with multiprocessing.Pool(o.procs) as pool:
        digits, words = in_chunks(pool, numbers_chunk, seed, int(2_000_000 * o.scale))
    first = len(T5_SPECIAL)
    digits, table = as_tokens(digits, DIGITS_WIDE, first, device)
    words, _ = as_tokens(words, WORDS_WIDE, first, device)
    model = new_t5().to(device)
    print(
        "numbers: %d examples, %d parameters"
        % (len(digits), sum(p.numel() for p in model.parameters())),
        flush=True,
    )
    s = Schedule(model, int(24000 * o.scale), 2e-3, o.seconds)
    batch, t0, at = int(512 * o.batch), time.time(), time.time()
    path = os.path.join(out, "numbers-t5")
    while not s.done():
        pick = torch.randint(len(digits), (batch,), device=device)
        total = 0.0
        for source, target in ((digits, words), (words, digits)):
            src, tgt = table[source[pick].long()], table[target[pick].long()]
            with autocast(device):
                logits = model(
                    input_ids=src,
                    attention_mask=(src != 0).long(),
                    decoder_input_ids=F.pad(tgt[:, :-1], (1, 0)),
                    use_cache=False,
                ).logits
            loss = F.cross_entropy(logits.float().transpose(1, 2), tgt, ignore_index=0)
            loss.backward()
            total += loss.detach()
        s.step()
        if s.step_no % 200 == 0:
            cost = (time.time() - at) / 200
            s.shorten(cost)
            if s.step_no % 1000 == 0:
                print(
                    "numbers: step %d loss %.5f, %.1f ms a step, %.0f s"
                    % (s.step_no, total.item(), cost * 1e3, time.time() - t0),
                    flush=True,
                )
            if s.step_no % 4000 == 0:
                save(model, path, T5_SPECIAL, ["A", "</s>"])
            at = time.time()
    save(model, path, T5_SPECIAL, ["A", "</s>"])
    print("numbers: %d steps in %.0f s" % (s.step_no, time.time() - t0), flush=True)


def train_recall(out, seed, device, o):
    torch.manual_seed(seed)
    # most bytes of pairs, row width, rows a batch, steps, rows made: short first, because the
    # matching forms there in seconds, then out to the full reach
    stages = (
        (40, 128, 512, 1500, 400_000),
        (140, 256, 256, 2500, 300_000),
        (530, 720, 128, 8000, 300_000),
    )
    first = len(GEMMA_SPECIAL)
    model = new_gemma().to(device)
    print("recall: %d parameters" % sum(p.numel() for p in model.parameters()), flush=True)
    path = os.path.join(out, "recall-gemma3")
    t0 = time.time()
    s = Schedule(model, int(sum(x[3] for x in stages) * o.scale), 2e-3, o.seconds)
    for n, (most, width, batch, steps, made) in enumerate(stages):
        with multiprocessing.Pool(o.procs) as pool:
            rows, marks = in_chunks(
                pool, recall_chunk, seed + 17 * n, int(made * o.scale), most, width
            )
        rows, table = as_tokens(rows, width, first, device)
        marks, _ = as_tokens(marks, width, first, device)
        until = s.step_no + int(steps * o.scale) if n + 1 < len(stages) else s.steps
        at, batch = time.time(), max(1, int(batch * o.batch))
        while s.step_no < min(until, s.steps):
            pick = torch.randint(len(rows), (batch,), device=device)
            tokens, mark = table[rows[pick].long()], marks[pick] != 0
            with autocast(device):
                logits = model(
                    input_ids=F.pad(tokens[:, :-1], (1, 0), value=2), use_cache=False
                ).logits
            loss = F.cross_entropy(logits[mark].float(), tokens[mark])
            loss.backward()
            s.step()
            if s.step_no % 100 == 0:
                cost = (time.time() - at) / 100
                if n + 1 == len(stages):
                    s.shorten(cost)
                if s.step_no % 500 == 0:
                    hit = (logits[mark].argmax(-1) == tokens[mark]).float().mean().item()
                    print(
                        "recall: stage %d step %d loss %.5f, "
                        "bytes right %.4f, %.1f ms a step, %.0f s"
                        % (n, s.step_no, loss.item(), hit, cost * 1e3, time.time() - t0),
                        flush=True,
                    )
                if s.step_no % 2000 == 0:
                    save(model, path, GEMMA_SPECIAL, ["<bos>", "A"])
                at = time.time()
    save(model, path, GEMMA_SPECIAL, ["<bos>", "A"])
    print("recall: %d steps in %.0f s" % (s.step_no, time.time() - t0), flush=True)


# ---- measuring: the saved checkpoint, fp32, transformers' own greedy generate()


def answers(model, prompts, first, most, batch):
    """Token ids that greedy generate() gives for each prompt, the end token included."""
    out, left = [], model.config.is_encoder_decoder is False
    device = next(model.parameters()).device
    for i in range(0, len(prompts), batch):
        part = prompts[i : i + batch]
        wide = max(len(p) for p in part)
        ids = torch.zeros(len(part), wide, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for r, p in enumerate(part):
            place = slice(wide - len(p), wide) if left else slice(0, len(p))
            ids[r, place], mask[r, place] = torch.tensor(p), 1
        with torch.no_grad():
            got = model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                do_sample=False,
                num_beams=1,
                max_new_tokens=most,
            )
        for row in got[:, wide if left else 1 :].tolist():
            out.append(row[: row.index(1) + 1] if 1 in row else row)
    return out


def text_of(ids, first):
    return bytes(i - first for i in ids if i >= first and i < first + 256).decode(
        "utf-8", "replace"
    )


def ids_of(text, first):
    return [first + b for b in text.encode()]


def right(got, want, first):
    return got == ids_of(want, first) + [1]


def measure_numbers(path, seed, device, o, figures):
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).to(device).eval()
    first = len(T5_SPECIAL)
    numbers = unseen_numbers(seed + 5, o.cases)
    typed = sorted(
        {d * 10**k for d in range(1, 10) for k in range(9)}
        | set(range(100))
        | {10**k - 1 for k in range(1, 10)}
        | {10**k + 1 for k in range(1, 9)}
        | {123456789, 987654321, 1001001, 100100100, 1000000, 999999}
    )

    def share(cases):
        return sum(
            right(g, w, first)
            for g, (_, w) in zip(
                answers(model, [ids_of(q, first) + [1] for q, _ in cases], first, 128, 256), cases
            )
        ) / len(cases)

    figures["numbers-t5"] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "unseen": len(numbers),
        "to_words": share([(str(n), in_words(n)) for n in numbers]),
        "to_digits": share([(in_words(n), str(n)) for n in numbers]),
        "typed": len(typed),
        "typed_to_words": share([(str(n), in_words(n)) for n in typed]),
        "typed_to_digits": share([(in_words(n), str(n)) for n in typed]),
    }
    asked = [
        "1284",
        "one thousand two hundred eighty-four",
        "0",
        "42",
        "1000000",
        "70013",
        "999999999",
        "305020107",
        "two million five",
        "ninety-nine thousand nine hundred ninety-nine",
        "six hundred twelve",
        "four hundred million seventeen thousand three",
        "8400000",
        "616",
    ]
    got = answers(model, [ids_of(q, first) + [1] for q in asked], first, 128, 1)
    return {
        "dir": "numbers-t5",
        "max_tokens": 128,
        "questions": [
            {"text": q, "ids": ids_of(q, first) + [1], "answer": text_of(g, first), "answer_ids": g}
            for q, g in zip(asked, got)
        ],
    }


def cut_full_layers(model, how):
    """zero: the full layers' attention adds nothing. window: they see what the others see."""
    import types

    for layer in model.model.layers:
        attn = layer.self_attn
        if attn.is_sliding:
            continue
        plain = attn.forward
        if how == "zero":
            attn.forward = lambda *a, plain=plain, **k: tuple(
                torch.zeros_like(x) if i == 0 else x for i, x in enumerate(plain(*a, **k))
            )
        else:

            def windowed(self, hidden_states, *a, plain=plain, **k):
                k = dict(k)
                n = hidden_states.shape[1]
                i = torch.arange(n, device=hidden_states.device)
                near = (i[None] <= i[:, None]) & (i[None] > i[:, None] - 32)
                k["attention_mask"] = near[None, None]
                return plain(hidden_states, *a, **k)

            attn.forward = types.MethodType(windowed, attn)


def greedy_step_by_step(model, prompts, most, device):
    """Without a cache, so that a cut layer's mask can be given whole."""
    out = []
    for p in prompts:
        ids = list(p)
        for _ in range(most):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
            if ids[-1] == 1:
                break
        out.append(ids[len(p) :])
    return out


def measure_recall(path, seed, device, o, figures):
    from transformers import Gemma3ForCausalLM

    def load():
        return Gemma3ForCausalLM.from_pretrained(path, dtype=torch.float32).to(device).eval()

    model, first = load(), len(GEMMA_SPECIAL)
    cases = unseen_recalls(seed + 5, o.cases)
    prompts = [[2] + ids_of(q, first) for q, _, _ in cases]
    got = answers(model, prompts, first, 8, 100)
    ok = [right(g, w, first) for g, (_, w, _) in zip(got, cases)]
    bands = {}
    for good, (_, _, far) in zip(ok, cases):
        b = bands.setdefault("%d-%d" % (far // 128 * 128, far // 128 * 128 + 127), [0, 0])
        b[0] += good
        b[1] += 1
    fig = figures["recall-gemma3"] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "unseen": len(cases),
        "right": sum(ok) / len(ok),
        "by_distance": {k: v[0] / v[1] for k, v in sorted(bands.items())},
        "farthest": max(c[2] for c in cases),
        "nearest": min(c[2] for c in cases),
    }
    demo = [
        ("k3=blue;q7=stone;m1=river;q7?", "stone", 18),
        ("a1=north;b2=south;c3=lagan;a1?", "north", 27),
    ]
    demo += [cases[i * (len(cases) - 1) // 11] for i in range(12)]
    dgot = answers(model, [[2] + ids_of(q, first) for q, _, _ in demo], first, 8, 1)
    some = range(0, len(cases), max(1, len(cases) // o.cut_cases))
    for how in ("zero", "window"):
        cut = load()
        cut_full_layers(cut, how)
        got = greedy_step_by_step(cut, [prompts[i] for i in some], 7, device)
        for name, far in (("", 0), ("_beyond_window", 32)):
            hits = [right(g, cases[i][1], first) for g, i in zip(got, some) if cases[i][2] > far]
            fig["cut_%s%s" % (how, name)] = sum(hits) / len(hits)
    return {
        "dir": "recall-gemma3",
        "max_tokens": 16,
        "questions": [
            {
                "text": q,
                "ids": [2] + ids_of(q, first),
                "answer": text_of(g, first),
                "answer_ids": g,
                "distance": far,
            }
            for (q, _, far), g in zip(demo, dgot)
        ],
    }


def write_demo(f, head, demo):
    """A line a question, so that people can read it and diffs are short."""
    f.write(
        '{"seed": %d,\n"figures": %s,\n"models": [' % (head["seed"], json.dumps(head["figures"]))
    )
    for i, m in enumerate(demo):
        f.write(
            "%s\n{\"dir\": %s, \"max_tokens\": %d, \"questions\": [\n"
            % ("," if i else "", json.dumps(m["dir"]), m["max_tokens"])
        )
        f.write(",\n".join(json.dumps(q) for q in m["questions"]) + "\n]}")
    f.write("\n]}\n")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", default="models")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", choices=("numbers", "recall"))
    p.add_argument("--evaluate", action="store_true", help="measure what is there, train nothing")
    p.add_argument("--seconds", type=float, default=400, help="the most that training one may take")
    p.add_argument("--cases", type=int, default=1000)
    p.add_argument("--cut-cases", type=int, default=1000)
    p.add_argument("--procs", type=int, default=os.cpu_count())
    p.add_argument(
        "--scale", type=float, default=1.0, help="of data and steps: 0.001 tries the script"
    )
    p.add_argument("--batch", type=float, default=1.0, help="factor on the batch sizes")
    o = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("highest" if o.evaluate else "high")
    os.makedirs(o.out, exist_ok=True)
    names = [o.only] if o.only else ["numbers", "recall"]
    if not o.evaluate:
        with fused_norms():
            for n in names:
                (train_numbers if n == "numbers" else train_recall)(o.out, o.seed, device, o)
        torch.set_float32_matmul_precision("highest")
    figures, demo = {}, []
    for n in names:
        path = os.path.join(o.out, "numbers-t5" if n == "numbers" else "recall-gemma3")
        demo.append(
            (measure_numbers if n == "numbers" else measure_recall)(
                path, o.seed, device, o, figures
            )
        )
    print(json.dumps(figures, indent=1), flush=True)
    name = "demo.json" if not o.only else "demo-%s.json" % o.only
    with open(os.path.join(o.out, name), "w", encoding="utf-8") as f:
        write_demo(f, {"seed": o.seed, "figures": figures}, demo)


if __name__ == "__main__":
    main()
