"""Compare training scanned over depth with the same model unrolled, under JAX.

    KERAS_BACKEND=jax python benchmarks/depth.py --model CaiT_XXS24 --batch 8

Prints the time of the first step (including tracing and compilation) and the median
time of the following steps, which the forms take in turns.
"""

import argparse
import statistics
import time

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

import keras_vitx as kv

FORMS = {
    "unrolled": {"scan": False},
    "scanned": {"scan": True},
    "scanned, remat": {"scan": True, "remat": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="CaiT_XXS24", help="model size")
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--steps", type=int, default=5, help="steps timed after the first")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--optimizer", default="adamw", help="name of a Keras optimizer")
    arguments = parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error(f"the loop over depth requires JAX; the backend is {keras.backend.backend()}")

    models, first = {}, {}
    for name in arguments.forms:
        models[name] = model = make(arguments.model, FORMS[name], arguments.optimizer)
        images, labels = batch(model, arguments.batch)
        first[name] = seconds(model, images, labels)

    steps = {name: [] for name in models}
    for _ in range(arguments.steps):
        for name, model in models.items():
            steps[name].append(seconds(model, images, labels))

    title = f"{arguments.model}, batch {arguments.batch}, float32, JAX, {arguments.optimizer}"
    table = Table("form", "first step, s", "ratio", "step, ms", "min-max", "ratio", title=title)
    base = arguments.forms[0]
    base_first, base = first[base], statistics.median(steps[base])
    for name in models:
        median = statistics.median(steps[name])
        table.add_row(
            name,
            f"{first[name]:.1f}",
            f"{first[name] / base_first:.2f}",
            f"{1000 * median:.0f}",
            f"{1000 * min(steps[name]):.0f}-{1000 * max(steps[name]):.0f}",
            f"{median / base:.2f}",
        )
    Console().print(table)


def make(name: str, options: dict, optimizer: str) -> keras.Model:
    kv.keep_memory()
    keras.utils.set_random_seed(0)
    model = kv.create_model(name)
    for option, value in options.items():
        setattr(model, option, value)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def batch(model: keras.Model, size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.standard_normal((size, *model.input_shape[1:]), dtype="float32")
    return images, random.integers(model.output_shape[-1], size=size)


def seconds(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    start = time.perf_counter()
    model.train_on_batch(images, labels)  # returns the loss, so the step is complete
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
