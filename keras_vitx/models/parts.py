"""What the lists of layers of several families have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import keras
import numpy as np

from keras_vitx.layers import (
    Attention,
    Block,
    CarryingBlock,
    ClassToken,
    DenseHead,
    DistilledHead,
    PositionEmbedding,
    TokenPooling,
)
from keras_vitx.layers.blocks import check_similarity_over
from keras_vitx.models.checks import check_counts

Layers = list[keras.layers.Layer]
Factory = Callable[[int], keras.layers.Layer]
"""Makes the layer of the block with that index, a new one each time."""


@dataclass(frozen=True)
class Top:
    """What follows the last norm, as the user asked for it.

    Attributes:
        include_top: Whether the classifier is there.
        pooling: As in `TokenPooling`, or None.
        classes: Number of classes.
        activation: Activation of the classifier.
    """

    include_top: bool
    pooling: str | None
    classes: int
    activation: str | Callable | None

    def __call__(self, num_class_tokens: int = 1, dense_head: bool = False) -> Layers:
        """Return the layers: none, a pooling, a pooling and a classifier, or one head.

        Args:
            num_class_tokens: Leading tokens that are no patches; with two the
                classifiers are those of a distilled model.
            dense_head: Whether patches are classified, too.

        Raises:
            ValueError: for `pooling="token"` without a class token, and for
                another than the class token under a classifier that reads several.
        """
        if self.pooling == "token" and num_class_tokens == 0:
            raise ValueError(
                "`pooling` must be 'avg' or 'max': there is no class token. Received: 'token'."
            )
        several = num_class_tokens == 2 or dense_head
        if several and self.include_top:
            if self.pooling not in (None, "token"):
                raise ValueError(
                    "`pooling` must be None or 'token' where the classifier reads several tokens "
                    f"(distillation_token, dense_head). Received: {self.pooling!r}."
                )
            head = DenseHead if dense_head else DistilledHead
            return [head(self.classes, self.activation, name="head")]
        layers: Layers = []
        if self.include_top or self.pooling:
            pooling = self.pooling or ("token" if num_class_tokens else "avg")
            layers.append(TokenPooling(pooling, num_class_tokens, name="pool"))
        if self.include_top:
            layers.append(classifier(self.classes, self.activation))
        return layers


def classifier(classes: int, activation: str | Callable | None) -> keras.layers.Dense:
    """Return the classifier of one vector; it runs in float32 in every precision."""
    return keras.layers.Dense(
        classes,
        activation=activation,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        dtype="float32",
        name="head",
    )


def class_tokens(distillation_token: bool = False) -> Layers:
    """Return the layers with which the class token enters, and the distillation token after it."""
    distillation = [ClassToken(name="dist_token")] if distillation_token else []
    return [*distillation, ClassToken(name="cls_token")]


def last_norm() -> keras.layers.Layer:
    """Return the norm after the last block."""
    return keras.layers.LayerNormalization(epsilon=1e-6, name="norm")


def class_token_first(
    stem: keras.layers.Layer,
    grid: tuple[int, int],
    blocks: Layers,
    top: Layers,
    distillation_token: bool = False,
) -> Layers:
    """Return the list of a network whose class token enters with the patches, as in ViT."""
    tokens = class_tokens(distillation_token)
    return [
        stem,
        *tokens,
        PositionEmbedding(grid, len(tokens), name="pos_embed"),
        *blocks,
        last_norm(),
        *top,
    ]


@dataclass(frozen=True)
class Stack:
    """How blocks are stacked, as the user asked for it.

    Attributes:
        drop_path: Rate of stochastic depth, or one a block.
        dropout: Rate of dropout in the MLPs.
        attention: Makes the attention of a block in place of the family's, or None.
        mlp: Makes its MLP, likewise.
    """

    drop_path: float | Sequence[float]
    dropout: float
    attention: Factory | None
    mlp: Factory | None

    def rates(self, depth: int, rising: bool = True) -> list[float]:
        """Return the rate of stochastic depth of each of `depth` blocks.

        Args:
            depth: Number of blocks.
            rising: Whether one rate is the last block's, and the first has 0;
                otherwise it is every block's.

        Raises:
            ValueError: for a sequence of another length than `depth`.
        """
        check_counts(depth=depth)
        if isinstance(self.drop_path, Real):
            first = 0 if rising else self.drop_path
            return [float(rate) for rate in np.linspace(first, self.drop_path, depth)]
        if not isinstance(self.drop_path, (list, tuple)) or len(self.drop_path) != depth:
            raise ValueError(
                f"`drop_path` must be one rate, or a list of one a block, {depth}. "
                f"Received: {self.drop_path!r}."
            )
        return [float(rate) for rate in self.drop_path]

    def __call__(
        self,
        attention: Factory,
        mlp: Factory,
        rates: Sequence[float],
        name: str = "blocks",
        first: int = 0,
        entry: int = 0,
        similarity: Sequence[float] = (),
        similarity_over: str = "heads",
        **arguments: Any,
    ) -> Layers:
        """Return one block for each rate of stochastic depth.

        A block whose attention reads maps (`SharedAttention`, `AccumulatingAttention`)
        gets those of the block before it.

        Args:
            attention: Makes the family's own attention of a block, given its index.
            mlp: Makes its MLP, likewise.
            rates: Rate of stochastic depth of each block.
            name: Start of the blocks' names.
            first: Index of the first block.
            entry: Place of the block before which the class token enters; no maps are
                handed on over it.
            similarity: As in `CarryingBlock`, one entry per block from the first one on;
                blocks beyond the last entry have none.
            similarity_over: As in `CarryingBlock`.
            **arguments: Further arguments of each block.

        Raises:
            ValueError: when a factory gives no layer, or the same one twice; when the
                first block, or that after the class token, wants maps.
        """
        indices = range(first, first + len(rates))
        attentions = _made("attention", self.attention or attention, indices)
        mlps = _made("mlp", self.mlp or mlp, indices)
        weights = [*similarity, *[0.0] * len(rates)][: len(rates)]
        takes = [
            getattr(layer, "reads_maps", False) or weight > 0
            for layer, weight in zip(attentions, weights, strict=True)
        ]
        for i in {0, entry} & set(range(len(takes))):
            if takes[i]:
                raise ValueError(
                    "`attention` must not read carried maps in the first block, of all, of a "
                    "stage or after the class token: it is handed none. "
                    f"Received: {type(attentions[i]).__name__} for block {indices[i]}."
                )
        gives = [*takes[1:], False]
        blocks = []
        for i, rate in enumerate(rates):
            kind, carrying = Block, {}
            if takes[i] or gives[i]:
                if not isinstance(attentions[i], Attention):
                    raise ValueError(
                        "`attention` must return an `Attention` for a block that takes maps or "
                        "hands them on. "
                        f"Received: {type(attentions[i]).__name__} for block {indices[i]}."
                    )
                kind = CarryingBlock
                carrying = {
                    "takes_maps": takes[i],
                    "gives_maps": gives[i],
                    "similarity": weights[i],
                    "similarity_over": similarity_over,
                }
            blocks.append(
                kind(
                    attentions[i],
                    mlps[i],
                    drop_path=rate,
                    name=f"{name}_{i}",
                    **carrying,
                    **arguments,
                )
            )
        return blocks


def similarity_weights(
    depth: int, similarity: float, similarity_depth: int, similarity_over: str
) -> dict[str, Any]:
    """Return the arguments of `Stack` for DeepViT's similarity loss.

    The loss is `similarity` times the mean over `similarity_depth` pairs of blocks, so
    that each pair weighs `similarity / similarity_depth`.

    Args:
        depth: Number of blocks.
        similarity: Weight of the loss.
        similarity_depth: Number of blocks, from the first one on, that are compared with
            the block after them.
        similarity_over: As in `CarryingBlock`.

    Raises:
        ValueError: for an argument out of its range, or a weight without pairs.
    """
    check_similarity_over(similarity_over)
    check_counts(least=0, similarity_depth=similarity_depth)
    if similarity_depth > depth - 1:
        raise ValueError(
            f"`similarity_depth` must be at most {depth - 1}, one less than depth={depth}. "
            f"Received: {similarity_depth}."
        )
    if not isinstance(similarity, Real) or similarity < 0:
        raise ValueError(f"`similarity` must be a number of at least 0. Received: {similarity!r}.")
    if similarity and not similarity_depth:
        raise ValueError(
            "`similarity_depth` must be at least 1 where `similarity` is set. "
            f"Received: similarity={similarity}, similarity_depth=0."
        )
    weights = [0.0] + [similarity / similarity_depth] * similarity_depth if similarity else []
    return {"similarity": weights, "similarity_over": similarity_over}


def _made(argument: str, factory: Factory, indices: Sequence[int]) -> Layers:
    """Return the layer of each block, checked."""
    layers: Layers = []
    for index in indices:
        makes = callable(factory) and not isinstance(factory, keras.layers.Layer)
        layer = factory(index) if makes else factory
        if not makes or not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"`{argument}` must be a function that takes the index of a block and returns "
                f"a layer. Received: {layer!r} for block {index}."
            )
        if any(layer is other for other in layers):
            raise ValueError(
                f"`{argument}` must return a new layer for each block. "
                f"Received: {layer.name!r} again for block {index}."
            )
        layers.append(layer)
    return layers
