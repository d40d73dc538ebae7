"""Find a learning rate."""

import os
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import compile_arguments
from keras_vitx.training import recipes
from keras_vitx.training.batches import labels_of, load_batches, steps_of
from keras_vitx.training.compiling import compile_for
from keras_vitx.training.figures import draw_rates
from keras_vitx.training.optimizer import optimizer_of
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.wrapped import BatchRange


def find_learning_rate(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    low: float = 1e-7,
    high: float = 1.0,
    steps: int = 100,
    path: str | os.PathLike | None = None,
    seed: int = 0,
    **settings: Any,
) -> float:
    """Return the learning rate at which the loss falls fastest; the model is left as it was.

    The rate rises exponentially from `low` to `high` (Smith, 2017, Section 3.3), until a moving
    average of the loss is four times its minimum so far.

    ```python
    rate = kv.training.find_learning_rate(model, "photos", path="rates.png")
    kv.fit(model, "photos", learning_rate=rate)
    ```

    Args:
        model: A classifier.
        source: As in `fit`.
        recipe: As in `fit`; its schedule is not used.
        low: The first rate.
        high: The last rate.
        steps: Number of steps.
        path: Path of a plot of the loss by rate; None for no plot.
        seed: As in `fit`.
        **settings: As in `fit`.

    Raises:
        ValueError: as in `fit`, or if the numbers are not in order.
        ImportError: if `path` is given and matplotlib is not installed.
    """
    if not 0 < low < high or steps < 10:
        raise ValueError(
            "`low` must be above 0 and below `high`, and `steps` at least 10. "
            f"Received: low={low}, high={high}, steps={steps}."
        )
    recipe = recipes.get(recipe).but(**{**settings, "ema": None, "min_updates": None})
    recipe, batches = load_batches(source, model, recipe, settings, seed=seed)
    train, weights = batches.train, model.get_weights()
    if isinstance(train, keras.utils.PyDataset):
        train = BatchRange(train, 0, steps)
    if arguments := compile_arguments(model):
        arguments["optimizer"] = optimizer = model.optimizer
        copied = type(optimizer).from_config(optimizer.get_config())
        model.compile(**{**arguments, "optimizer": copied})
    compile_for(model, recipe, steps_of(batches.train), lambda: labels_of(batches.train))
    schedule = keras.optimizers.schedules.ExponentialDecay(low, steps, high / low)
    optimizer_of(model).learning_rate = schedule
    record = _Losses()
    try:
        model.fit(train, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[record])
    finally:
        model.set_weights(weights)
        if arguments:
            model.compile(**arguments)
    losses = np.array(record.smoothed)
    rates = low * (high / low) ** (np.arange(len(losses)) / steps)
    # The first averages are of few losses, so that a fall among them is noise.
    best = float(rates[5:][np.gradient(losses, np.log(rates))[5:].argmin()])
    if path is not None:
        draw_rates(rates, losses, best, path)
    return best


class _Losses(keras.callbacks.Callback):
    """The loss of each step, as a bias-corrected moving average."""

    momentum = 0.9

    def on_train_begin(self, logs=None):
        self.total, self.average, self.smoothed = 0.0, 0.0, []

    def on_train_batch_end(self, batch, logs=None):
        # Keras logs the running mean of the epoch.
        previous, self.total = self.total, float(logs["loss"]) * (batch + 1)
        loss = self.total - previous
        self.average = self.momentum * self.average + (1 - self.momentum) * loss
        smoothed = self.average / (1 - self.momentum ** (batch + 1))
        if not np.isfinite(smoothed) or smoothed > 4 * min([smoothed, *self.smoothed]):
            self.model.stop_training = True
            return
        self.smoothed.append(smoothed)
