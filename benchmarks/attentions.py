"""Parameters, MACs and time per training step of the attentions of other papers, as a table.

    KERAS_BACKEND=torch python benchmarks/attentions.py 11

Each is put into a ViT-Ti at 224 pixels. In every round (the argument is their number), each network
takes one step of 4 images. The time is the median of its ratios to the plain network's step in the
same round, so that a shared machine disturbs both.
"""

import runpy
import sys
import time
from pathlib import Path

import numpy as np

import keras_vitx as kv
from keras_vitx.layers import Attention, RotaryEmbedding
from keras_vitx.layers.normalizers import NORMALIZERS

EXAMPLES = Path(__file__).parents[1] / "examples" / "attention"


class NotFused(Attention):
    """Plain attention that computes its maps."""

    fused = None


def networks() -> dict:
    """Return a network for each attention, by name."""

    def example(name, kind):
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))[kind]

    norm, alibi = example("qk_norm", "QKNorm"), example("alibi_2d", "ALiBiAttention")
    difference = example("differential", "Difference")
    residual = example("value_residual", "ValueResidualAttention")

    def normalized(name):
        return lambda index: Attention(3, normalizer=name)

    attentions = {
        "plain": lambda index: Attention(3),
        "plain, not fused": lambda index: NotFused(3),
        **{name: normalized(name) for name in NORMALIZERS},
        "gate per head": lambda index: Attention(3, gate="head"),
        "gate per element": lambda index: Attention(3, gate="element"),
        "QK-norm": lambda index: Attention(3, on_queries_keys=[norm()]),
        "differential": lambda index: Attention(6, head_size=64, on_weights=[difference()]),
        "RoPE": lambda index: Attention(3, on_queries_keys=[RotaryEmbedding((14, 14), 1)]),
        "ALiBi": lambda index: alibi(3),
        "value residual": lambda index: residual(3, first=index == 0),
    }
    models = {name: kv.ViT_Ti(attention=each) for name, each in attentions.items()}
    return {**models, "4 registers": kv.ViT_Ti(register_tokens=4)}


def main() -> None:
    images = np.random.default_rng(0).normal(size=(4, 224, 224, 3)).astype("float32")
    batch, models = (images, np.arange(4)), networks()
    times = {name: [] for name in models}
    for model in models.values():
        model.compile("adamw", "sparse_categorical_crossentropy")
        model.train_on_batch(*batch)
    for _ in range(int(sys.argv[1])):
        for name, model in models.items():
            started = time.perf_counter()
            model.train_on_batch(*batch)
            times[name].append(time.perf_counter() - started)
    print("| attention | parameters, M | GMACs | step |\n|---|---|---|---|")
    for name, model in models.items():
        ratio = np.median(np.divide(times[name], times["plain"]))
        count, macs = model.count_params() / 1e6, kv.count_macs(model) / 1e9
        print(f"| {name} | {count:.3f} | {macs:.3f} | {ratio:.2f} |")
    print(f"\nA step of the plain network takes {1e3 * np.median(times['plain']):.0f} ms.")


if __name__ == "__main__":
    main()
