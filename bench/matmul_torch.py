#!/usr/bin/env python3
"""matmul_torch.py [ROWS...] - the matmuls of bench_matmul with PyTorch, as its peer.

Graphs, cold weights. One line per matrix: TB/s of weights up to 64 rows, TFLOP/s beyond, then the
spread. chain: the four matrices of a layer.
"""
import sys
import time

import torch

ROWS = [int(a) for a in sys.argv[1:]] or [1, 2, 4, 8, 16, 32, 64, 256, 1024, 8192]
MATRIX = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336),
          "lm_head": (128256, 4096)}
LAYER = ["qkv", "o", "gate_up", "down"]
CHAIN = 8
pool = torch.randn(7 << 28, dtype=torch.bfloat16, device="cuda") * 0.02
x_all = torch.randn(8192 * 14336, dtype=torch.bfloat16, device="cuda")
y_all = torch.empty(8192 * 128256, dtype=torch.bfloat16, device="cuda")


def weight(at, n, k):
    return pool[at : at + n * k].view(n, k)


def one(name, rows, i):
    n, k = MATRIX[name]
    copies = pool.numel() // (n * k)
    torch.mm(x_all[: rows * k].view(rows, k), weight(i % copies * n * k, n, k).t(),
             out=y_all[: rows * n].view(rows, n))


def chain(rows, i):
    at = i * sum(n * k for n, k in (MATRIX[m] for m in LAYER))
    for name in LAYER:
        n, k = MATRIX[name]
        torch.mm(x_all[: rows * k].view(rows, k), weight(at, n, k).t(),
                 out=y_all[: rows * n].view(rows, n))
        at += n * k


def measure(work, n, rest):
    for i in range(n):
        work(i)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for i in range(n):
            work(i)
    g.replay()
    torch.cuda.synchronize()
    us = []
    for _ in range(9):
        time.sleep(rest)  # as in bench_matmul
        since = time.perf_counter()
        g.replay()
        torch.cuda.synchronize()
        us.append((time.perf_counter() - since) * 1e6 / n)
    return sorted(us)


print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
print("rows                " + "".join(f"  {r:6}" for r in ROWS))
for name in list(MATRIX) + ["chain"]:
    figures, spread = "", ""
    for rows in ROWS:
        few = rows <= 64
        if name == "chain":
            us = measure(lambda i: chain(rows, i), CHAIN if few else 2, 0 if few else 0.02)
            size = 2 * sum(n * k for n, k in (MATRIX[m] for m in LAYER))
        else:
            weights = MATRIX[name][0] * MATRIX[name][1]
            took = weights * (2 / 4e6 if few else 2e-6 * rows / 700)
            us = measure(lambda i: one(name, rows, i), int(2000 / took) + 2, 0 if few else 0.02)
            size = 2 * MATRIX[name][0] * MATRIX[name][1]
        figures += f"  {size / us[4] / 1e6:6.3f}" if few else f"  {size * rows / us[4] / 1e6:6.1f}"
        spread += f"  {100 * (us[-1] - us[0]) / us[4]:4.1f} %"
    print(f"{name:20}{figures}\n{'':20}{spread}", flush=True)
