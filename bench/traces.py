#!/usr/bin/env python3
"""traces.py - request traces with fixed seeds, for comparable runs of engines and for lagan-sim.

    traces.py NAME N [--rate R] >FILE

One line per request: {"arrival_s", "isl": prompt tokens, "osl": new tokens}. NAME:

openorca     like the Llama-2-70B set of MLPerf: prompts lognormal, mean 220, 8 to 1,024; outputs
             mean 288, 1 to 1,024
cnndm        like the Llama-3.1-8B set of MLPerf: prompts lognormal, mean 778, 60 to 2,540;
             outputs 128
chat         one of 8 system prompts of 1,000 to 2,000 tokens (Zipf), then 1 to 6 user messages of
             about 60 tokens with replies of about 200; with prefix_id, prefix_len, session and turn
longctx      prompts of 8,000 to 12,000 tokens, outputs of 480 to 720
summ-encdec  encoder inputs with a mean of 780 tokens, 64 to 1,024; outputs mean 66, 16 to 142;
             with encdec
IN:OUT       all requests with these lengths

R: requests per second, a Poisson process. Without R all requests arrive at time 0, but the messages
of a chat arrive one after the other.
"""
import heapq
import json
import math
import random
import sys


def lognormal(r, mean, deviation, low, high):
    """A value above high becomes high with probability 1/3 (truncation), else a new draw."""
    s2 = math.log(1 + (deviation / mean) ** 2)
    while True:
        x = round(r.lognormvariate(math.log(mean) - s2 / 2, math.sqrt(s2)))
        if x > high and r.random() < 1 / 3:
            return high
        if low <= x <= high:
            return x


def normal(r, mean, deviation, low, high):
    return max(low, min(high, round(r.gauss(mean, deviation))))


def chat(r, start, session, prefixes):
    """The requests of one conversation: each prompt contains all earlier messages."""
    which = r.choices(range(len(prefixes)), [1 / (k + 1) for k in range(len(prefixes))])[0]
    context, at = prefixes[which], start
    for turn in range(r.randint(1, 6)):
        isl, osl = lognormal(r, 60, 60, 4, 800), lognormal(r, 200, 150, 8, 900)
        yield {"arrival_s": at, "isl": context + isl, "osl": osl, "prefix_id": which,
               "prefix_len": prefixes[which], "session": session, "turn": turn}
        context += isl + osl
        at += r.uniform(2, 12) + osl * 0.02


def chats(r, rate):
    """Overlapping conversations, by time of arrival."""
    prefixes = [r.randint(1000, 2000) for _ in range(8)]
    waiting, at, session = [], 0.0, 0
    while True:
        while not waiting or waiting[0][0] >= at:
            for q in chat(r, at, session, prefixes):
                heapq.heappush(waiting, (q["arrival_s"], session, q["turn"], q))
            session += 1
            at += r.expovariate(rate / 3.5) if rate else 0.01
        yield heapq.heappop(waiting)[3]


def alone(r, name):
    if name == "openorca":
        return {"isl": lognormal(r, 232, 230, 8, 1024), "osl": lognormal(r, 312, 285, 1, 1024)}
    if name == "cnndm":
        return {"isl": lognormal(r, 778, 340, 60, 2540), "osl": 128}
    if name == "longctx":
        return {"isl": r.randint(8000, 12000), "osl": r.randint(480, 720)}
    if name == "summ-encdec":
        return {"isl": lognormal(r, 860, 420, 64, 1024), "osl": normal(r, 66, 20, 16, 142),
                "encdec": True}
    isl, osl = name.split(":")
    return {"isl": int(isl), "osl": int(osl)}


def trace(name, n, rate=0.0):
    r = random.Random(name)
    if name == "chat":
        for q, _ in zip(chats(r, rate), range(n)):
            yield q
        return
    at = 0.0
    for _ in range(n):
        q = alone(r, name)
        if rate:
            at += r.expovariate(rate)
            q["arrival_s"] = at
        yield q


if __name__ == "__main__":
    rate = float(sys.argv[sys.argv.index("--rate") + 1]) if "--rate" in sys.argv else 0.0
    for request in trace(sys.argv[1], int(sys.argv[2]), rate):
        if "arrival_s" in request:
            request["arrival_s"] = round(request["arrival_s"], 6)
        print(json.dumps(request))
