"""Milliseconds per training step: the compiled step alone, and in each loop around it.

    KERAS_BACKEND=jax python benchmarks/fit_overhead.py --model ViT_Mini --batch 128

One compiled model and one set of images in memory; the forms take turns of a number of steps:

- step: `model.train_function`, which Keras compiles, on one batch of tensors.
- train_on_batch: the same batch.
- fit, arrays: `model.fit` on the whole images, preprocessed, as NumPy arrays.
- fit, pipeline: `model.fit` on `kv.data.pipelines(..., augmentation=None).train`.
- kv.fit: on the same images, without augmentation.
- kv.fit, augmented: with the augmentation of the recipe `finetune`.

Times are medians over the turns of the mean of a turn, without the turn's first two steps. The
ratio is the median over the turns of the ratio to the step alone.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

import keras_vitx as kv

UNTIMED = 2


class Ends(keras.callbacks.Callback):
    """Record when each step ends."""

    # Keras may call it from another thread, so that steps do not wait for their losses.
    async_safe = True

    def on_train_begin(self, logs=None):
        self.times: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())


def forms_of(model: keras.Model, size: int, steps: int) -> dict[str, Callable[[], float]]:
    """Return functions that take `steps` steps and return the seconds per step."""
    random = np.random.default_rng(0)
    shape = (size * steps, *model.input_shape[1:])
    images = random.integers(256, size=shape, dtype="uint8")
    labels = random.integers(model.output_shape[-1], size=len(images))
    ready = np.concatenate([kv.preprocess_input(image[None], model) for image in images])
    source = kv.data.load_dataset((images, labels), validation_split=0)
    plain = kv.data.pipelines(source, model, size, augmentation=None).train
    batch = [keras.ops.convert_to_tensor(array[:size]) for array in (ready, labels)]
    settings = {"recipe": "finetune", "epochs": 1, "batch_size": size, "warmup_epochs": 0}

    def step() -> float:
        with BareStep(model, batch) as one:
            return seconds(lambda: float(one()["loss"]), steps)

    def train_on_batch() -> float:
        return seconds(lambda: model.train_on_batch(*batch), steps)

    def timed(fit: Callable, *arguments, **settings) -> float:
        ends = Ends()
        fit(*arguments, **settings, callbacks=[ends], verbose=0)
        times = sorted(ends.times)[UNTIMED - 1 :]
        return (times[-1] - times[0]) / (len(times) - 1)

    return {
        "step": step,
        "train_on_batch": train_on_batch,
        "fit, arrays": lambda: timed(model.fit, ready, labels, size),
        "fit, pipeline": lambda: timed(model.fit, plain, shuffle=False),
        "kv.fit": lambda: timed(kv.fit, model, source, augmentation=None, **settings),
        "kv.fit, augmented": lambda: timed(kv.fit, model, source, **settings),
    }


def seconds(step: Callable[[], object], steps: int) -> float:
    """Return the seconds per step, without the first ones."""
    for _ in range(UNTIMED):
        step()
    start = time.perf_counter()
    for _ in range(steps - UNTIMED):
        step()
    return (time.perf_counter() - start) / (steps - UNTIMED)


class BareStep:
    """The step that Keras compiles, called without anything around it.

    Under JAX, the values of the variables pass from step to step, and are assigned at the end.
    """

    def __init__(self, model: keras.Model, batch: list):
        self.model, self.batch = model, batch

    def __enter__(self) -> Callable[[], dict]:
        model = self.model
        if not model.optimizer.built:
            model.train_on_batch(*self.batch)
        model.make_train_function()
        self.groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        self.state = [[variable.value for variable in group] for group in self.groups]
        return self.on_jax if keras.backend.backend() == "jax" else self.elsewhere

    def on_jax(self) -> dict:
        logs, self.state = self.model.train_function(tuple(self.state), iter([(*self.batch, None)]))
        return logs

    def elsewhere(self) -> dict:
        data = [(*self.batch, None)]
        on_torch = keras.backend.backend() == "torch"
        return self.model.train_function(data if on_torch else iter(data))

    def __exit__(self, *error) -> None:
        if keras.backend.backend() == "jax":
            for group, values in zip(self.groups, self.state, strict=True):
                for variable, value in zip(group, values, strict=True):
                    variable.assign(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ViT_Mini", help="model size")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--steps", type=int, default=20, help="steps per turn")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    kv.keep_memory()
    keras.utils.set_random_seed(0)
    model = kv.create_model(arguments.model)
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.AdamW(1e-4), loss, metrics=["accuracy"])
    forms = forms_of(model, arguments.batch, arguments.steps)
    for form in forms.values():  # This compiles.
        form()
    times = {name: [] for name in forms}
    for _ in range(arguments.turns):
        for name, form in forms.items():
            times[name].append(form())
    title = f"{arguments.model}, batch {arguments.batch}, float32, {keras.backend.backend()}"
    table = Table("form", "ms per step", "min-max", "ratio", title=title)
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["step"], strict=True))
        table.add_row(
            name,
            f"{1000 * statistics.median(found):.1f}",
            f"{1000 * min(found):.1f}-{1000 * max(found):.1f}",
            f"{ratio:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
