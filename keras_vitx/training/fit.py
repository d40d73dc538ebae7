"""Train a model by a recipe."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vitx.outputs import is_chain, outputs_of
from keras_vitx.training import recipes
from keras_vitx.training.callbacks import (
    AverageWeights,
    BestEpoch,
    StopAtNonFinite,
    Validate,
    verbosity,
)
from keras_vitx.training.devices import check_devices
from keras_vitx.training.devices.replicas import Replicate, mean_gradients, stream_of
from keras_vitx.training.prepare import (
    apply_settings,
    compile_model,
    follow_optimizer,
    make_distillation,
    match_head,
    user_arguments,
)
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.restart import Restart
from keras_vitx.training.run import RESTART, history_logger, new_run, record_of, write_run
from keras_vitx.training.source import open_data

HOW_TO_LOAD = ("validation_split", "fraction", "workers")


def fit(
    model: keras.Model,
    source: Any,
    recipe: str | Recipe = "finetune",
    *,
    teacher: keras.Model | None = None,
    class_weight: Mapping[Any, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    output: str | os.PathLike | None = None,
    resume: bool = False,
    seed: int = 0,
    **settings: Any,
) -> keras.callbacks.History:
    """Train `model` in place by a recipe, and restore the weights of its result.

    `docs/training.md` has the equivalent lines of plain `model.fit`, and says which epoch is the
    result, what is written, and what an error leaves behind.

    Args:
        model: A classifier of the zoo, or a Keras model that ends in one. What it is compiled with,
            an optimizer, a loss or metrics, is used instead of the recipe's.
        source: Any source that `keras_vitx.data.load_dataset` accepts or returns; `Pipelines`; or
            your own preprocessed batches, as for Keras's `fit`.
        recipe: Name of a recipe, a `.toml` file, the directory of a run, or a `Recipe`.
        teacher: A classifier whose predictions are additional labels (`Distillation`).
        class_weight: Weight in the training loss by label or class name; others weigh 1. With
            several labels per image, that of each label's loss; for soft labels y, an image weighs
            the sum of y_c w_c.
        callbacks: Called after those of `fit`, so their logs include the `val_` entries.
        output: Directory for `best.keras` or `last.keras`, `history.csv`, `run.json` and
            `restart.safetensors`; None to write nothing.
        resume: Whether to continue the run in `output` after its last finished epoch, bit for bit,
            if there is one. The other arguments must be the same.
        seed: Seed of the split, order and augmentation of the images.
        **settings: Settings of the recipe to change, such as `epochs=3` or
            `precision="mixed_bfloat16"`, see `Recipe.replace`; and the arguments
            `validation_split` (default 0.1), `fraction` and `workers` of
            `keras_vitx.data.load_dataset` and `pipelines`; and `verbose`, as in Keras's `fit`.

    Returns:
        The history, as `keras.Model.fit` returns it. Its attribute `test` holds the loss and
        metrics on the test images by name, or None.

    Raises:
        ValueError: if the data don't fit the model or the devices, or `output` holds a run.
        OSError: if the data can't be read, or a file can't be written.
        FloatingPointError: if the loss or the weights become NaN or infinite.
    """
    how_to_load = {name: settings.pop(name) for name in HOW_TO_LOAD if name in settings}
    verbose = settings.pop("verbose", "auto")
    recipe = recipes.get(recipe).replace(**settings)
    output = None if output is None else new_run(output, resume)
    check_devices(model)
    compiled = user_arguments(model)
    outputs = None if "loss" in compiled else outputs_of(model)
    recipe = follow_optimizer(recipe, compiled, settings)
    apply_settings(model, recipe)
    how_to_load["seed"] = seed
    how_to_load["pixels"] = teacher is None and is_chain(model) and model.takes_pixels
    data = open_data(source, model, outputs, recipe, settings, class_weight, **how_to_load)
    recipe, batches, train = data.recipe, data.batches, data.batches.train
    names = match_head(model, batches.class_names)
    distillation = make_distillation(teacher, recipe, names)
    if distillation is not None:
        train = distillation.batches(train, model)
    evaluator = compile_model(model, compiled, recipe, data, distillation, callbacks)

    stages = [Replicate(), AverageWeights(), StopAtNonFinite()]
    if batches.validation is not None:
        stages.append(Validate(lambda: evaluator.measure(batches.validation)))
    best = BestEpoch(model, output and output / f"{recipe.result}.keras", recipe)
    stages, initial_epoch = [*stages, best, *callbacks], 0
    if output is not None:
        restart = Restart(output / RESTART, stages)
        initial_epoch = restart.initial_epoch
        stages += [*history_logger(output, initial_epoch), restart]
        record = record_of(model, source, data, teacher, seed)
        write_run(output, record)
        if verbosity():
            print(f"Epochs from {initial_epoch + 1} on go to {output}.", flush=True)
    with best, mean_gradients(model.optimizer):
        history = model.fit(
            stream_of(train, range(initial_epoch, recipe.all_epochs), data.steps),
            epochs=recipe.all_epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=data.steps,
            callbacks=stages,
            shuffle=False,
            verbose=verbosity(verbose),
        )
    history.test = None if batches.test is None else evaluator.measure(batches.test)
    if output is not None:
        measures = {"best_epoch": best.epoch, "metrics": best.logs, "test": history.test}
        write_run(output, record | measures)
    return history
