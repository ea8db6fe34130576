#!/usr/bin/env python3
"""traces.py - request traces with fixed seeds: the same for every engine that is compared.

    traces.py NAME N >FILE      a line a request: {"isl": prompt tokens, "osl": new tokens}

openorca   as MLPerf's Llama-2-70B set: prompts lognormal, mean 220, 8 .. 1,024; answers mean 288, 1 .. 1,024
cnndm      as MLPerf's Llama-3.1-8B set: prompts lognormal, mean 778, 60 .. 2,540; answers 128
IN:OUT     every request alike
"""
import json
import math
import random
import sys


def lognormal(r, mean, deviation, low, high):
    """A draw beyond high is cut to it a third of the time, as truncated prompts are, else drawn again."""
    s2 = math.log(1 + (deviation / mean) ** 2)
    while True:
        x = round(r.lognormvariate(math.log(mean) - s2 / 2, math.sqrt(s2)))
        if x > high and r.random() < 1 / 3:
            return high
        if low <= x <= high:
            return x


def trace(name, n):
    r = random.Random(name)
    for _ in range(n):
        if name == "openorca":
            yield {"isl": lognormal(r, 232, 230, 8, 1024), "osl": lognormal(r, 312, 285, 1, 1024)}
        elif name == "cnndm":
            yield {"isl": lognormal(r, 778, 340, 60, 2540), "osl": 128}
        else:
            isl, osl = name.split(":")
            yield {"isl": int(isl), "osl": int(osl)}


if __name__ == "__main__":
    for request in trace(sys.argv[1], int(sys.argv[2])):
        print(json.dumps(request))
