"""Train a model by a recipe."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vitx import backend, data
from keras_vitx.classifier import outputs_of
from keras_vitx.training import recipes
from keras_vitx.training.batches import labels_of, opened, steps_of
from keras_vitx.training.callbacks import KeepBest, StopAtNonFinite, Validate
from keras_vitx.training.compiling import compile_for, compiled_by_user
from keras_vitx.training.devices import Count, check_batch, check_devices, is_chief
from keras_vitx.training.evaluate import Measured
from keras_vitx.training.head import Head, check_head, match_head
from keras_vitx.training.network import set_network
from keras_vitx.training.optimizer import part_of_batch
from keras_vitx.training.precision import set_precision
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.runs.folder import (
    CHECKPOINTS,
    read_run,
    report_start,
    run_folder,
    write_results,
    write_run,
)
from keras_vitx.training.runs.progress import Clock, Progress, verbosity
from keras_vitx.training.runs.resumable import data_facts, start_of
from keras_vitx.training.targets import distillation_of, token_labels_of, with_targets

log = logging.getLogger(__name__)


def fit(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    teacher: keras.Model | None = None,
    token_labels: Any = None,
    head: Head = "match",
    optimizer: str | keras.optimizers.Optimizer | None = None,
    loss: Any = None,
    metrics: Sequence[Any] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    class_weight: Mapping[int, float] | None = None,
    steps_per_epoch: int | None = None,
    validation_split: float = 0.1,
    fraction: float = 1.0,
    output: str | os.PathLike | None = None,
    save_every: int | None = None,
    keep: int = 3,
    resume: bool = False,
    precision: str | None = None,
    devices: Count | None = None,
    seed: int = 0,
    verbose: str | int = "auto",
    strict: bool = False,
    **changes: Any,
) -> keras.callbacks.History:
    """Train `model` in place by a recipe, and restore the weights that are its result.

    That is the last epoch, or the best one, as the recipe says (`result`). Where the recipe
    keeps a moving average of the weights (`ema`), the average is validated and is the result.
    Everything used here is public: `docs/training.md` has the lines of plain `model.fit` that
    this function stands for.

    The best epoch is the one with the highest accuracy on the validation images; if
    accuracy is not among the metrics, with the lowest validation loss; without
    validation images, the last one. `val_loss` has no label smoothing: for class labels
    it is the plain cross entropy. The test images of the source are evaluated once,
    after training.

    The loss follows from the head's activation and the form of the labels: see
    `keras_vitx.training.task.Task`.

    After Ctrl-C or any other error, the model has the weights of its best epoch so far
    (or those from before training, if no epoch was finished), and a log line says which.
    The files of the run are written, and the error is raised again.

    With `output`, all that the next step depends on is saved, so that a run that was killed
    continues with `resume=True`, bit for bit on the same backend (`resumable_fit`). SIGTERM
    and Ctrl-C wait for the end of the step and for the checkpoint; after SIGTERM, the exit
    code is 143.

    On a CPU, the process keeps freed memory until the training ends, and reuses it
    (`keras_vitx.keep_memory`).

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one. If it
            is compiled, its own optimizer, loss and metrics are used instead of
            the recipe's, and a log line says so.
        source: Any source that `keras_vitx.data.pipelines` accepts: `"fashion_mnist"`,
            a folder, `"tfds:NAME"`, arrays, an `.npz`; opened `Pipelines`; or your own
            batches `(images, labels)` or `(images, labels, weights)`, already
            preprocessed for the model: a `tf.data.Dataset`, a `keras.utils.PyDataset`
            or a PyTorch `DataLoader`. For validation batches of your own, give
            `data.Pipelines(train=..., validation=...)`. The recipe's augmentation, mixing and
            batch size do not change your own batches; give their size as `batch_size` (times
            `accumulate_steps`) if the recipe's learning rate depends on it.
        recipe: Name of a recipe, the folder of a run, or a `Recipe`.
        teacher: A Keras classifier whose predictions are further labels, by the recipe's
            `distillation`: see `keras_vitx.training.Distillation`.
        token_labels: Labels of the patches of each image, for models with a dense head: a
            `keras_vitx.training.TokenLabels`, or the labels that it takes.
        head: How a trained head is treated. `"match"` compares the class names of
            model and data: if they are the same in another order, the head is
            permuted; if they differ, it is reinitialized. `"keep"` leaves it as it is,
            `"fresh"` reinitializes it.
        optimizer: Replaces the recipe's.
        loss: Replaces the loss that follows from head and labels. Give `metrics` as
            well: there are none otherwise.
        metrics: Replace the metrics that follow from head and labels.
        callbacks: Run after the callbacks of `fit`, so their logs include the `val_`
            entries.
        class_weight: Weight of each class in the training loss, by label.
        steps_per_epoch: Steps per epoch; required for infinite batches.
        validation_split: Fraction of each class of the training images that is held
            out for validation, if the source has no validation part.
        fraction: Fraction of the training images of each class that is used, as in ConViT's
            Table 2, whose epochs are divided by it.
        output: Folder for `best.keras` (the model after its best epoch; `last.keras` with
            `result="last"`), `history.csv` (one row per epoch, with the learning rate, the
            seconds and the images per second), `curves.png` (with matplotlib), `run.json`
            (settings and results) and `checkpoints/`. None writes nothing.
        save_every: Steps between two checkpoints; None for one per epoch. One more is
            written before the first step, so that a disk that is full shows at once.
        keep: Number of checkpoints to keep.
        resume: Whether to continue the run in `output`, if there is one: with the same
            model, recipe and source.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`; None
            leaves the model as it is.
        devices: The number of devices that are in use; otherwise it is an error. They are
            chosen by `kv.training.use_devices` before the model is made; under PyTorch,
            `torchrun` and this argument are enough. None means those in use.
        seed: Seed of the split, the order and the augmentation of the images.
        verbose: As in `keras.Model.fit`; `"auto"` is a progress bar in a terminal, else
            one line per epoch.
        strict: Whether an image that can't be decoded is an error.
        **changes: Settings of the recipe to change, e.g. `epochs=3`; see `Recipe.but`.

    Returns:
        The history, as `keras.Model.fit` returns it. Its attribute `test` holds the
        loss and metrics on the test images by name, or None.

    Raises:
        ValueError: if the data do not fit the model, `devices` are not in use or do not divide
            a batch, or `output` already holds a run, or one that `resume` can't continue,
            because something differs.
        OSError: if the data can't be read, or a checkpoint can't be written.
        FloatingPointError: if the loss or the weights become NaN or infinite; the message
            has the step, the images of its batch and the last good checkpoint.
    """
    keeps_memory = backend.keep_memory()
    recipe = recipes.get(recipe).but(**changes)
    at_once = part_of_batch(recipe)
    check_head(head)
    if loss is None and not compiled_by_user(model):
        outputs_of(model)  # A model without a classifier fails before the data are read.
    if output is None and (resume or save_every is not None):
        raise ValueError("`resume` and `save_every` need `output`, the folder of the run.")
    distillation = distillation_of(recipe.targets, teacher)
    token_labels = token_labels_of(token_labels, model, source)
    here = check_devices(devices, model)
    if output is not None:
        output = run_folder(output, resume) if is_chief() else Path(output)
    batches = opened(
        source,
        model,
        at_once,
        augmentation=recipe.augmentation,
        mixing=recipe.mixing,
        targets=token_labels,
        seed=seed,
        validation_split=validation_split,
        fraction=fraction,
        strict=strict,
    )
    batches = with_targets(batches, model, recipe.targets, distillation, class_weight, seed)
    if here.replicas > 1:
        check_batch(len(labels_of(batches.train)), here)
    set_network(model, recipe.network)
    if precision is not None:
        set_precision(model, precision)
    measured = compile_for(
        model,
        recipe,
        steps_per_epoch or steps_of(batches.train),
        lambda: labels_of(batches.train),
        optimizer,
        loss,
        metrics,
        distillation,
    )
    run = {
        "model": model.name,
        "teacher": None if teacher is None else teacher.name,
        "recipe": recipe.to_dict(),
        "head": match_head(model, batches.class_names, head),
        "seed": seed,
        "fraction": fraction,
        "precision": precision,
        "devices": here.count,
        **_surroundings(batches),
    }
    clock = Clock(len(labels_of(batches.train)))
    best = KeepBest(model, output if is_chief() else None, recipe.result, clock)
    finite = StopAtNonFinite(batches.train)
    verbose = verbosity(verbose) if is_chief() else 0
    ours = [
        clock,
        finite,
        *_validation(measured, batches),
        best,
        *([Progress(clock)] if verbose else []),
    ]
    start = start_of(
        model,
        batches.train,
        None if output is None else output / CHECKPOINTS,
        keep,
        resume,
        steps_per_epoch=steps_per_epoch,
        facts={name: run[name] for name in ("recipe", "seed", "precision")}
        | {"data": data_facts(batches)},
    )
    if output is not None and is_chief():
        report_start(output, start.state, recipe.schedule.all_epochs)
        run["seconds"] = read_run(output).get("seconds", 0.0)
        write_run(output, run)
    begun = time.perf_counter()
    try:
        history = start.fit(
            recipe.schedule.all_epochs, save_every, [*ours, *callbacks], class_weight, verbose
        )
        best.restore()
        history.test = None if batches.test is None else measured.measures(batches.test)
        run |= {"test": history.test, "finished": True}
    except BaseException as error:
        kept = best.restore()
        if start.checkpoints and start.checkpoints.files:
            kept += f" `resume=True` continues from {start.checkpoints.files[-1]}."
        run |= {"stopped": f"{type(error).__name__}: {error}"}
        if isinstance(error, FloatingPointError):
            run["images"] = finite.images
            raise FloatingPointError(f"{error} {kept}") from error
        log.warning("%s stopped the training. %s", type(error).__name__, kept)
        raise
    finally:
        if output is not None and is_chief():
            run |= best.facts()
            run["seconds"] = round(run["seconds"] + time.perf_counter() - begun, 1)
            write_results(output, run, best.rows)
        if keeps_memory:
            backend.return_memory()
    return history


def _surroundings(batches: data.Pipelines) -> dict[str, Any]:
    """Return what a run was made with, for its record."""
    return {
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "train_images": batches.train_size,
        "validation_images": batches.validation_size,
        "test_images": batches.test_size,
    }


def _validation(measured: Measured, batches: data.Pipelines) -> list[keras.callbacks.Callback]:
    if batches.validation is None:
        return []
    return [Validate(lambda: measured.measures(batches.validation))]
