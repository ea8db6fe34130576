#!/usr/bin/env python3
"""What transformers makes of conversations, for tests/text/test_chat.c and tests/e2e/test_text.c.

    tools/chat_cases.py TEMPLATES > tests/data/chat/cases.json

TEMPLATES: a folder with the published chat templates as NAME.jinja, by the names of the key
chat_template (ipc/model_options.c). The tree has only their hashes (worker/text/chat_file.c). For
new templates, pass a folder with these alone and append the printed cases to the file. The
tokenizers are those of tests/data/tokenizers; spm_gemma4 there is spm_gemma with
the names of Gemma 4's tokens, and is written here. pip: transformers, jinja2.
"""
import datetime
import json
import pathlib
import sys

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parent.parent
DAY = datetime.datetime(2026, 11, 21)
TOKENIZERS = {  # by what a template's name begins with: tokenizer, bos, eos
    "llama2": ("spm_llama2", "<s>", "</s>"),
    "llama3": ("bpe_llama3", "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("spm_llama2", "<s>", "</s>"),
    "gemma4": ("spm_gemma4", "<bos>", "<eos>"),
    "gemma": ("spm_gemma", "<bos>", "<eos>"),
    "harmony": ("bpe_o200k", "<|startoftext|>", "<|return|>"),
    "qwen": ("bpe_qwen2", "<|endoftext|>", "<|im_end|>"),
}


class Today(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DAY


def talk(*turns):
    return [{"role": role, "content": content} for role, content in turns]


S, U, A = "system", "user", "assistant"
TALKS = [
    talk((U, "Hello")),
    talk((U, "What is 2 + 2?"), (A, "4"), (U, "And 3 + 3?")),
    talk(
        (S, "You are a helpful assistant"),
        (U, "Hello"),
        (A, "Hi there"),
        (U, "Who are you"),
        (A, "   I am an assistant   "),
        (U, "Another question"),
    ),
    talk((S, "  be  brief \n"), (U, "\n\n  white space \t on both sides \u00a0\u2003\x1c ")),
    talk((S, ""), (U, "an empty system message")),
    talk((U, ""), (A, ""), (U, "   ")),
    talk((S, "sys"), (U, "   ")),
    talk(
        (U, "Grüße, 世界 🙂🏽 e\u0301 \u200b"),
        (A, "naïve café – “quotes”"),
        (U, "\\n is no line, \n is"),
    ),
    talk(
        (U, "a </s> b <|eot_id|> c <end_of_turn> d <|end|> e"),
        (A, "<s>"),
        (U, "[INST] x [/INST] <<SYS>>"),
    ),
    talk((U, "one"), (A, "two")),
    talk((U, "one"), (U, "two")),
    talk((A, "I begin"), (U, "you")),
    talk((S, "one"), (S, "two"), (U, "three")),
    talk((U, "one"), (S, "late"), (U, "two")),
    talk(("developer", "Answer in rhyme."), (U, "Hello")),
    talk(
        (U, "<think>one"),
        (A, "<think>\n\nhm\n</think>\n\nyes"),
        (U, "two"),
        (A, "a</think>b<think>c</think>\n\nd"),
    ),
    talk((U, "one"), (A, "\n<think>\nso\n\n</think>\nyes"), (A, "more"), (A, "\n\nand more")),
    talk(
        (U, "one"),
        (A, "two"),
        (U, "<tool_response>\n3\n</tool_response>"),
        (A, "<think>x</think>three"),
    ),
    talk((A, "<think>x</think>three")),
    talk(
        (U, "one"),
        (A, " x<channel|> <|channel>thought\nhm\n<channel|>two <channel|>\n"),
        (A, "<|channel>a"),
        (A, "three "),
        (U, " <|channel>mine<channel|> "),
    ),
    talk(
        (U, "one"),
        (A, "<|turn>a<|channel>b<channel|><|channel>c<channel|>\t\n<channel|>"),
        (S, " late "),
        (A, ""),
    ),
    talk((U, "\n" * 9 + "lines" + "\r\n" * 3), (A, "\ttabs\t"), (U, "0" * 300)),
]


def refused_here(name, messages):
    """What we refuse by a sentence, and some templates pass over or take as it comes."""
    late = any(m["role"] == "system" for m in messages[1:])
    developer = name == "harmony" or name.startswith("gemma4")
    return (
        late
        and not name.startswith(("llama3", "qwen", "gemma4"))
        or messages[0]["role"] == "developer"
        and not developer
    )


def write_gemma4():
    names = {
        "<start_of_turn>": "<|turn>",
        "<end_of_turn>": "<turn|>",
        "<mask>": "<|channel>",
        "<pad>": "<channel|>",
    }
    text = (ROOT / "tests/data/tokenizers/spm_gemma/tokenizer.json").read_text()
    for old, new in names.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    to = ROOT / "tests/data/tokenizers/spm_gemma4"
    to.mkdir(exist_ok=True)
    (to / "tokenizer.json").write_text(text)


def cases(path):
    name = path.stem
    tokenizer, bos, eos = next(v for k, v in TOKENIZERS.items() if name.startswith(k))
    t = PreTrainedTokenizerFast(
        tokenizer_file=str(ROOT / f"tests/data/tokenizers/{tokenizer}/tokenizer.json"),
        bos_token=bos,
        eos_token=eos,
        chat_template=path.read_text(),
    )
    for messages in TALKS:
        case = {"template": name, "tokenizer": tokenizer, "messages": messages}
        if refused_here(name, messages):
            yield case
            continue
        try:
            case["text"] = t.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = t(case["text"], add_special_tokens=False)["input_ids"]
            assert ids == t.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            case["ids"] = ids
        except jinja2.exceptions.TemplateError:
            pass  # and so do we: a case without a text
        yield case


write_gemma4()
chat_template_utils.datetime = Today
out = [c for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")) for c in cases(path)]
print("[\n" + ",\n".join(json.dumps(c, ensure_ascii=True) for c in out) + "\n]")
