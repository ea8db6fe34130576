#!/usr/bin/env python3
"""tokenizer_cases.py - writes tests/data/tokenizers/oracle.json: ids that Hugging Face tokenizers
give for random text.

Needs python3 and `pip install tokenizers==0.22.2`; never run by make check. Each entry takes a
golden tokenizer, replaces text of its tokenizer.json and records ids (with template) and their text
for random strings, and the text of random ids. Characters are those of Unicode 3.2 and some emoji,
so that the Unicode tables of both sides agree.
"""
import json
import os
import random
import unicodedata

from tokenizers import Tokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "tokenizers")
rng = random.Random(7)
MARK = "\u2581"


def section(name, value):
    """The patch that puts value where the document has an object or null as that section."""
    return lambda text: next(
        ["\"%s\": %s" % (name, old), "\"%s\": %s%s" % (name, json.dumps(value), was)]
        for old, was in (("null", ""), ("{", ", \"was_%s\": {" % name))
        if "\"%s\": %s" % (name, old) in text
    )


def edit(find, replace):
    return lambda text: [find, replace]


def added(*tokens):
    base = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
        "special": False,
    }
    more = "".join(",%s" % json.dumps({**base, **t}, ensure_ascii=False) for t in tokens)
    return edit("\n  ],\n  \"normalizer\"", more + "\n  ],\n  \"normalizer\"")


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def levels(*steps):
    return section(
        "pre_tokenizer",
        {
            "type": "Sequence",
            "pretokenizers": [
                *steps,
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                },
            ],
        },
    )


def normal(*steps):
    return section("normalizer", {"type": "Sequence", "normalizers": list(steps)})


def metaspace(scheme, cuts):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cuts}


def class_of(base):
    """The sections as the class of transformers 5.17 rebuilds them."""
    if base == "spm_llama2":
        return [section("normalizer", None), section("pre_tokenizer", metaspace("first", False))]
    return [
        edit("\"normalizer\": {", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{"),
        edit(
            "\n  },\n  \"pre_tokenizer\"",
            "\n  }, {\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, "
            "\"content\": \" \"}]},\n  \"pre_tokenizer\"",
        ),
        section("pre_tokenizer", metaspace("always", True)),
    ]


space, mark = {"String": " "}, {"String": MARK}
words = {"Regex": "\\w+|[^\\w\\s]+"}
lower = {"type": "Lowercase"}
VARIANTS = [
    *[
        ("Split %s" % b, "bpe_llama3", [levels(split(space, b))])
        for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    ],
    *[
        ("Split %s, inverted" % b, "bpe_llama3", [levels(split({"Regex": "[a-z]+"}, b, True))])
        for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    ],
    ("Split by words", "bpe_llama3", [levels(split(words, "Removed", True))]),
    ("Digits, one by one", "bpe_llama3", [levels({"type": "Digits", "individual_digits": True})]),
    ("Digits together", "bpe_llama3", [levels({"type": "Digits", "individual_digits": False})]),
    ("WhitespaceSplit", "bpe_llama3", [levels({"type": "WhitespaceSplit"})]),
    *[(f, "bpe_o200k", [normal({"type": f})]) for f in ("NFC", "NFD", "NFKC", "NFKD")],
    ("Lowercase", "bpe_bart", [normal(lower)]),
    ("StripAccents", "bpe_bart", [normal({"type": "NFD"}, {"type": "StripAccents"})]),
    ("Strip", "bpe_bart", [normal({"type": "Strip", "strip_left": True, "strip_right": True})]),
    (
        "Strip on the right",
        "bpe_bart",
        [normal({"type": "Strip", "strip_left": False, "strip_right": True})],
    ),
    (
        "Replace, Prepend",
        "bpe_bart",
        [
            normal(
                {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "__"},
                {"type": "Prepend", "prepend": "x"},
                {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
            )
        ],
    ),
    (
        "added tokens as words",
        "bpe_llama3",
        [
            added(
                {"id": 512, "content": "foo", "single_word": True},
                {
                    "id": 513,
                    "content": "qux",
                    "single_word": True,
                    "normalized": False,
                    "lstrip": True,
                },
                {"id": 514, "content": "xx", "single_word": True, "rstrip": True},
            )
        ],
    ),
    (
        "added tokens, normalised",
        "bpe_llama3",
        [
            normal(lower, {"type": "NFKC"}),
            added(
                {"id": 512, "content": "VALUE"},
                {"id": 513, "content": "\ufb01"},
                {"id": 514, "content": "XX", "lstrip": True},
                {"id": 515, "content": "qux", "normalized": False, "rstrip": True},
            ),
        ],
    ),
    ("Llama 2 as it is", "spm_llama2", []),
    ("Llama 2's class", "spm_llama2", class_of("spm_llama2")),
    (
        "Metaspace never",
        "spm_llama2",
        [
            section("normalizer", None),
            section("pre_tokenizer", metaspace("never", True)),
            section("decoder", metaspace("never", True)),
        ],
    ),
    (
        "Metaspace always, uncut",
        "spm_llama2",
        [
            section("normalizer", None),
            section("pre_tokenizer", metaspace("always", False)),
            section("decoder", metaspace("always", False)),
        ],
    ),
    (
        "no byte fallback",
        "spm_llama2",
        [edit("\"byte_fallback\": true", "\"byte_fallback\": false")],
    ),
    (
        "unknown one by one",
        "spm_llama2",
        [
            edit("\"byte_fallback\": true", "\"byte_fallback\": false"),
            edit("\"fuse_unk\": true", "\"fuse_unk\": false"),
        ],
    ),
    (
        "unknown left out",
        "spm_llama2",
        [
            edit("\"byte_fallback\": true", "\"byte_fallback\": false"),
            edit("\"unk_token\": \"<unk>\"", "\"unk_token\": null"),
        ],
    ),
    (
        "bytes that are missing",
        "spm_llama2",
        [edit("\"<0xE2>\"", "\"<0xE2E2>\""), edit("\"<0xC3>\"", "\"<0xC3C3>\"")],
    ),
    (
        "marks within tokens",
        "spm_llama2",
        [
            edit("\"merges\": [", "\"merges\": [[\"t\", \"\u2581t\"],"),
            edit("\"<0xFF>\"", "\"t\u2581t\""),
        ],
    ),
    (
        "added tokens behind Prepend",
        "spm_llama2",
        [added({"id": 760, "content": "foo"}, {"id": 761, "content": "xx", "normalized": False})],
    ),
    ("Gemma", "spm_gemma", []),
    (
        "Gemma, words whole",
        "spm_gemma",
        [edit("\"ignore_merges\": false", "\"ignore_merges\": true")],
    ),
    ("mBART as it is", "spm_mbart", []),
    ("mBART's class", "spm_mbart", class_of("spm_mbart")),
    ("T5", "spm_t5", []),
    (
        "T5 as newer files",
        "spm_t5",
        [
            edit(
                "\"normalizer\": {", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{"
            ),
            edit(
                "\n  },\n  \"pre_tokenizer\"",
                "\n  }, {\"type\": \"Strip\", \"strip_left\": false, \"strip_right\": true}, "
                "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" {2,}\"}, \"content\": "
                "\"\u2581\"}]},\n"
                "  \"pre_tokenizer\"",
            ),
            section("pre_tokenizer", metaspace("always", True)),
        ],
    ),
    (
        "Unigram with bytes",
        "spm_t5",
        [
            edit("\"byte_fallback\": false", "\"byte_fallback\": true"),
            *[
                edit("\"<extra_id_%d>\",\n        0.0" % i, "\"<0x%02X>\",\n        0.0" % b)
                for i, b in enumerate((0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xB8, 0xAD))
            ],
            edit("\"added_tokens\": [", "\"was\": ["),
        ],
    ),
]

BLOCKS = [
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x300, 0x370),
    (0x370, 0x600),
    (0x600, 0x700),
    (0x900, 0xA00),
    (0xE00, 0xE60),
    (0x1100, 0x1200),
    (0x1E00, 0x2000),
    (0x2000, 0x2070),
    (0x2070, 0x2200),
    (0x2460, 0x2500),
    (0x3000, 0x3200),
    (0x4E00, 0x4F00),
    (0xAC00, 0xAD00),
    (0xFB00, 0xFB50),
    (0xFF00, 0xFFE8),
    (0x1D400, 0x1D440),
]
EMOJI = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "\U0001f1eb\U0001f1f7",
    "\u263a",
    "\U0001f680",
]
WORDS = (
    "the of and The THE value's it's I'LL don't return class 42 1234567 3.14 caf\u00e9 "
    "cafe\u0301 na\u00efve "
    "\u0130stanbul Stra\u00dfe \u4eca\u65e5\u306f \ud55c\uad6d\uc5b4 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 "
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
    "<mask> </s> <s> <|eot_id|> <extra_id_1> <0x41> foo_bar qux xx foo value \ufb01 a.b.c "
    "{x}[y](z) "
    "--- ... \u2581 t\u2581the xx"
).split()
SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "    ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2009",
    " \n ",
    "\u200b",
    "",
]


def letter():
    while True:
        c = chr(rng.randrange(*rng.choice(BLOCKS)))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co"):
            return c


def text():
    kind = rng.randrange(6)
    if kind == 0:
        return "".join(letter() for _ in range(rng.randrange(1, 16)))
    if kind == 1:
        return rng.choice(
            (
                "a",
                " ",
                "ab",
                "\n",
                "=",
                "\u4e00",
                "e\u0301",
                "1",
                "\U0001f600",
                MARK,
                "aA ",
                "\u0301",
            )
        ) * rng.randrange(1, 40)
    parts = [
        rng.choice(
            (
                rng.choice(WORDS),
                rng.choice(WORDS),
                rng.choice(SPACES),
                rng.choice(SPACES),
                letter(),
                rng.choice(EMOJI),
            )
        )
        for _ in range(rng.randrange(1, 12))
    ]
    return rng.choice(("", " ", "")).join(parts)


def some_ids(tok, byte_runs):
    """Random ids. Adjacent byte tokens are all characters, or there is only one (decode.h)."""
    ids, was_byte = [], False
    while len(ids) < rng.randrange(1, 24):
        i = rng.randrange(tok.get_vocab_size())
        piece = tok.id_to_token(i)
        if piece is None:
            continue
        byte = byte_runs and len(piece) == 6 and piece.startswith("<0x")
        if byte and was_byte:
            continue
        if byte and rng.randrange(2):
            ids += [
                tok.token_to_id("<0x%02X>" % b)
                for b in rng.choice(("\n", "\u00e9", "\u20ac", "\U0001f600\n")).encode()
            ]
        else:
            ids.append(i)
        was_byte = byte
    return ids if None not in ids else [i]


def main():
    out = []
    for name, base, patches in VARIANTS:
        doc = open(os.path.join(HERE, base, "tokenizer.json"), encoding="utf-8").read()
        done = []
        for p in patches:
            find, replace = p(doc)
            assert find in doc, (name, find)
            doc = doc.replace(find, replace, 1)
            done.append([find, replace])
        doc = {k: v for k, v in json.loads(doc).items() if not k.startswith("was")}
        tok = Tokenizer.from_str(json.dumps(doc))
        for a in doc.get("added_tokens", []):
            assert tok.token_to_id(a["content"]) == a["id"], (name, a)
        cases = []
        for _ in range(24):
            t = text()
            ids = tok.encode(t).ids
            cases.append(
                {"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=True)}
            )
        decodes = []
        for _ in range(12):
            ids = some_ids(tok, base in ("spm_llama2", "spm_gemma"))
            decodes.append({"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False)})
        out.append({"name": name, "base": base, "patch": done, "cases": cases, "decodes": decodes})
    with open(os.path.join(HERE, "oracle.json"), "w", encoding="utf-8") as f:
        f.write("[\n%s\n]\n" % ",\n".join(json.dumps(v, ensure_ascii=False) for v in out))
    print(len(out), "variants")


main()
