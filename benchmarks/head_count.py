"""Throughput by number of attention heads, for a fixed width (CaiT, Section 4.5.2, Table 9).

    KERAS_BACKEND=torch python benchmarks/head_count.py [--size ViT_S] [--heads 1 2 3 6 ...]

Parameters and MACs are those of `docs/sizes.md` for every number of heads without head mixing;
a mix adds heads² weights, and heads² MACs for each pair of tokens. Predicts in turns, and prints
images per second (medians) and how much slower than one head that is, beside the paper's
values for ViT_S on a V100.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import keras_vitx as kv

PAPER = {1: 1079, 2: 1056, 3: 1043, 6: 989, 8: 971, 12: 927, 16: 860, 24: 763}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="ViT_S")
    parser.add_argument("--heads", nargs="+", type=int, default=list(PAPER))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    kv.keep_memory()
    models = {h: kv.create_model(arguments.size, num_heads=h) for h in arguments.heads}
    sides = next(iter(models.values())).input_shape[1:]
    images = np.random.default_rng(0).normal(size=(arguments.batch, *sides)).astype("float32")
    for model in models.values():
        model.predict_on_batch(images)
    seconds: dict[int, list[float]] = {heads: [] for heads in models}
    for _ in range(arguments.turns):
        for heads, model in models.items():
            model.predict_on_batch(images)  # The model before it has evicted the caches.
            start = time.perf_counter()
            model.predict_on_batch(images)
            seconds[heads].append(time.perf_counter() - start)
    rates = {heads: arguments.batch / statistics.median(s) for heads, s in seconds.items()}
    first = arguments.heads[0]
    print(f"{arguments.size}, {keras.backend.backend()}, batch {arguments.batch}\n")
    print(f"| heads | images/s | over {first} | paper, V100 | over {first} |")
    print("|---|---|---|---|---|")
    for heads, rate in rates.items():
        known = heads in PAPER and first in PAPER
        paper = (PAPER[heads], f"{PAPER[heads] / PAPER[first]:.2f}") if known else ("", "")
        print(f"| {heads} | {rate:.1f} | {rate / rates[first]:.2f} | {paper[0]} | {paper[1]} |")


if __name__ == "__main__":
    main()
