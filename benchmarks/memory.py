"""Compare training with and without `remat`: memory, time and loss.

    python benchmarks/memory.py --model CaiT_XXS24 --batch 8

Each form trains in its own process, on each backend in turn. Memory is the peak of the
process minus what it held before the first step (model and weights).
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="CaiT_XXS24", help="model size")
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--steps", type=int, default=3, help="steps timed after the first")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--form", choices=("plain", "remat"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.form:
        return measure(arguments.model, arguments.batch, arguments.steps, arguments.form)

    print(f"{arguments.model}, batch {arguments.batch}, float32")
    print("| backend | form | peak memory of training, MiB | ratio | step, ms | loss |")
    print("|---|---|---|---|---|---|")
    for backend in arguments.backends:
        base = None
        for form in ("plain", "remat"):
            done = subprocess.run(
                [sys.executable, *sys.argv, "--form", form],
                env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            memory, milliseconds, loss = map(float, done.stdout.split()[-3:])
            base = base or memory
            row = f"| {backend} | {form} | {memory:.0f} | {memory / base:.2f} "
            print(f"{row}| {milliseconds:.0f} | {loss:.6f} |", flush=True)


def measure(name: str, size: int, steps: int, form: str) -> None:
    """Print the peak memory (MiB), the median step time (ms) and the last loss of one form."""
    import resource
    import statistics
    import time

    import keras
    import numpy as np

    import keras_vitx as kv

    kv.keep_memory()

    keras.utils.set_random_seed(0)
    model = kv.create_model(name, remat=form == "remat", drop_path=0.0)
    model.compile("sgd", "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    images = random.standard_normal((size, *model.input_shape[1:]), dtype="float32")
    labels = random.integers(model.output_shape[-1], size=size)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    times = []
    for _ in range(1 + steps):
        start = time.perf_counter()
        loss = model.train_on_batch(images, labels)
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print((peak - before) / 2**20, 1000 * statistics.median(times[1:]), float(loss))


if __name__ == "__main__":
    main()
