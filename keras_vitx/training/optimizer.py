"""The optimizer and the learning rate schedule of a recipe."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vitx.checks import check
from keras_vitx.keras_internals import AdamHooks, sublayers
from keras_vitx.layers.base import optimizer_of
from keras_vitx.layers.block import Block
from keras_vitx.outputs import layers_of
from keras_vitx.training.recipe import Recipe

log = logging.getLogger(__name__)

# Marks models compiled by a recipe, as opposed to by the user, also in saved files.
OPTIMIZER = "keras_vitx_recipe"


def make_optimizer(
    model: keras.Model, recipe: Recipe, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Return the optimizer of a recipe, with its schedule.

    Args:
        model: The built model to train.
        recipe: The recipe.
        steps_per_epoch: Number of batches per epoch of `model.fit`, each of
            `batch_size / accumulate_steps` images.
    """
    accumulate_steps, ema = recipe.accumulate_steps, recipe.ema
    updates = recipe.all_epochs * steps_per_epoch / accumulate_steps
    if ema is not None and updates * (1 - ema) < 3:
        text = "The moving average (ema=%g) spans about %.0f updates, but the run has %.0f: its "
        text += "result will be close to the initial weights. Set a smaller `ema`, or None."
        log.warning(text, ema, 1 / (1 - ema), updates)
    matrices = matrices_of(model) if recipe.algorithm == "muon" else ()
    factors = recipe.layer_decay and rate_factors(model, recipe.layer_decay)
    return AdamW(
        make_schedule(recipe, steps_per_epoch),
        recipe.weight_decay,
        factors,
        matrices,
        beta_1=recipe.beta_1,
        beta_2=recipe.beta_2,
        epsilon=recipe.epsilon,
        global_clipnorm=recipe.clip_norm,
        use_ema=ema is not None,
        # Keras updates the average in every step, not in every update.
        ema_momentum=(ema or 0.0) ** (1 / accumulate_steps),
        gradient_accumulation_steps=accumulate_steps if accumulate_steps > 1 else None,
        name=OPTIMIZER,
    )


def rate_factors(model: keras.Model, decay: float) -> tuple[float, ...]:
    """Return the factor of the learning rate for each of `model.trainable_variables`.

    With L blocks, it is `decay ** (L + 1)` before the first block, `decay ** (L + 1 - i)` in block
    i (from 1) and in layers between it and the next, and 1 after the last block (BEiT, Appendix).
    In a model without blocks, each layer with weights counts as one.
    """
    # Frozen layers count too, so that freezing changes no other layer's rate.
    layers = [x for x in layers_of(model) if isinstance(x, keras.layers.Layer) and x.weights]
    blocks = [i for i, x in enumerate(layers) if isinstance(x, Block)] or range(1, len(layers))
    depths = {}
    for index, layer in enumerate(layers):
        # Layers after the last block are one deeper.
        depth = sum(i <= index for i in blocks) + (index > max(blocks, default=0))
        for variable in layer.weights:
            depths.setdefault(id(variable), depth)
    deepest = max(depths.values())
    return tuple(decay ** (deepest - depths.get(id(v), deepest)) for v in model.trainable_variables)


def matrices_of(model: keras.Model) -> list[int]:
    """Return the indices of the blocks' `Dense` kernels; without blocks, all but the last."""
    blocks = [part for part in sublayers(model) if isinstance(part, Block)]
    layers = [layer for parent in blocks or [model] for layer in sublayers(parent)]
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    kernels = {id(layer.kernel) for layer in (dense if blocks else dense[:-1])}
    return [i for i, v in enumerate(model.trainable_variables) if id(v) in kernels]


def make_schedule(recipe: Recipe, steps_per_epoch: int) -> "WarmupCosine":
    r"""Return the learning rate of a recipe over the steps of a training run.

    At step $s$ of the $S$ steps of all `epochs`, of which $W$ are warm-up, with the peak $\eta$, it
    is

    $$\eta(s) = \begin{cases}
    \eta_0 + (\eta - \eta_0)\, s / W & s < W \\
    \eta_1 + (\eta - \eta_1)\,(1 + \cos(\pi s / S)) / 2 & W \le s < S \\
    \eta_1 & S \le s \end{cases}$$

    as in timm's trainer and DeiT's code: the cosine begins at step 0, and the warm-up replaces its
    first part (Keras's `CosineDecay` begins at $W$). The rate changes with every update; in these
    codes, once per epoch.

    If scaling by the batch size puts $\eta$ below $\eta_0$ or $\eta_1$, these are lowered to it.

    Args:
        recipe: The recipe.
        steps_per_epoch: As in `make_optimizer`.
    """
    peak = recipe.peak
    end = peak if recipe.decay == "constant" else recipe.final_learning_rate
    return WarmupCosine(
        peak,
        recipe.epochs * steps_per_epoch,
        recipe.warmup_epochs * steps_per_epoch,
        min(recipe.warmup_learning_rate, peak),
        min(end, peak),
        recipe.accumulate_steps,
    )


@keras.saving.register_keras_serializable(package="keras_vitx")
@dataclasses.dataclass(eq=False)
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of `make_schedule`, constant between updates of the weights."""

    learning_rate: float
    steps: float
    warmup_steps: float = 0.0
    warmup_learning_rate: float = 0.0
    final_learning_rate: float = 0.0
    accumulate_steps: int = 1

    def __call__(self, step):
        # Float32 holds integers up to 2^24 only, so the division is of integers.
        update = ops.cast(ops.floor_divide(step, self.accumulate_steps), "float32")
        step = update * self.accumulate_steps
        progress = ops.minimum(step / self.steps, 1.0)
        start, peak, end = self.warmup_learning_rate, self.learning_rate, self.final_learning_rate
        cosine = end + (peak - end) * (1 + ops.cos(progress * 3.141592653589793)) / 2
        if not self.warmup_steps:
            return cosine
        warmup = start + (peak - start) * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, warmup, cosine)

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def trace_once(function: Callable) -> Callable:
    """Return a function of tensors and floats, traced once a shape: half of TensorFlow's nodes."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function, static_argnames=("decay", "beta_1", "beta_2", "epsilon"))
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    graph = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    # As tensors: each variable would be another graph.
    return lambda *xs: graph(*(x if isinstance(x, float) else tf.convert_to_tensor(x) for x in xs))


@trace_once
def adamw(value, mean, square, gradient, rate, decay, step, beta_1, beta_2, epsilon):
    """Return a variable and its moments after an update, as the equation of `AdamW` says."""
    value, gradient = ops.cast(value, mean.dtype), ops.cast(gradient, mean.dtype)
    mean = beta_1 * mean + (1 - beta_1) * gradient
    square = beta_2 * square + (1 - beta_2) * gradient**2
    deviation = ops.sqrt(square / (1 - beta_2**step)) + epsilon
    update = mean / (1 - beta_1**step) / deviation
    return value - rate * (update + decay * value), mean, square


def orthogonalize(matrix):
    """Return a matrix with the singular vectors of another, and singular values close to 1."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    x = x / (ops.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ ops.transpose(x)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return ops.transpose(x) if is_tall else x


def muon(value, momentum, gradient, rate, decay):
    """Return a matrix and its momentum after an update, as the second equation of `AdamW` says."""
    momentum = 0.95 * momentum + ops.cast(gradient, momentum.dtype)
    nesterov = ops.cast(gradient, momentum.dtype) + 0.95 * momentum
    update = orthogonalize(nesterov)
    scale = 0.2 * max(value.shape) ** 0.5
    return (1 - rate * decay) * ops.cast(value, momentum.dtype) - rate * scale * update, momentum


@keras.saving.register_keras_serializable(package="keras_vitx")
class AdamW(AdamHooks, keras.optimizers.AdamW):
    r"""AdamW with PyTorch's epsilon, weight decay of kernels only, and a rate per variable; Muon.

    For a variable $w$ with gradient $g$ at update $t$, at learning rate $\eta$ and weight decay
    $\lambda$, each times the variable's factor of the rate (Loshchilov and Hutter 2019):

    $$m \leftarrow \beta_1 m + (1 - \beta_1)\,g, \qquad
    v \leftarrow \beta_2 v + (1 - \beta_2)\,g^2,$$

    $$w \leftarrow (1 - \eta\lambda)\,w
    - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}.$$

    The `matrices` $W$, of $n \times m$ numbers, follow Muon instead (Jordan et al. 2024). With its
    factor of 0.2, AdamW's learning rate and weight decay fit (Liu et al. 2025, arXiv 2502.16982):

    $$M \leftarrow 0.95\,M + G, \qquad W \leftarrow (1 - \eta\lambda)\,W
    - 0.2\,\eta\sqrt{\max(n, m)}\ \mathrm{NS}(G + 0.95\,M),$$

    where NS, five steps of a Newton-Schulz iteration, brings all singular values close to 1.

    (Keras's $\epsilon$ is larger by $1 / \sqrt{1 - \beta_2^t}$.) The moments and the moving average
    of a variable in half precision are float32. The moving average of a `Chain` has the statistics
    of normalization, too. Saved files keep these settings, unlike Keras's
    `exclude_from_weight_decay`.

    Args:
        learning_rate: As in Keras.
        weight_decay: Decoupled weight decay. It does not apply to biases, norms, LayerScale, tokens
            and position embeddings.
        rate_factors: Factor of the learning rate of each of `model.trainable_variables`; None is 1
            for all.
        matrices: Indices of those of them that follow Muon.
        **kwargs: As in `keras.optimizers.AdamW`.

    Raises:
        ValueError: when built with another number of variables.
    """

    # A function, since Keras would make variables in an attribute its own.
    statistics: Callable[[], Sequence[keras.Variable]] = tuple
    averages: Sequence[keras.Variable] = ()

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.05,
        rate_factors: Sequence[float] | None = None,
        matrices: Sequence[int] = (),
        **kwargs: Any,
    ):
        check(not kwargs.get("amsgrad"), "`amsgrad` must be False.", True)
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.rate_factors = rate_factors and tuple(rate_factors)
        self.matrices = tuple(matrices)

    def get_config(self) -> dict[str, Any]:
        factors = self.rate_factors
        arguments = {"rate_factors": factors and list(factors), "matrices": list(self.matrices)}
        return {**super().get_config(), **arguments}

    def add_variable(self, shape, initializer="zeros", dtype=None, *args, **kwargs):
        # In bfloat16, a beta of 0.999 is 1.
        dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        return super().add_variable(shape, initializer, dtype, *args, **kwargs)

    def build(self, variables):
        if self.built:
            return
        factors = self.rate_factors or (1.0,) * len(variables)
        rule = f"`rate_factors` must have one factor per trainable variable, {len(variables)}."
        check(len(factors) == len(variables), rule, len(factors))
        super().build(variables)
        decays = [self.weight_decay * (is_decayed(v) and self.decays(v)) for v in variables]
        self.factors_and_decays = tuple(zip(factors, decays, strict=True))
        # Means, as replicas of TensorFlow differ; copies, as JAX donates arrays.
        self.averages = [
            self.add_variable(v.shape, lambda *_, v=v, **__: ops.copy(v), v.dtype, "mean")
            for v in self.statistics()
        ]

    def update_step(self, gradient, variable, learning_rate):
        index, *moments = self.moments_of(variable)
        factor, decay = self.factors_and_decays[index]
        rate = ops.cast(learning_rate, "float32") * factor
        if index in self.matrices:
            states = map(ops.convert_to_tensor, (variable, moments[0]))
            value, momentum = muon(*states, gradient, rate, decay)
            self.assign(variable, value)
            self.assign(moments[0], momentum)
            return
        step = ops.cast(self.iterations + 1, "float32")
        values = map(ops.convert_to_tensor, (variable, *moments))
        betas = self.beta_1, self.beta_2
        values = adamw(*values, gradient, rate, decay, step, *betas, self.epsilon)
        for target, value in zip((variable, *moments), values, strict=True):
            self.assign(target, value)

    def update(self, gradients, variables, learning_rate):
        """Update all variables (PyTorch): a kernel for those of equal factors and decay."""
        import torch
        from torch.optim.adamw import adamw

        groups = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            (index, mean, square), value = self.moments_of(variable), variable.value
            is_plain = index not in self.matrices and value.is_contiguous()
            if value.dtype is not torch.float32 or not is_plain:
                self.update_step(gradient, variable, learning_rate)
                continue
            state = value, gradient.contiguous(), mean.value, square.value
            groups.setdefault(self.factors_and_decays[index], []).append(state)
        options = {"beta1": self.beta_1, "beta2": self.beta_2, "eps": self.epsilon}
        options |= {"fused": True, "amsgrad": False, "maximize": False}
        for (factor, decay), group in groups.items():
            rate = ops.cast(learning_rate, "float32") * factor
            # It increments the numbers of steps.
            steps = list(ops.cast(self.iterations, "float32").repeat(len(group)))
            with torch.no_grad():
                states = map(list, zip(*group, strict=True))
                adamw(*states, [], steps, lr=rate, weight_decay=decay, **options)

    def clip(self, gradients, clip_by_keras):
        """Return gradients, clipped as the arguments `clipnorm`, `global_clipnorm` ... say."""
        backend = keras.backend.backend()
        if backend == "torch" and (norm := self.global_clipnorm):
            import torch

            # Few kernels. As in Keras, a norm that is not finite makes all gradients NaN.
            total = torch.nn.utils.get_total_norm(list(gradients))
            factor = norm / total.clamp(min=norm) + (total - total)
            return [gradient * factor for gradient in gradients]
        if backend == "tensorflow" and (self.clipnorm or self.global_clipnorm or self.clipvalue):
            import tensorflow as tf

            # Keras clips the gradients of each replica, before their sum.
            replica = tf.distribute.get_replica_context()
            if replica and (count := replica.num_replicas_in_sync) > 1:
                sums = replica.all_reduce("SUM", list(gradients))
                return [gradient / count for gradient in clip_by_keras(sums)]
        return clip_by_keras(gradients)

    def move_averages(self, pairs, momentum):
        """Move averages toward the values of their variables."""
        weight = 1 - momentum
        for variable, average in pairs:
            value = ops.cast(variable, average.dtype)
            if keras.backend.backend() == "torch":  # One kernel instead of four.
                average.value.lerp_(value.detach(), weight)
            else:
                average.assign(average + weight * (value - average))

    def average_statistics(self):
        """Update the averages of the statistics, after a step."""
        self.move_averages(zip(self.statistics(), self.averages, strict=True), self.ema_momentum)

    def finalize_variable_values(self, var_list):
        if self.use_ema:
            statistics = zip(self.statistics(), self.averages, strict=True)
            for variable, average in [*self.averages_of(var_list), *statistics]:
                variable.assign(ops.copy(average))


def averages_of(model: keras.Model) -> Sequence[keras.Variable]:
    """Return the averages of statistics that the optimizer of a compiled model keeps."""
    optimizer = optimizer_of(model)
    return optimizer.averages if isinstance(optimizer, AdamW) else ()


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether weight decay applies: to kernels, not to vectors, tokens or positions."""
    others = ("embeddings", "token", "table", "freqs")
    return len(variable.shape) > 1 and variable.name not in others
