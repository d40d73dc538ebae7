"""The optimizer that a recipe asks for."""

import logging

import keras

from keras_vitx.training.optimizer.layer_decay import rate_factors
from keras_vitx.training.optimizer.schedule import WarmupCosine
from keras_vitx.training.optimizer.updates import AdamW, Muon, matrices_of
from keras_vitx.training.recipe import Recipe

log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


def make_optimizer(model: keras.Model, recipe: Recipe, steps_per_epoch: int) -> AdamW | Muon:
    """Return the optimizer of a recipe, with its schedule.

    Args:
        model: The built model that will be trained.
        recipe: The recipe with its settings.
        steps_per_epoch: Number of batches per epoch, for the length of the schedule. Where
            the optimizer accumulates gradients, these are the batches of
            `batch_size / accumulate_steps` images that `model.fit` is given.

    Raises:
        ValueError: as in `part_of_batch`.
    """
    settings = recipe.optimizer
    part_of_batch(recipe)
    parts = settings.accumulate_steps
    if settings.ema is not None:
        _check_length(settings.ema, recipe.schedule.all_epochs * steps_per_epoch / parts)
    factors = None
    if settings.layer_decay is not None:
        factors = rate_factors(model, settings.layer_decay)
    shared = {
        "learning_rate": make_schedule(recipe, steps_per_epoch),
        "weight_decay": settings.weight_decay,
        "rate_factors": factors,
        "epsilon": settings.epsilon,
        "global_clipnorm": settings.clip_norm,
        "use_ema": settings.ema is not None,
        # Keras updates the average with every part of a batch.
        "ema_momentum": 0.0 if settings.ema is None else settings.ema ** (1 / parts),
        "gradient_accumulation_steps": parts if parts > 1 else None,
        "name": OPTIMIZER,
    }
    if settings.algorithm == "adamw":
        return AdamW(beta_1=settings.beta_1, beta_2=settings.beta_2, **shared)
    return Muon(
        adam_beta_1=settings.beta_1,
        adam_beta_2=settings.beta_2,
        matrices=matrices_of(model),
        **shared,
    )


def make_schedule(recipe: Recipe, steps_per_epoch: int) -> WarmupCosine:
    """Return the learning rate of a recipe over the steps of a training run.

    If the learning rate is scaled to a batch so small that it would lie below that at the
    start or the end of the run, these are lowered to it.

    Args:
        recipe: The recipe with its settings.
        steps_per_epoch: As in `make_optimizer`.
    """
    times = recipe.schedule
    end = times.peak if times.decay == "constant" else times.final_learning_rate
    return WarmupCosine(
        times.peak,
        times.epochs * steps_per_epoch,
        times.warmup_epochs * steps_per_epoch,
        min(times.warmup_learning_rate, times.peak),
        min(end, times.peak),
        recipe.optimizer.accumulate_steps,
    )


def part_of_batch(recipe: Recipe) -> int:
    """Return the number of images that are computed at a time.

    Raises:
        ValueError: if `accumulate_steps` does not divide the batch.
    """
    batch, parts = recipe.schedule.batch_size, recipe.optimizer.accumulate_steps
    if batch % parts:
        raise ValueError(
            f"`accumulate_steps` must divide batch_size={batch}, the images per update. "
            f"Received: {parts}."
        )
    return batch // parts


def _check_length(momentum: float, updates: float) -> None:
    """Log a warning if a moving average would mostly hold the weights of the start."""
    window = 1 / (1 - momentum)
    if updates < 3 * window:
        log.warning(
            "The moving average of the weights (ema=%g) spans about %.0f updates, but the run has "
            "%.0f: its result will be close to the first weights. Give a smaller `ema`, or None.",
            momentum,
            window,
            updates,
        )
