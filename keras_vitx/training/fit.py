"""Train a model by a recipe."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_vitx import data
from keras_vitx.classifier import outputs_of
from keras_vitx.training import recipes
from keras_vitx.training.batches import labels_of, load_batches, steps_of
from keras_vitx.training.callbacks import (
    Clock,
    KeepBest,
    Progress,
    StopAtNonFinite,
    Validate,
    verbosity,
)
from keras_vitx.training.compiling import (
    check_callbacks,
    class_weights,
    compile_for,
    compiled_by_user,
)
from keras_vitx.training.devices import check_batch, check_devices, is_chief
from keras_vitx.training.evaluate import Evaluator
from keras_vitx.training.head import Head, check_head, match_head, train_head
from keras_vitx.training.network import set_network
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import fingerprint, resumable_fit
from keras_vitx.training.run import Run
from keras_vitx.training.targets import distillation_of, token_labels_of, with_targets

log = logging.getLogger(__name__)

DATA = ("validation_split", "fraction", "sampling", "strict", "workers", "devices")
"""The arguments of `data.pipelines` that `fit` passes on, and the number of devices expected."""

MOVED = {
    "optimizer": "Call `model.compile(optimizer, loss, metrics)` before `fit`, which keeps it.",
    "loss": "Call `model.compile(optimizer, loss, metrics)` before `fit`, which keeps it.",
    "metrics": "Call `model.compile(optimizer, loss, metrics)` before `fit`, which keeps it.",
}


def fit(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    teacher: keras.Model | None = None,
    token_labels: Any = None,
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
    """Train `model` in place by a recipe, and restore the weights that are its result.

    `docs/training.md` has the lines of plain `model.fit` that this function stands for, and says
    which epoch is the result, what is written, and what an error leaves behind.

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one. If it is compiled, its
            own optimizer, loss and metrics are used instead of the recipe's.
        source: Any source that `keras_vitx.data.pipelines` accepts; `Pipelines`; or your own
            batches, already preprocessed, which Keras's `fit` accepts.
        recipe: Name of a recipe, the folder of a run, or a `Recipe`.
        teacher: A classifier whose predictions are further labels (`Distillation`).
        token_labels: Labels of the patches, for models with a dense head (`TokenLabels`).
        head: A trained head is compared with the class names of the data (`"match"`): permuted,
            or reinitialized if they differ. `"keep"` leaves it, `"fresh"` reinitializes it.
        class_weight: Weight in the training loss by label or class name; others weigh 1.
        callbacks: Run after the callbacks of `fit`, so their logs include the `val_` entries.
        output: Folder for `best.keras` or `last.keras`, `history.csv`, `curves.png`, `run.json`,
            `held_out.txt` and `checkpoints/`. None writes nothing.
        save_every: Steps between two checkpoints; None for one per epoch.
        keep: Number of checkpoints to keep.
        resume: Whether to continue the run in `output`, if there is one, bit for bit.
        seed: Seed of the split, the order and the augmentation of the images.
        verbose: As in `keras.Model.fit`.
        **settings: Settings of the recipe to change, such as `epochs=3` or
            `precision="mixed_bfloat16"`, see `Recipe.but`; and the arguments `validation_split`,
            `fraction`, `sampling`, `strict` and `workers` of `keras_vitx.data.pipelines`.

    Returns:
        The history, as `keras.Model.fit` returns it. Its attribute `test` holds the
        loss and metrics on the test images by name, or None.

    Raises:
        ValueError: if the data do not fit the model or the devices, or `output` is in use, holds
            a run already, or one that `resume` can't continue.
        OSError: if the data can't be read, or a checkpoint can't be written.
        FloatingPointError: if the loss or the weights become NaN or infinite.
    """
    arguments, changes = _split(settings)
    recipe = recipes.get(recipe).but(**changes)
    _check(model, head, output, resume or save_every)
    distillation = distillation_of(recipe, teacher)
    with Run(output, resume) as run:
        here = check_devices(arguments.pop("devices", None), model)
        targets = token_labels_of(token_labels, model, source)
        recipe, batches = load_batches(
            source, model, recipe, changes, targets=targets, seed=seed, **arguments
        )
        class_weight = class_weights(class_weight, batches.class_names, model.output_shape[-1])
        batches = with_targets(batches, model, recipe, distillation, class_weight, seed)
        labels, steps = labels_of(batches.train), recipe.steps_per_epoch
        check_batch(len(labels), here)
        set_network(model, recipe)
        done = match_head(model, batches.class_names, head)
        fitting = {
            "class_weight": class_weight,
            "steps_per_epoch": steps,
            "verbose": verbosity(verbose),
        }
        steps = steps or steps_of(batches.train)
        if recipe.freeze_epochs and not run.continues:
            train_head(model, batches.train, recipe, steps, distillation, **fitting)
        plain = compile_for(model, recipe, steps, lambda: labels, distillation)
        check_callbacks(model, callbacks)
        run.describe(batches, model, recipe, teacher=teacher and teacher.name, head=done, seed=seed)
        history = resumable_fit(
            model,
            batches.train,
            epochs=recipe.all_epochs,
            folder=run.checkpoints,
            save_every=save_every,
            keep=keep,
            resume=resume,
            callbacks=[*_callbacks(model, batches, recipe, plain, run, fitting), *callbacks],
            config={"recipe": run.record["recipe"], "seed": seed, "data": fingerprint(batches)},
            **fitting,
        )
        run.best.restore()
        history.test = None if batches.test is None else plain.measures(batches.test)
        run.record |= {"test": history.test, "finished": True}
    return history


def _callbacks(
    model: keras.Model,
    batches: data.Pipelines,
    recipe: Recipe,
    plain: Evaluator,
    run: Run,
    fitting: Mapping[str, Any],
) -> Iterator[keras.callbacks.Callback]:
    """Yield the callbacks of `fit`, in the order of their work at the end of an epoch."""
    clock = Clock(len(labels_of(batches.train)))
    yield from (run, clock, StopAtNonFinite(batches.train))
    if batches.validation is not None:
        yield Validate(lambda: plain.measures(batches.validation))
    folder = run.folder if is_chief() else None
    run.best = KeepBest(model, folder, recipe.result, clock, recipe.patience)
    yield run.best
    if fitting["verbose"]:
        yield Progress(clock)


def _check(model: keras.Model, head: str, output: Any, saves: Any) -> None:
    """Check what can be checked before the data are read."""
    check_head(head)
    if not compiled_by_user(model):
        outputs_of(model)
    if output is None and saves:
        raise ValueError("`resume` and `save_every` need `output`, the folder of the run.")


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `data.pipelines` among `settings`, and the settings of the recipe."""
    for name in settings.keys() & MOVED.keys():
        raise ValueError(f"`{name}` is no longer an argument of `fit`. {MOVED[name]}")
    arguments = {name: value for name, value in settings.items() if name in DATA}
    return arguments, {name: v for name, v in settings.items() if name not in DATA}
