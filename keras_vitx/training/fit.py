"""Train a model by a recipe."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vitx.training import recipes
from keras_vitx.training.callbacks import (
    AverageWeights,
    BestEpoch,
    StopAtNonFinite,
    Validate,
    verbosity,
)
from keras_vitx.training.devices import replicas
from keras_vitx.training.prepare import (
    check_rates,
    compile_model,
    make_distillation,
    match_head,
    prepare_model,
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
    if output is not None:
        output = new_run(output, resume)
    classifier, recipe = prepare_model(model, recipe, settings)
    how_to_load |= {"seed": seed, "pixels": teacher is None and classifier.takes_pixels}
    data = open_data(source, classifier, recipe, settings, class_weight, **how_to_load)
    recipe, train = data.recipe, replicas.shard_of(data.train)
    match_head(classifier, data.class_names)
    distillation = make_distillation(classifier, teacher, recipe, data.class_names)
    if distillation is not None:
        train = distillation.batches(train, model)
    about = data.steps, data.task, data.class_weight
    evaluator = compile_model(classifier, recipe, *about, distillation)
    check_rates(model, callbacks)

    first = [replicas.Replicate(), AverageWeights(), StopAtNonFinite()]
    if data.validation is not None:
        first.append(Validate(lambda: evaluator.measure(data.validation)))
    best = BestEpoch(model, output and output / f"{recipe.result}.keras", recipe)
    first, last, initial_epoch = [*first, best], [], 0
    if output is not None:
        last = [Restart(output / RESTART, [*first, *callbacks])]
        initial_epoch = last[0].initial_epoch
        first += history_logger(output, initial_epoch)
        record = record_of(model, source, data, teacher, seed)
        write_run(output, record)
        if verbosity():
            print(f"Epochs from {initial_epoch + 1} on go to {output}.", flush=True)
    with best, replicas.mean_gradients(model.optimizer):
        history = model.fit(
            replicas.stream_of(train, range(initial_epoch, recipe.all_epochs), data.steps),
            epochs=recipe.all_epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=data.steps,
            callbacks=[*first, *callbacks, *last],
            shuffle=False,
            verbose=verbosity(verbose),
        )
    history.test = None if data.test is None else evaluator.measure(data.test)
    if output is not None:
        measures = {"best_epoch": best.epoch, "metrics": best.logs, "test": history.test}
        write_run(output, record | measures)
    return history
