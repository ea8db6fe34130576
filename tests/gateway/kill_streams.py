#!/usr/bin/env python3
"""kill_streams.py BUILDDIR [SECONDS [SEED]] - streams of lagan-gateway while processes die.

32 clients ask for greedy streams; every 1 to 3 s a worker or lagand is killed with SIGKILL. Each
complete stream must equal the undisturbed stream. A request that begins without lagand, or
before a new lagand has loaded the model, may get 503; any other status, error event or end is a
failure. Standard library only."""
import collections
import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
source = pathlib.Path(__file__).resolve().parent.parent.parent
folder = tempfile.TemporaryDirectory()
run = pathlib.Path(folder.name) / "run"
log = open(pathlib.Path(folder.name) / "log", "w+")
CLIENTS, PROMPTS = 32, 20


def lagand():
    return subprocess.Popen(
        [build / "lagand", "--runtime-dir", run, "--model", source / "models" / "numbers-t5",
         "--device", "cpu", "--set", "kv.memory=64MiB"], stderr=log)


def stream(prompt):
    """Returns (outcome, text)."""
    c = http.client.HTTPConnection(address, timeout=90)
    body = {"prompt": str(prompt), "max_tokens": 400, "logit_bias": {"1": -100}, "stream": True}
    try:
        c.request("POST", "/v1/completions", json.dumps(body),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return f"status {r.status} {json.loads(r.read())['error']['code']}", ""
        text = ""
        for line in r:
            if line == b"data: [DONE]\n":
                return "done", text
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return "event " + event["error"]["code"], text
                text += event["choices"][0]["text"]
        return "cut", text
    except (OSError, http.client.HTTPException) as e:
        return type(e).__name__, ""
    finally:
        c.close()


def workers():
    r = subprocess.run([build / "laganctl", "--connect", f"ipc://{run}/api.sock", "workers",
                        "list", "--json"], capture_output=True, text=True)
    return [w["pid"] for w in json.loads(r.stdout)] if r.returncode == 0 else []


def client(number):
    draw = random.Random(seed * 1000 + number)
    while time.monotonic() < end:
        prompt = draw.randrange(PROMPTS)
        outcome, text = stream(prompt)
        if outcome == "done" and text != expected[prompt]:
            outcome = "another text"
        with lock:
            outcomes[outcome] += 1
        if outcome.startswith("status 503"):
            time.sleep(0.2)


print(f"seed {seed}")
daemon = lagand()
gateway = subprocess.Popen(
    [build / "lagan-gateway", "--config", "/dev/null", "--announce", "--lagand",
     f"ipc://{run}/api.sock", "--listen", "127.0.0.1:0", "--shutdown-timeout", "1s"],
    stdout=subprocess.PIPE, stderr=log, text=True)
address = gateway.stdout.readline().strip().removeprefix("http://")
expected = {}
for p in range(PROMPTS):
    while True:
        how, expected[p] = stream(p)
        if how == "done":
            break
        time.sleep(0.1)
lock, outcomes, deaths = threading.Lock(), collections.Counter(), collections.Counter()
end = time.monotonic() + seconds
threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
for t in threads:
    t.start()
chance = random.Random(seed)
while time.monotonic() < end - 3:
    time.sleep(chance.uniform(1, 3))
    if chance.random() < 0.6:
        for pid in workers():
            try:
                os.kill(pid, 9)
                deaths["workers"] += 1
            except ProcessLookupError:
                pass
    else:
        daemon.kill()
        daemon.wait()
        deaths["lagand"] += 1
        daemon = lagand()
for t in threads:
    t.join()
for process in gateway, daemon:
    process.terminate()
    assert process.wait(60) == 0, f"{process.args[0]} exited with {process.returncode}"
print(f"deaths: {dict(deaths)}; streams: {dict(outcomes)}")
allowed = "done", "status 503 lagand_unreachable", "status 503 loading"
wrong = [o for o in outcomes if o not in allowed]
if wrong:
    log.seek(0)
    print(log.read()[-3000:])
sys.exit(bool(wrong))
