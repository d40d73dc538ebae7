"""Train a model by a recipe."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vitx.checks import check_argument
from keras_vitx.outputs import outputs_of
from keras_vitx.provenance import base_of
from keras_vitx.serialized import check_registered
from keras_vitx.training import recipes
from keras_vitx.training.callbacks import (
    BestCheckpoint,
    StopAtNonFinite,
    Throughput,
    Validate,
    check_callbacks,
    verbosity,
)
from keras_vitx.training.devices import check_devices
from keras_vitx.training.prepare import (
    Head,
    apply_settings,
    compile_for,
    match_head,
    train_head,
    users_arguments,
)
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import checkpoints_in, resumable_fit
from keras_vitx.training.run import RunRecord, name_of
from keras_vitx.training.source import fingerprint, open_data

log = logging.getLogger(__name__)
DATA = ("validation_split", "fraction", "workers")
"""Arguments that `fit` passes on to `data.load_dataset` and `data.pipelines`."""
OWN = "With an optimizer and a loss, or with batches, of the user's own."
"""What the record of a training says in place of a recipe that was not used whole."""


def fit(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    teacher: keras.Model | None = None,
    head: Head = "match",
    class_weight: Mapping[Any, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    output: str | os.PathLike | None = None,
    save_every: int | None = None,
    keep: int = 3,
    resume: bool = False,
    seed: int = 0,
    verbose: str | int = "auto",
    **settings: Any,
) -> keras.callbacks.History:
    """Train `model` in place by a recipe, and restore the weights of its result.

    `docs/training.md` has the equivalent lines of plain `model.fit`, and says which epoch is the
    result, what is written, and what an error leaves behind.

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one. If it is compiled, its
            own optimizer, loss and metrics are used instead of the recipe's.
        source: Any source that `keras_vitx.data.load_dataset` accepts or returns; `Pipelines`; or
            your own preprocessed batches, as for Keras's `fit`.
        recipe: Name of a recipe, the directory of a run, or a `Recipe`.
        teacher: A classifier whose predictions are additional labels (`Distillation`).
        head: `"match"` permutes a trained head if the class names of the data are in another order,
            or reinitializes it if they differ; `"keep"` leaves it, `"fresh"` reinitializes it.
        class_weight: Weight in the training loss by label or class name; others weigh 1.
        callbacks: Called after those of `fit`, so their logs include the `val_` entries.
        output: Directory for `best.keras` or `last.keras`, `history.csv`, `curves.png`, `run.json`,
            `held_out.txt` and `checkpoints/`; None to write nothing.
        save_every: Steps between checkpoints; None for one per epoch.
        keep: Number of checkpoints to keep.
        resume: Whether to continue the run in `output` bit for bit, if there is one.
        seed: Seed of the split, order and augmentation of the images.
        verbose: As in `keras.Model.fit`.
        **settings: Settings of the recipe to change, such as `epochs=3` or
            `precision="mixed_bfloat16"`, see `Recipe.replace`; and the arguments
            `validation_split` (default 0.1), `fraction` and `workers` of
            `keras_vitx.data.load_dataset` and `pipelines`.

    Returns:
        The history, as `keras.Model.fit` returns it. Its attribute `test` holds the loss and
        metrics on the test images by name, or None.

    Raises:
        ValueError: if the data don't fit the model or the devices, `output` can't be used, or the
            files in it could not be read again, as a class is not registered with Keras.
        OSError: if the data can't be read, or a checkpoint can't be written.
        FloatingPointError: if the loss or the weights become NaN or infinite.
    """
    recipe, devices = recipes.get(recipe), settings.pop("devices", None)
    arguments = {name: settings.pop(name) for name in DATA if name in settings}
    _check(head, output, resume or save_every, settings)
    recipe = recipe.replace(**settings)
    own_loss = "loss" in users_arguments(model)
    if not own_loss:
        outputs_of(model)  # An error if the model is no classifier.
    if output is not None:
        check_registered(model)
    check_devices(devices, model)
    with RunRecord(output, resume, source) as run:
        data = open_data(
            source, model, recipe, settings, own_loss=own_loss, teacher=teacher,
            class_weight=class_weight, seed=seed, **arguments,
        )  # fmt: skip
        recipe, batches = data.recipe, data.batches
        apply_settings(model, recipe)
        head = match_head(model, batches.class_names, head)
        options = {
            "class_weight": data.class_weight,
            "steps_per_epoch": recipe.steps_per_epoch,
            "verbose": verbosity(verbose),
        }
        if recipe.freeze_epochs and not (output and checkpoints_in(run.checkpoints)):
            train_head(model, data, **options)
        evaluator = compile_for(model, data)
        check_callbacks(model, callbacks)
        run.describe(batches, model, recipe, teacher=teacher and teacher.name, head=head, seed=seed)
        throughput = Throughput(len(data.labels))
        is_by_recipe = hasattr(batches.train, "split") and not users_arguments(model)
        record = {
            "base": base_of(getattr(model, "training_record", None)),
            "data": name_of(source),
            "images": batches.train_size,
            "recipe": recipe.to_dict() if is_by_recipe else OWN,
            "seed": seed,
        }
        best = run.best = BestCheckpoint(
            model, output, recipe.result, throughput, recipe.patience, record
        )
        first = [run, StopAtNonFinite(batches.train)]
        if batches.validation is not None:
            first.append(Validate(lambda: evaluator.measure(batches.validation)))
        config = {"recipe": recipe.to_dict(), "seed": seed}
        if output is not None:
            config["data"] = fingerprint(batches)
        history = resumable_fit(
            model,
            batches.train,
            epochs=recipe.all_epochs,
            directory=run.checkpoints,
            save_every=save_every,
            keep=keep,
            resume=resume,
            callbacks=[*first, throughput, best, *callbacks],
            config=config,
            **options,
        )
        history.test = None if batches.test is None else evaluator.measure(batches.test)
        run.record |= {"test": history.test, "finished": True}
        if history.test and getattr(model, "training_record", None):
            model.training_record["test"] = history.test
    return history


def _check(head: str, output: Any, saves: Any, settings: Mapping[str, Any]) -> None:
    """Check the arguments that depend on neither the model nor the data."""
    for name in settings.keys() & {"optimizer", "loss", "metrics"}:
        raise ValueError(
            f"`{name}` must be an argument of `model.compile`, called before `fit`. Received: "
            f"{settings[name]!r:.60}."
        )
    check_argument("head", head, Head)
    if output is None and saves:
        raise ValueError(
            "`output` must be a directory with `resume` or `save_every`. Received: None."
        )
