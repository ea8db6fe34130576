#!/usr/bin/env python3
"""openai_suite.py BUILDDIR - the official openai package against lagan-gateway.

Starts lagand with the two bundled models and a gateway, and runs every function case_*. Needs the
package openai (pip install openai); exits with 77 where it is absent. A second, pretended server
counts the attempts of the client where the gateway would have to fail."""
import asyncio
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

try:
    import httpx
    import openai
except ImportError as error:
    print(f"the Python package {error.name} is not installed; skipped")
    sys.exit(77)

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
source = pathlib.Path(__file__).resolve().parent.parent.parent
KEYS, NUMBERS, CHAT = "recall-gemma3", "numbers-t5", "chatty"
PROMPT = "k3=blue;q7=stone;q7?"
USER = [{"role": "user", "content": "k3=blue;k3?"}]
HISTORY = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "a"},
         {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


class Service:
    """lagand and a gateway in a temporary directory."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        d = pathlib.Path(self.dir.name)
        # Llama 2's chat template needs only the special tokens of a byte vocabulary.
        shutil.copytree(source / "models" / KEYS, d / CHAT)
        tokenizer = (d / CHAT / "tokenizer.json").read_text()
        (d / CHAT / "tokenizer.json").unlink()
        (d / CHAT / "tokenizer.json").write_text(
            tokenizer.replace("<bos>", "<s>").replace("<eos>", "</s>"))
        models = [source / "models" / KEYS, source / "models" / NUMBERS, d / CHAT]
        (d / "lagan.yaml").write_text("models:\n" + "".join(
            f"  - {{path: {m}, device: cpu, kv.memory: 64MiB"
            f"{', chat_template: llama2' if m.name == CHAT else ''}}}\n" for m in models))
        self.endpoint = f"ipc://{d}/run/api.sock"
        self.log = open(d / "log", "w+")
        self.lagand = subprocess.Popen(
            [build / "lagand", "--config", d / "lagan.yaml", "--runtime-dir", d / "run"],
            stderr=self.log)
        self.gateway = subprocess.Popen(
            [build / "lagan-gateway", "--config", "/dev/null", "--announce", "--lagand",
             self.endpoint, "--listen", "127.0.0.1:0", "--models", f"gpt-4o-mini={CHAT}",
             "--shutdown-timeout", "1s"], stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = self.gateway.stdout.readline().strip()
        self.wait_ready()

    def wait_ready(self):
        end = time.monotonic() + 60
        for model in (KEYS, NUMBERS, CHAT):
            while httpx.get(f"{self.url}/health?model={model}").status_code != 200:
                assert time.monotonic() < end, f"{model} is not ready"
                time.sleep(0.05)

    def requests(self):
        out = subprocess.run([build / "laganctl", "--connect", self.endpoint, "requests", "list",
                              "--json"], capture_output=True, text=True, check=True).stdout
        return json.loads(out)

    def stop(self):
        for p in (self.gateway, self.lagand):
            p.terminate()
            assert p.wait(30) == 0, f"{p.args[0]} exited with {p.returncode}"


def client(**more):
    return openai.OpenAI(base_url=service.url + "/v1", api_key="none",
                         **{"timeout": 60, "max_retries": 0, **more})


def aclient(**more):
    return openai.AsyncOpenAI(base_url=service.url + "/v1", api_key="none",
                              **{"timeout": 60, "max_retries": 0, **more})


def arun(run):
    """Runs run(client) in a loop of its own, and closes the client before the loop."""
    async def with_client():
        async with aclient() as c:
            await run(c)
    asyncio.run(with_client())


def chat(**more):
    return client().chat.completions.create(
        **{"model": CHAT, "messages": USER, "max_tokens": 8, **more})


def complete(**more):
    return client().completions.create(**{"model": KEYS, "prompt": PROMPT, **more})


def raises(kind, call, param=None, code=None):
    try:
        call()
    except kind as e:
        body = e.body if isinstance(e.body, dict) else {}
        assert param is None or body.get("param") == param, body
        assert code is None or body.get("code") == code, body
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


# ---- completions


def case_completion_text():
    r = complete()
    assert r.object == "text_completion" and r.choices[0].text == "stone", r
    assert r.choices[0].finish_reason == "stop" and r.choices[0].index == 0


def case_completion_usage():
    u = complete().usage
    assert u.prompt_tokens > 10 and u.completion_tokens == 6, u
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens


def case_completion_ids_and_time():
    a, b = complete(), complete()
    assert a.id != b.id and a.id.startswith("cmpl-") and len(a.id) == 5 + 32
    assert abs(a.created - time.time()) < 60 and a.system_fingerprint == b.system_fingerprint


def case_completion_default_is_16_tokens():
    r = complete(model=NUMBERS, prompt="7", extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 16 and r.choices[0].finish_reason == "length"


def case_completion_of_token_ids():
    ids = [4 + b for b in PROMPT.encode()]
    assert complete(prompt=[2] + ids).choices[0].text == "stone"


def case_completion_of_several_prompts():
    r = complete(model=NUMBERS, prompt=["1", "2", "3"])
    assert [c.text for c in r.choices] == ["one", "two", "three"], r.choices
    assert [c.index for c in r.choices] == [0, 1, 2]


def case_completion_of_lists_of_ids():
    ids = [[3 + b for b in t.encode()] + [1] for t in ("1", "2")]
    assert [c.text for c in complete(model=NUMBERS, prompt=ids).choices] == ["one", "two"]


def case_completion_return_token_ids():
    r = complete(extra_body={"return_token_ids": True})
    assert r.choices[0].token_ids[:5] == [4 + b for b in b"stone"], r
    assert r.choices[0].prompt_token_ids == [2] + [4 + b for b in PROMPT.encode()], r


def case_completion_n_is_seeded():
    a, b = [complete(n=3, temperature=1.5, seed=7, max_tokens=6) for _ in range(2)]
    assert [c.text for c in a.choices] == [c.text for c in b.choices] and len(a.choices) == 3


def case_completion_stop_string():
    r = complete(stop=["on"])
    assert r.choices[0].text == "st" and r.choices[0].finish_reason == "stop", r.choices


def case_completion_stop_as_one_string():
    assert complete(stop="t").choices[0].text == "s"


def case_completion_max_tokens():
    r = complete(max_tokens=2)
    assert r.choices[0].text == "st" and r.choices[0].finish_reason == "length"


def case_completion_logprobs():
    p = complete(logprobs=2).choices[0].logprobs
    assert p.tokens[:5] == list("stone") and all(v <= 0 for v in p.token_logprobs), p
    assert p.text_offset[:5] == [0, 1, 2, 3, 4] and "s" in p.top_logprobs[0]


def case_completion_logit_bias():
    r = complete(logit_bias={str(4 + ord("z")): 100}, max_tokens=3)
    assert r.choices[0].text == "zzz", r.choices


def case_completion_user_is_accepted():
    assert complete(user="alice").choices[0].text == "stone"


def case_completion_greedy_is_repeatable():
    a, b = [complete(temperature=0, max_tokens=30, extra_body={"ignore_eos": True})
            for _ in range(2)]
    assert a.choices[0].text == b.choices[0].text


def case_completion_stream():
    events = list(complete(stream=True))
    assert "".join(e.choices[0].text for e in events) == "stone"
    assert events[-1].choices[0].finish_reason == "stop" and len({e.id for e in events}) == 1


def case_completion_stream_equals_whole():
    more = {"model": NUMBERS, "prompt": "1284", "max_tokens": 300,
            "extra_body": {"ignore_eos": True}}
    whole = complete(**more).choices[0].text
    assert "".join(e.choices[0].text for e in complete(stream=True, **more)) == whole


def case_completion_stream_of_several_prompts():
    text = {}
    for e in complete(model=NUMBERS, prompt=["1", "2", "3"], stream=True):
        for c in e.choices:
            text[c.index] = text.get(c.index, "") + c.text
    assert text == {0: "one", 1: "two", 2: "three"}, text


def case_completion_stream_usage():
    events = list(complete(stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.completion_tokens == 6 and not events[-1].choices
    assert all(e.usage is None for e in events[:-1])


# ---- chat


def case_chat():
    r = chat()
    assert r.object == "chat.completion" and r.choices[0].message.role == "assistant", r
    assert isinstance(r.choices[0].message.content, str) and r.id.startswith("chatcmpl-")


def case_chat_max_completion_tokens():
    r = chat(max_tokens=None, max_completion_tokens=5, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 5 and r.choices[0].finish_reason == "length"


def case_chat_with_history():
    assert chat(messages=HISTORY).usage.prompt_tokens > chat().usage.prompt_tokens


def case_chat_content_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "k3=blue;"},
                                          {"type": "text", "text": "k3?"}]}]
    a, b = chat(temperature=0), chat(messages=parts, temperature=0)
    assert a.usage.prompt_tokens == b.usage.prompt_tokens, (a.usage, b.usage)
    assert a.choices[0].message.content == b.choices[0].message.content


def case_chat_developer_role():
    history = [{"role": "developer", "content": "Be short."}] + HISTORY[1:]
    assert chat(messages=history).usage.prompt_tokens == chat(messages=HISTORY).usage.prompt_tokens


def case_chat_n():
    r = chat(n=3, temperature=1.2, seed=1)
    assert sorted(c.index for c in r.choices) == [0, 1, 2]


def case_chat_logprobs():
    p = chat(logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}).choices[0].logprobs
    assert len(p.content) == 8 and all(len(t.top_logprobs) == 3 for t in p.content)
    assert all(isinstance(b, int) for t in p.content for b in t.bytes)


def case_chat_without_max_tokens():
    assert chat(max_tokens=None, stop=["e"]).choices[0].finish_reason in ("stop", "length")


def case_chat_alias():
    assert chat(model="gpt-4o-mini").model == "gpt-4o-mini"


def case_chat_stream():
    events = list(chat(stream=True, extra_body={"ignore_eos": True}))
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].choices[0].finish_reason == "length"
    assert all(e.object == "chat.completion.chunk" for e in events)


def case_chat_stream_equals_whole():
    more = {"temperature": 0, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    whole = chat(**more).choices[0].message.content
    deltas = [e.choices[0].delta.content or "" for e in chat(stream=True, **more)]
    assert "".join(deltas) == whole


def case_chat_stream_n():
    text = {}
    for e in chat(stream=True, n=2, temperature=1, seed=3):
        for c in e.choices:
            text[c.index] = text.get(c.index, "") + (c.delta.content or "")
    assert sorted(text) == [0, 1]


def case_chat_stream_usage():
    events = list(chat(stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.prompt_tokens > 0 and events[-1].choices == []


def case_chat_stream_helper():
    # The helpers raise where an output ends with "length"; this one ends with its stop string.
    with client().chat.completions.stream(model=CHAT, messages=USER, stop=["m"],
                                          temperature=0) as s:
        kinds = {e.type for e in s}
        final = s.get_final_completion()
    assert "chunk" in kinds and final.choices[0].message.role == "assistant"


def case_chat_parse_without_format():
    r = client().chat.completions.parse(model=CHAT, messages=USER, stop=["m"], temperature=0)
    assert r.choices[0].message.role == "assistant"


def case_chat_neutral_values_are_accepted():
    chat(tools=None, response_format={"type": "text"}, modalities=["text"], store=False,
         presence_penalty=0, frequency_penalty=0, top_p=1, service_tier="auto",
         metadata={"a": "b"}, safety_identifier="x", prompt_cache_key="k")


def case_chat_penalties():
    chat(presence_penalty=1.5, frequency_penalty=-1.5, temperature=0.7, top_p=0.9)


def case_chat_extra_sampling_fields():
    chat(temperature=0.7, extra_body={"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.1,
                                      "min_tokens": 2, "stop_token_ids": [5]})


# ---- models, embeddings


def case_models_list():
    names = {m.id for m in client().models.list()}
    assert {KEYS, NUMBERS, "gpt-4o-mini"} <= names, names


def case_models_retrieve():
    m = client().models.retrieve(KEYS)
    assert m.id == KEYS and m.object == "model" and m.owned_by == "lagan"


def case_models_unknown():
    raises(openai.NotFoundError, lambda: client().models.retrieve("none"), code="model_not_found")


def case_embeddings():
    r = client().embeddings.create(model=NUMBERS, input="12")  # the client asks for base64
    assert len(r.data[0].embedding) == 128
    assert abs(sum(v * v for v in r.data[0].embedding) - 1) < 1e-3


def case_embeddings_of_a_list():
    r = client().embeddings.create(model=NUMBERS, input=["1", "2"], encoding_format="float")
    assert [d.index for d in r.data] == [0, 1] and r.usage.prompt_tokens > 0


def case_embeddings_base64_equals_float():
    raw = httpx.post(service.url + "/v1/embeddings",
                     json={"model": NUMBERS, "input": "7", "encoding_format": "base64"}).json()
    floats = client().embeddings.create(model=NUMBERS, input="7", encoding_format="float")
    assert len(base64.b64decode(raw["data"][0]["embedding"])) == 4 * len(floats.data[0].embedding)


def case_embeddings_of_a_decoder_are_refused():
    raises(openai.BadRequestError,
           lambda: client().embeddings.create(model=KEYS, input="x"), code="unsupported")


# ---- errors are of the right class


def case_error_wrong_type():
    e = raises(openai.BadRequestError, lambda: chat(temperature="hot"), param="temperature")
    assert e.status_code == 400 and e.type == "invalid_request_error"


def case_error_out_of_range():
    raises(openai.BadRequestError, lambda: chat(top_p=1.5), param="top_p")


def case_error_tools_are_refused_by_name():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    raises(openai.BadRequestError, lambda: chat(tools=tools), param="tools", code="unsupported")


def case_error_image():
    m = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]
    e = raises(openai.BadRequestError, lambda: chat(messages=m), code="unsupported")
    assert e.body["param"].startswith("messages[0].content[0]"), e.body


def case_error_messages_missing():
    raises(openai.BadRequestError, lambda: chat(messages=[]))


def case_error_model_unknown():
    raises(openai.NotFoundError, lambda: chat(model="none"), param="model",
           code="model_not_found")


def case_error_too_long():
    e = raises(openai.BadRequestError, lambda: complete(prompt="x" * 3000),
               code="context_length_exceeded")
    assert "maximum context length is 1024 tokens" in e.message


def case_error_in_async():
    async def run(c):
        try:
            await c.chat.completions.create(model="none", messages=USER)
        except openai.NotFoundError:
            return
        raise AssertionError("no error")
    arun(run)


def case_error_stream_refused_before_it_begins():
    raises(openai.BadRequestError, lambda: list(chat(stream=True, temperature=-1)))


def case_error_route_unknown():
    raises(openai.NotFoundError, lambda: client().files.list(), code="unknown_url")


def case_error_responses_route():
    raises(openai.NotFoundError,
           lambda: client().responses.create(model=CHAT, input="x"), code="unsupported")


def case_error_request_id():
    e = raises(openai.NotFoundError, lambda: chat(model="none"))
    assert e.request_id and e.request_id == e.response.headers["x-request-id"]


# ---- the client's own ways


def case_raw_response():
    r = client().chat.completions.with_raw_response.create(
        model=CHAT, messages=USER, max_tokens=4, extra_headers={"X-Request-Id": "mine.1"})
    assert r.headers["x-request-id"] == "mine.1" and r.parse().choices


def case_streaming_response():
    with client().completions.with_streaming_response.create(model=KEYS, prompt=PROMPT) as r:
        assert json.loads(r.read())["choices"][0]["text"] == "stone"


def case_raw_stream_headers():
    r = client().completions.with_raw_response.create(model=KEYS, prompt=PROMPT, stream=True)
    assert r.headers["content-type"].startswith("text/event-stream")
    assert "".join(e.choices[0].text for e in r.parse()) == "stone"


def case_request_id_of_a_response():
    assert chat()._request_id


def case_organization_headers_are_ignored():
    c = client(organization="org", project="proj", default_headers={"X-Api-Key": "k"})
    assert c.completions.create(model=KEYS, prompt=PROMPT).choices[0].text == "stone"


def case_timeout():
    long = {"model": NUMBERS, "prompt": "7", "max_tokens": 60000,
            "extra_body": {"ignore_eos": True}}
    raises_timeout = False
    try:
        client(timeout=0.3).completions.create(**long)
    except openai.APITimeoutError:
        raises_timeout = True
    assert raises_timeout
    wait_no_requests()


def wait_no_requests():
    end = time.monotonic() + 10
    while service.requests():
        assert time.monotonic() < end, "a request is still open"
        time.sleep(0.02)


def case_closing_a_stream_cancels():
    s = complete(model=NUMBERS, prompt="7", max_tokens=60000, stream=True,
                 extra_body={"ignore_eos": True})
    next(iter(s))
    s.close()
    wait_no_requests()


def case_async_closing_cancels():
    async def run(c):
        s = await c.completions.create(
            model=NUMBERS, prompt="7", max_tokens=60000, stream=True,
            extra_body={"ignore_eos": True})
        async for _ in s:
            break
        await s.close()
    arun(run)
    wait_no_requests()


def case_async_task_cancelled():
    async def run(c):
        t = asyncio.create_task(c.completions.create(
            model=NUMBERS, prompt="7", max_tokens=60000, extra_body={"ignore_eos": True}))
        await asyncio.sleep(0.5)
        t.cancel()
        try:
            await t
        except asyncio.CancelledError:
            return
        raise AssertionError("not cancelled")
    arun(run)
    wait_no_requests()


def case_async_chat():
    async def run(c):
        r = await c.chat.completions.create(model=CHAT, messages=USER, max_tokens=4)
        assert r.choices[0].message.role == "assistant"
    arun(run)


def case_async_stream():
    async def run(c):
        s = await c.completions.create(model=KEYS, prompt=PROMPT, stream=True)
        assert "".join([e.choices[0].text async for e in s]) == "stone"
    arun(run)


def case_async_models_and_embeddings():
    async def run(c):
        assert NUMBERS in {m.id async for m in c.models.list()}
        assert (await c.embeddings.create(model=NUMBERS, input="1")).data
    arun(run)


def case_async_64_at_once():
    async def run(c):
        r = await asyncio.gather(*[c.completions.create(model=NUMBERS, prompt=str(i % 10))
                                   for i in range(64)])
        words = "zero one two three four five six seven eight nine".split()
        assert [x.choices[0].text for x in r] == [words[i % 10] for i in range(64)]
    arun(run)


def case_threads():
    c, out = client(), []

    def one():
        out.append(c.completions.create(model=KEYS, prompt=PROMPT).choices[0].text)
    threads = [threading.Thread(target=one) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out == ["stone"] * 16, out


def case_keep_alive_is_used():
    with httpx.Client() as h:
        for _ in range(5):
            r = h.post(service.url + "/v1/completions",
                       json={"model": KEYS, "prompt": PROMPT})
            assert r.json()["choices"][0]["text"] == "stone"
        assert len(h._transport._pool.connections) == 1


def case_unknown_field_is_named():
    r = client().chat.completions.with_raw_response.create(
        model=CHAT, messages=USER, max_tokens=2, extra_body={"no_such": 1})
    assert "no_such" in r.headers["x-lagan-ignored"]


def case_retries_are_observed():
    """Without lagand the status is 503 with Retry-After: the client tries again and succeeds."""
    with tempfile.TemporaryDirectory() as d:
        g = subprocess.Popen(
            [build / "lagan-gateway", "--config", "/dev/null", "--lagand", f"ipc://{d}/none",
             "--listen", f"unix:{d}/http"], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(f"{d}/http"):
                time.sleep(0.01)
            attempts = []
            http = httpx.Client(transport=httpx.HTTPTransport(uds=f"{d}/http"),
                                event_hooks={"response": [lambda r: attempts.append(r)]})
            c = openai.OpenAI(base_url="http://x/v1", api_key="none", http_client=http,
                              max_retries=1)
            try:
                c.completions.create(model=KEYS, prompt="x")
            except openai.InternalServerError as e:
                assert e.status_code == 503 and e.body["code"] == "lagand_unreachable"
            assert len(attempts) == 2, attempts
            assert attempts[0].headers["retry-after"] == "1"
        finally:
            g.terminate()
            g.wait()


service = Service()
failed = 0
cases = {k[5:]: v for k, v in sorted(globals().items()) if k.startswith("case_")}
only = sys.argv[2] if len(sys.argv) > 2 else ""
for name, case in cases.items():
    if only not in name:
        continue
    try:
        case()
        print(f"ok     {name}")
    except Exception as e:  # every case is run
        failed += 1
        print(f"FAILED {name}: {type(e).__name__}: {str(e)[:300]}")
service.stop()
print(f"openai {openai.__version__}: {len(cases)} cases, {failed} failed")
sys.exit(failed > 0)
