"""The optimizer that a recipe asks for."""

import logging
from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import AdamWByRate
from keras_vitx.training.optimizer.layer_decay import rate_factors
from keras_vitx.training.optimizer.schedule import WarmupCosine
from keras_vitx.training.recipe import Recipe

log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


@keras.saving.register_keras_serializable(package="keras_vitx")
class AdamW(AdamWByRate):
    """Keras's AdamW, with weight decay of kernels only and a learning rate per layer.

    Keras has both, but not in saved files (`exclude_from_weight_decay`), or only by one
    optimizer per layer, which can't clip by the global norm (`MultiOptimizer`).

    Args:
        learning_rate: As in Keras.
        weight_decay: Decoupled weight decay of the variables for which `is_decayed`.
        rate_factors: Factor of the learning rate for each trainable variable, in the order
            of `model.trainable_variables`, see `layer_decay.rate_factors`. It applies to the
            decay of the weights as well. None is 1 for all.
        **kwargs: As in `keras.optimizers.AdamW`.

    Raises:
        ValueError: when built with another number of variables.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.05,
        rate_factors: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, weight_decay, **kwargs)
        self.rate_factors = None if rate_factors is None else tuple(rate_factors)

    def build(self, variables):
        if not self.built:
            factors = self.rate_factors
            if factors is not None and len(factors) != len(variables):
                raise ValueError(
                    "`rate_factors` must have one factor per trainable variable, "
                    f"{len(variables)}. Received: {len(factors)}."
                )
            self.exclude_from_weight_decay(var_list=[v for v in variables if not is_decayed(v)])
        super().build(variables)

    def get_config(self) -> dict[str, Any]:
        factors = self.rate_factors
        return {
            **super().get_config(),
            "rate_factors": None if factors is None else list(factors),
        }


def make_optimizer(model: keras.Model, recipe: Recipe, steps_per_epoch: int) -> AdamW:
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
    return AdamW(
        make_schedule(recipe, steps_per_epoch),
        settings.weight_decay,
        factors,
        beta_1=settings.beta_1,
        beta_2=settings.beta_2,
        epsilon=settings.epsilon,
        global_clipnorm=settings.clip_norm,
        use_ema=settings.ema is not None,
        # Keras updates the average with every part of a batch.
        ema_momentum=0.0 if settings.ema is None else settings.ema ** (1 / parts),
        gradient_accumulation_steps=parts if parts > 1 else None,
        name=OPTIMIZER,
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


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether weight decay applies to `variable`: only if it is a kernel.

    Biases, norms and LayerScale have one axis; tokens and position embeddings are
    recognized by their names.
    """
    return len(variable.shape) > 1 and variable.name not in ("embeddings", "token")
