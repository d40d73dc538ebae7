"""Training by the recipe of Context Broadcasting's Table 7."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vitx.segmentation.batches import TrainingCrops
from keras_vitx.segmentation.evaluate import evaluate
from keras_vitx.segmentation.predict import Mode, check_segmenter
from keras_vitx.segmentation.schedule import WarmupPolynomial
from keras_vitx.segmentation.sources import IGNORED, load_dataset
from keras_vitx.training import AdamW, KeepBest, StopAtNonFinite, Validate, resumable_fit


def compile(
    model: keras.Model,
    steps: int,
    learning_rate: float = 6e-5,
    warmup_steps: int = 0,
    weight_decay: float = 0.01,
    power: float = 1.0,
) -> None:
    """Compile a model for plain `fit` with masks.

    AdamW with weight decay of kernels, polynomial decay of the learning rate, the mean cross
    entropy of the pixels that are not ignored, and their mean intersection over union.

    Args:
        model: A model from images to logits `(batch, height, width, classes)`.
        steps: Steps until the learning rate is 0.
        learning_rate: Its peak.
        warmup_steps: Steps of linear warm-up.
        weight_decay: Decoupled weight decay.
        power: Power of the decay.
    """
    classes = model.output_shape[-1]
    model.compile(
        AdamW(WarmupPolynomial(learning_rate, steps, warmup_steps, power), weight_decay),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED),
        metrics=[
            keras.metrics.MeanIoU(
                classes, ignore_class=IGNORED, sparse_y_pred=False, name="mean_iou"
            )
        ],
    )


def fit(
    model: keras.Model,
    source: Any,
    steps: int = 40_000,
    *,
    batch_size: int = 16,
    learning_rate: float = 6e-5,
    warmup_steps: int = 1500,
    weight_decay: float = 0.01,
    power: float = 1.0,
    scales: tuple[float, float] = (0.5, 2.0),
    flip: bool = True,
    jitter: float = 0.3,
    mode: Mode = "whole",
    output: str | os.PathLike | None = None,
    save_every: int | None = None,
    resume: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    seed: int = 0,
    verbose: str | int = "auto",
) -> keras.callbacks.History:
    """Train a segmentation model, by default as for Context Broadcasting's Table 7.

    The defaults are the paper's (batch 16, AdamW with weight decay 0.01, polynomial schedule,
    40,000 or 160,000 steps). Its learning rate can't be read in our copy; that of XCiT, which
    it follows, is 6e-5, with 1,500 steps of warm-up. XCiT's backbone hands on the outputs of its
    blocks without a norm, as `keras_vitx.features(..., norm=False)` does. Crops of the model's
    size are taken from images resized by a factor of `scales`.

    Args:
        model: A `Segmenter`, or another model from images to logits of the same sides, with
            `preprocessing`. It is compiled unless it is already (see `compile`).
        source: As in `load_dataset`. Its validation images are measured after each epoch.
        steps: Number of steps, rounded to whole epochs, at least one.
        batch_size: Images per step.
        learning_rate: As in `compile`, as are `warmup_steps`, `weight_decay` and `power`.
        warmup_steps: At most a tenth of the steps is used.
        weight_decay: Decoupled weight decay.
        power: Power of the schedule.
        scales: As in `TrainingCrops`, as are `flip` and `jitter`.
        flip: Whether half of the images are mirrored.
        jitter: Largest random change of brightness, contrast and saturation.
        mode: Inference in validation, as in `evaluate`.
        output: Folder for `last.keras`, `history.csv` and `checkpoints/`; None writes nothing.
        save_every: Steps between two checkpoints; None for one per epoch.
        resume: Whether to continue the run in `output`, bit for bit
            (`keras_vitx.training.resumable_fit`).
        callbacks: As in `keras.Model.fit`.
        seed: Seed of the order and of the augmentation.
        verbose: As in `keras.Model.fit`.

    Returns:
        The history, with `val_mean_iou` and `val_accuracy` per epoch.

    Raises:
        ValueError: if the data do not fit the model, or `output` holds a run and `resume` is
            false.
        OSError: if a file can't be read or written.
        FloatingPointError: if the loss becomes NaN or infinite.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"`steps` must be a whole number of at least 1. Received: {steps!r}.")
    if output is None and (resume or save_every is not None):
        raise ValueError("`resume` and `save_every` need `output`, the folder of the run.")
    check_segmenter(model)
    opened = load_dataset(source)
    classes = model.output_shape[-1]
    if opened.class_names is not None and len(opened.class_names) != classes:
        raise ValueError(
            f"model: it has {classes} classes, but the source has {len(opened.class_names)}."
        )
    batches = TrainingCrops(opened.train, model, classes, batch_size, scales, flip, jitter, seed)
    epochs = max(1, round(steps / len(batches)))
    if not model.compiled:
        total = epochs * len(batches)
        warmup = min(warmup_steps, total // 10)
        compile(model, total, learning_rate, warmup, weight_decay, power)
    ours = [StopAtNonFinite(batches)]
    if opened.validation is not None:
        ours.append(Validate(lambda: _numbers(evaluate(model, opened, "validation", mode))))
    ours.append(KeepBest(model, output, "last"))
    return resumable_fit(
        model,
        batches,
        epochs=epochs,
        folder=None if output is None else Path(output) / "checkpoints",
        save_every=save_every,
        resume=resume,
        callbacks=[*ours, *callbacks],
        verbose=verbose,
        facts={"images": opened.train.size, "seed": seed, "scales": list(scales), "jitter": jitter},
    )


def _numbers(measures):
    return {name: measures[name] for name in ("mean_iou", "accuracy")}
