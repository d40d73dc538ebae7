"""Compare three idioms of transfer learning: a cut graph, a nested call, `as_chain`.

    python benchmarks/transfer.py

Trains the same head on the same network (by default 12 blocks of width 96) and prints, per
backend, the time of the first step (including tracing and compilation) and the median time of
the following steps. Each backend runs in one process, its idioms in turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BACKENDS = ("jax", "tensorflow", "torch")
IDIOMS = ("cut graph", "nested call", "as_chain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=12, help="blocks")
    parser.add_argument("--dim", type=int, default=96, help="width of a token")
    parser.add_argument("--batch", type=int, default=32, help="images per step")
    parser.add_argument("--steps", type=int, default=5, help="steps timed after the first")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments)))
        return

    from rich.console import Console
    from rich.table import Table

    title = f"{arguments.depth} blocks, width {arguments.dim}, batch {arguments.batch}, AdamW"
    table = Table("backend", "idiom", "first step, s", "step, ms", "ratio", title=title)
    for backend in arguments.backends:
        process = subprocess.run(
            [sys.executable, __file__, "--measure", *sys.argv[1:]],
            env={**os.environ, "KERAS_BACKEND": backend},
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise SystemExit(process.stderr)
        times = json.loads(process.stdout.splitlines()[-1])
        medians = {idiom: statistics.median(times[idiom][1:]) for idiom in IDIOMS}
        for idiom in IDIOMS:
            table.add_row(
                backend,
                idiom,
                f"{times[idiom][0]:.1f}",
                f"{1000 * medians[idiom]:.0f}",
                f"{medians[idiom] / medians['cut graph']:.2f}",
            )
        table.add_section()
    Console().print(table)


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds per step of each idiom, on the backend of this process."""
    import numpy as np

    import keras_vitx as kv

    kv.keep_memory()
    models = {idiom: make(idiom, arguments) for idiom in IDIOMS}
    random = np.random.default_rng(0)
    images = random.standard_normal((arguments.batch, 64, 64, 3), dtype="float32")
    labels = random.integers(5, size=arguments.batch)
    times: dict[str, list[float]] = {idiom: [] for idiom in IDIOMS}
    for _ in range(1 + arguments.steps):
        for idiom, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(images, labels)  # returns the loss, so the step is complete
            times[idiom].append(time.perf_counter() - start)
    return times


def make(idiom: str, arguments: argparse.Namespace):
    """Return a compiled model: a CaiT base and a new head, combined by the given idiom."""
    import keras

    import keras_vitx as kv

    keras.utils.set_random_seed(0)
    base = kv.CaiT(
        dim=arguments.dim,
        depth=arguments.depth,
        num_heads=4,
        patch_size=8,
        input_shape=(64, 64, 3),
        include_top=False,
        pooling="token",
    )
    head = keras.layers.Dense(5, activation="softmax")
    if idiom == "nested call":
        images = keras.Input((64, 64, 3))
        model = keras.Model(images, head(base(images)))
    else:
        model = keras.Model(base.input, head(base.output))
    if idiom == "as_chain":
        model = kv.as_chain(model, like=base)
    model.compile("adamw", "sparse_categorical_crossentropy")
    return model


if __name__ == "__main__":
    main()
