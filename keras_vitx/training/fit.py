"""Train a model by a recipe."""

import csv
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import keras

from keras_vitx import backend, data
from keras_vitx.files import written_whole
from keras_vitx.training import recipes
from keras_vitx.training.head import Head, check_head, match_head
from keras_vitx.training.losses import SmoothedCrossentropy
from keras_vitx.training.optimizer import make_optimizer
from keras_vitx.training.precision import set_precision
from keras_vitx.training.recipe import Recipe


def fit(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    head: Head = "match",
    output: str | os.PathLike | None = None,
    precision: str | None = None,
    seed: int = 0,
    verbose: str | int = "auto",
    strict: bool = False,
    **changes: Any,
) -> keras.callbacks.History:
    """Train `model` in place; it ends with the weights of its best epoch.

    On a CPU, the process keeps freed memory from here on (`keras_vitx.keep_memory`).

    Args:
        model: A classifier of the zoo.
        source: What `keras_vitx.data.pipelines` takes: `"fashion_mnist"`, a
            folder, `"tfds:NAME"`, arrays, an `.npz`; or opened `Pipelines`.
        recipe: Name of a recipe, or a `Recipe`.
        head: What becomes of a trained head. `"match"` compares the class names of
            model and data: the same names in another order permute the head, other
            names initialise it anew. `"keep"` leaves it as it is, `"fresh"`
            initialises it anew.
        output: Folder for `best.keras` (the model after its best epoch),
            `history.csv` (a row an epoch) and `run.json` (settings and result).
            None writes nothing.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`; None
            leaves the model as it is.
        seed: Seed of the order and the augmentation of the images.
        verbose: As in `keras.Model.fit`.
        strict: Whether an image that can't be decoded is an error.
        **changes: Settings of the recipe to change, e.g. `epochs=3`.

    Returns:
        The history, as `keras.Model.fit` returns it.

    Raises:
        ValueError: for data that doesn't fit the model, or an `output` that
            already holds a run.
        OSError: for data that can't be read.
    """
    backend.keep_memory()
    recipe = recipes.get(recipe).but(**changes)
    check_head(head)
    output = None if output is None else _new_folder(output)
    if not isinstance(source, data.Pipelines):
        source = data.pipelines(
            source,
            model,
            recipe.batch_size,
            augmentation=recipe.augmentation,
            seed=seed,
            strict=strict,
        )
    if precision is not None:
        set_precision(model, precision)
    match_head(model, source.class_names, head)
    model.compile(
        make_optimizer(model, recipe, steps_per_epoch=len(source.train)),
        SmoothedCrossentropy(recipe.label_smoothing, from_logits=_gives_logits(model)),
        metrics=["accuracy"],
    )
    best = KeepBest(output)
    start = time.perf_counter()
    history = model.fit(
        source.train,
        validation_data=source.validation,
        epochs=recipe.epochs,
        callbacks=[best, *_epochs_counted(source.train)],
        shuffle=False,
        verbose=verbose,
    )
    if output is not None:
        _write_run(output, model, recipe, best, seed, precision, source, start)
    return history


def _epochs_counted(train):
    """Return a callback that tells our own batches the epoch; other datasets count themselves."""
    if not hasattr(train, "set_epoch"):
        return []
    return [
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: train.set_epoch(epoch))
    ]


class KeepBest(keras.callbacks.Callback):
    """Keep the weights of the epoch with the best validation accuracy.

    At the end of training the model has them back.

    Args:
        output: Folder that `best.keras` and `history.csv` are written to after
            each epoch, whole or not at all; None writes nothing.
    """

    def __init__(self, output: Path | None = None):
        super().__init__()
        self.output = output
        self.epoch = None
        self.accuracy = -1.0
        self.weights = None
        self.rows: list[dict[str, float]] = []

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch + 1, **{name: float(v) for name, v in logs.items()}})
        if logs["val_accuracy"] > self.accuracy:
            self.epoch, self.accuracy = epoch + 1, float(logs["val_accuracy"])
            self.weights = self.model.get_weights()
            if self.output is not None:
                with written_whole(self.output / "best.keras") as path:
                    self.model.save(path)
        if self.output is not None:
            with written_whole(self.output / "history.csv") as path, path.open("w") as file:
                writer = csv.DictWriter(file, self.rows[0])
                writer.writeheader()
                writer.writerows(self.rows)

    def on_train_end(self, logs=None):
        if self.weights is not None:
            self.model.set_weights(self.weights)


def _new_folder(output):
    output = Path(output)
    if (output / "history.csv").exists() or (output / "best.keras").exists():
        raise ValueError(
            f"`output` already holds a training run, which stays as it is: {output}. "
            "Give another folder."
        )
    output.mkdir(parents=True, exist_ok=True)
    return output


def _gives_logits(model):
    activation = getattr(model.layers[-1], "activation", None)
    return activation is not keras.activations.softmax


def _write_run(output, model, recipe, best, seed, precision, source, start):
    run = {
        "model": model.name,
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "precision": precision,
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "train_images": source.train_size,
        "validation_images": source.validation_size,
        "best_epoch": best.epoch,
        "validation_accuracy": best.accuracy,
        "seconds": round(time.perf_counter() - start, 1),
    }
    with written_whole(output / "run.json") as path:
        path.write_text(json.dumps(run, indent=2) + "\n")
