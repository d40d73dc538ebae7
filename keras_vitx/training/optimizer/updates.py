"""The two rules of update that a recipe knows: AdamW and Muon."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import AdamWByRate, MuonByRate, sublayers
from keras_vitx.training.network.blocks import is_block, layers_of


class _KernelsDecay:
    """Weight decay of kernels only, and a learning rate per layer, kept in saved files."""

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.05,
        rate_factors: Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
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


@keras.saving.register_keras_serializable(package="keras_vitx")
class AdamW(_KernelsDecay, AdamWByRate):
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


@keras.saving.register_keras_serializable(package="keras_vitx")
class Muon(_KernelsDecay, MuonByRate):
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
        rate_factors: As in `AdamW`.
        matrices: Places of the matrices that Muon updates, in the order of
            `model.trainable_variables`, see `matrices_of`. None is all variables with two axes,
            as in Keras, by which the head is one of them.
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

    def get_config(self) -> dict[str, Any]:
        matrices = self.matrices
        return {
            **super().get_config(),
            "matrices": None if matrices is None else list(matrices),
        }


def is_decayed(variable: keras.Variable) -> bool:
    """Return whether weight decay applies to `variable`: only if it is a kernel.

    Biases, norms and LayerScale have one axis; tokens and position embeddings are
    recognized by their names.
    """
    return len(variable.shape) > 1 and variable.name not in ("embeddings", "token")


def matrices_of(model: keras.Model) -> tuple[int, ...]:
    """Return the places in `model.trainable_variables` of the blocks' `Dense` kernels.

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
