"""Optimizers of Keras as a recipe asks for them, and the moving average of the weights."""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import ClipsTogether, index_in, sublayers
from keras_vitx.training.network import is_block, layers_of
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.schedule import WarmupCosine

log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


def make_optimizer(
    model: keras.Model, recipe: Recipe, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Return the optimizer of a recipe, with its schedule.

    Args:
        model: The built model that will be trained.
        recipe: The recipe with its settings.
        steps_per_epoch: Number of batches per epoch, for the length of the schedule. Where
            the optimizer accumulates gradients, these are the batches of
            `batch_size / accumulate_steps` images that `model.fit` is given.

    Raises:
        ValueError: if `accumulate_steps` does not divide the batch.
    """
    settings = recipe.optimizer
    _ = recipe.part_of_batch  # An error, if the parts don't divide it.
    parts = settings.accumulate_steps
    if settings.ema is not None:
        _check_length(settings.ema, recipe.schedule.all_epochs * steps_per_epoch / parts)
    shared = {
        "learning_rate": make_schedule(recipe, steps_per_epoch),
        "weight_decay": settings.weight_decay,
        "epsilon": settings.epsilon,
        "global_clipnorm": settings.clip_norm,
        "use_ema": settings.ema is not None,
        # Keras updates the average with every part of a batch.
        "ema_momentum": 0.0 if settings.ema is None else settings.ema ** (1 / parts),
        "gradient_accumulation_steps": parts if parts > 1 else None,
        "name": OPTIMIZER,
    }
    if settings.layer_decay is not None:
        shared["rate_factors"] = rate_factors(model, settings.layer_decay)
    if settings.algorithm == "adamw":
        kind = AdamW if settings.layer_decay is None else LayerwiseAdamW
        return kind(beta_1=settings.beta_1, beta_2=settings.beta_2, **shared)
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


class _KernelsDecay(ClipsTogether):
    """Exclude all variables but kernels from weight decay, also after a file is loaded."""

    def __init__(self, learning_rate: Any = 1e-3, weight_decay: float = 0.05, **kwargs: Any):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)

    def build(self, variables):
        if not self.built:
            self.exclude_from_weight_decay(var_list=self.excluded(variables))
        super().build(variables)

    def excluded(self, variables):
        return [variable for variable in variables if not is_decayed(variable)]


class _RatePerVariable(_KernelsDecay):
    """A factor of the learning rate for each variable; it applies to weight decay as well."""

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.05,
        rate_factors: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, weight_decay, **kwargs)
        self.rate_factors = None if rate_factors is None else tuple(rate_factors)
        self.decays = ()

    def build(self, variables):
        factors = self.rate_factors
        if factors is not None and len(factors) != len(variables):
            raise ValueError(
                "`rate_factors` must have one factor per trainable variable, "
                f"{len(variables)}. Received: {len(factors)}."
            )
        self.decays = tuple(map(is_decayed, variables))
        super().build(variables)

    def excluded(self, variables):
        # Keras decays by the learning rate of all; those with another one decay in `update_step`.
        factors = self.rate_factors or [1] * len(variables)
        pairs = zip(variables, factors, strict=True)
        return [v for v, factor in pairs if not is_decayed(v) or factor != 1]

    def update_step(self, gradient, variable, learning_rate):
        index = index_in(self, variable)
        factor = 1 if self.rate_factors is None else self.rate_factors[index]
        if factor != 1:
            learning_rate = learning_rate * factor
            if self.decays[index]:
                variable.assign(variable * (1 - learning_rate * self.weight_decay))
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        factors = self.rate_factors
        return {
            **super().get_config(),
            "rate_factors": None if factors is None else list(factors),
        }


# Under PyTorch, Keras has a class of its own that updates all variables at once.
_AdamW = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


@keras.saving.register_keras_serializable(package="keras_vitx")
class AdamW(_KernelsDecay, _AdamW):
    """Keras's AdamW with weight decay of kernels only.

    `exclude_from_weight_decay` of Keras is not kept in saved files; this is.

    Args:
        learning_rate: As in Keras.
        weight_decay: Decoupled weight decay of the variables for which `is_decayed`.
        **kwargs: As in `keras.optimizers.AdamW`.
    """

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Make the optimizer that `config` describes."""
        # Files of earlier versions have one name for both classes.
        if config.get("rate_factors") is not None and cls is AdamW:
            return LayerwiseAdamW.from_config(config, custom_objects)
        config = {key: value for key, value in config.items() if key != "rate_factors"}
        return super().from_config(config, custom_objects)


@keras.saving.register_keras_serializable(package="keras_vitx")
class LayerwiseAdamW(_RatePerVariable, keras.optimizers.AdamW):
    """Keras's AdamW with weight decay of kernels only and a learning rate per variable.

    Args:
        learning_rate: As in Keras.
        weight_decay: As in `AdamW`.
        rate_factors: Factor of the learning rate for each trainable variable, in the order
            of `model.trainable_variables`, see `layer_decay.rate_factors`. It applies to the
            decay of the weights as well. None is 1 for all.
        **kwargs: As in `keras.optimizers.AdamW`.

    Raises:
        ValueError: when built with another number of variables.
    """


@keras.saving.register_keras_serializable(package="keras_vitx")
class Muon(_RatePerVariable, keras.optimizers.Muon):
    r"""Keras's Muon for the blocks' matrices and AdamW for the rest, with decay as in `AdamW`.

    For a matrix $W$ of $n \times m$ with gradient $G$, at learning rate $\eta$ and weight decay
    $\lambda$ (Jordan et al. 2024; the factor 0.2, with which AdamW's learning rate and
    weight decay fit, is from Liu et al. 2025, arXiv 2502.16982, Section 2.2):
    $$M \leftarrow 0.95\,M + G, \qquad W \leftarrow (1 - \eta\lambda)\,W
    - 0.2\,\eta\sqrt{\max(n, m)}\ \mathrm{NS}(G + 0.95\,M),$$
    where NS, five steps of a Newton-Schulz iteration, brings all singular values close to 1.

    Under XLA (JAX), each matrix adds to the time of compilation.

    Args:
        learning_rate: As in Keras, for both rules.
        weight_decay: As in `AdamW`, for both rules.
        rate_factors: As in `LayerwiseAdamW`.
        matrices: Indices of the matrices that Muon updates, in `model.trainable_variables`, see
            `matrices_of`; all others become `exclude_layers` of Keras. None is all variables
            with two axes, as in Keras, by which the head is one of them.
        **kwargs: As in `keras.optimizers.Muon`.

    Raises:
        ValueError: when built with another number of variables.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.05,
        rate_factors: Sequence[float] | None = None,
        matrices: Sequence[int] | None = None,
        **kwargs: Any,
    ):
        kwargs["adam_weight_decay"] = weight_decay
        super().__init__(learning_rate, weight_decay, rate_factors, **kwargs)
        self.matrices = None if matrices is None else tuple(matrices)

    def build(self, variables):
        if self.matrices is not None:
            others = [v for i, v in enumerate(variables) if i not in self.matrices]
            self.exclude_layers = [f"^{re.escape(variable.path)}$" for variable in others]
        super().build(variables)

    def get_config(self) -> dict[str, Any]:
        matrices = self.matrices
        config = {**super().get_config(), "matrices": None if matrices is None else list(matrices)}
        # Paths hold names that Keras numbers; `build` makes them anew.
        return config if matrices is None else {**config, "exclude_layers": None}


def optimizer_of(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """Return the optimizer of a model, inside what Keras wraps around it in mixed_float16."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether weight decay applies to `variable`: only if it is a kernel.

    Biases, norms and LayerScale have one axis; tokens and position embeddings are
    recognized by their names.
    """
    return len(variable.shape) > 1 and variable.name not in ("embeddings", "token")


def matrices_of(model: keras.Model) -> tuple[int, ...]:
    """Return the indices in `model.trainable_variables` of the blocks' `Dense` kernels.

    These are the projections of the attention and the MLP, but not the mixes of heads, the
    patch embedding and the head. In a model without blocks, all `Dense` layers but the last.

    Args:
        model: A built model.
    """
    blocks = [layer for layer in layers_of(model) if is_block(layer)]
    dense = [
        layer
        for parent in blocks or [model]
        for layer in sublayers(parent)
        if isinstance(layer, keras.layers.Dense)
    ]
    kernels = {id(layer.kernel) for layer in (dense if blocks else dense[:-1])}
    return tuple(i for i, v in enumerate(model.trainable_variables) if id(v) in kernels)


def rate_factors(model: keras.Model, decay: float) -> tuple[float, ...]:
    r"""Return the factor of the learning rate for each trainable variable of `model`.

    With $L$ blocks, the layers before the first block have the factor $d^{L + 1}$, block
    $i$ (from 1) has $d^{L + 1 - i}$, and the layers after the last one have 1 (BEiT,
    Appendix; the head learns fastest). A layer between two blocks, such as a class token,
    has the factor of the block before it. In a model without blocks, each layer with
    weights counts as one.

    Args:
        model: The built model.
        decay: $d$, in (0, 1].

    Returns:
        Factors in the order of `model.trainable_variables`.
    """
    layers = [layer for layer in layers_of(model) if layer.trainable_variables]
    counts = [layer for layer in layers if is_block(layer)] or layers[1:]
    number, numbers = 0, {}
    for layer in layers:
        if any(layer is block for block in counts):
            number += 1
        after = layer is not counts[-1] and number == len(counts) if counts else False
        for variable in layer.trainable_variables:
            numbers.setdefault(id(variable), number + after)
    top = max(numbers.values())
    return tuple(decay ** (top - numbers.get(id(v), top)) for v in model.trainable_variables)


@contextlib.contextmanager
def averaged(model: keras.Model) -> Iterator[None]:
    """Within this context, `model` has the moving average of its weights, if one is kept.

    The average covers the trainable variables; running statistics of batch normalization
    stay the current ones. A file saved within holds the average both as the weights and as
    the optimizer's state, so training may continue from it. (Keras's `SwapEMAWeights`
    exchanges the two, so that the file would hold the current weights as the average.)

    Args:
        model: A compiled model. Between the steps of `fit`, as in the epoch's callbacks.
    """
    optimizer = optimizer_of(model)
    if not getattr(optimizer, "use_ema", False) or not optimizer.built:
        yield
        return
    variables = model.trainable_variables
    own = [_copy(variable) for variable in variables]
    try:
        optimizer.finalize_variable_values(variables)
        # Under JAX, a variable and its average now share an array, which the next step donates.
        for variable in variables:
            variable.assign(_copy(variable))
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _copy(variable):
    # Under PyTorch, `convert_to_numpy` shares the variable's memory.
    return np.array(keras.ops.convert_to_numpy(variable.value))
