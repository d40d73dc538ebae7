"""The arguments that all families share, and the parts of a network that depend on them."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_vitx.checks import Remat, check, check_argument, check_counts
from keras_vitx.layers import Block, DenseHead, DistilledHead, SharedMapsBlock, TokenPooling
from keras_vitx.layers.base import at_least_float32
from keras_vitx.layers.initializers import initializers
from keras_vitx.layers.sharing import SharingAttention, check_similarity
from keras_vitx.layers.tokens import patch_grid

Layers = list[keras.layers.Layer]
Factory = Callable[[int], keras.layers.Layer]
"""A function from a block index to a new layer for that block."""


class Similarity(NamedTuple):
    """Similarity loss between the maps of consecutive blocks (DeepViT, Appendix A).

    `weight` times the mean over the first `depth` pairs of blocks; `over` and `of` are as in
    `SharedMapsBlock`.
    """

    weight: float
    depth: int
    over: str
    of: str = "used"

    def weights(self, depth: int) -> list[float]:
        """Return, for each of `depth` blocks, the weight of its comparison with the previous one.

        Raises a ValueError if a field is out of range, or `weight` is set without pairs.
        """
        check_similarity(self.over, self.of)
        check_counts(minimum=0, similarity_depth=self.depth)
        fits = self.depth < depth and (self.depth or not self.weight)
        rule = "`similarity_depth` must be at least 1 where `similarity` is set, and below depth"
        check(fits, f"{rule}={depth}.", self.depth)
        return [
            self.weight / self.depth if 1 <= index <= self.depth else 0.0 for index in range(depth)
        ]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The arguments that all families share; a family function receives them as `args`.

    The methods `grid`, `blocks` and `head` make the parts of a network that depend on them.
    The fields, with their defaults, are the public arguments that `family` adds to every
    family function.

    Args:
        drop_path: Rate of stochastic depth. A single rate is that of the last block, and
            rises linearly from 0 in the first block (in CaiT, all blocks have the same
            rate); a list has one rate per block.
        dropout: Dropout rate in the MLPs.
        attention: A function that takes the index of a block and returns a new attention
            layer for it, in place of the family's.
        mlp: Likewise, a function that returns a new MLP for a block.
        include_top: Whether the model has a classifier. If not, the output is all tokens,
            `(batch, tokens, dim)`, or, with `pooling`, one vector per image,
            `(batch, dim)`.
        weights: None for random initialization; `"imagenet"`; the name of a catalog
            entry; `"hf://owner/repo"` or `"hf://owner/repo@revision"` (a branch, tag or
            commit) on the Hugging Face hub; or the path of a `.safetensors`, `.pth`, `.ckpt`,
            `.weights.h5` or `.keras` file.
        input_shape: Image shape, `(height, width, channels)`, with sides that are multiples
            of the patch size. None means that of the checkpoint, or else of the size.
        pooling: `"token"` (the class token), `"avg"` or `"max"` (over the patches), `"token_avg"`
            (both, side by side) or `"attention"` (SigLIP). Under a classifier, None means what the network was trained with.
        classes: Number of classes. If it is not given, it is that of the checkpoint. If it differs
            from the checkpoint's, all weights except the classifier's are loaded.
        classifier_activation: Activation of the classifier, a name, a function or a layer, which is
            the last layer of the model; None returns logits.
        include_preprocessing: Whether the model takes pixels in 0..255 and begins with an
            `ImagePreprocessing` that normalizes them.
        input_tensor: A Keras tensor to use as the images.
        name: Name of the model.
        remat: What training recomputes in the backward pass, to save memory: nothing,
            `"products"` or True, as in `Chain`.
        residual_dtype: Precision in which the blocks sum their tokens: None, that of the
            policy; `"float32"`, as under PyTorch's autocast, also under a policy of half
            precision. docs/guides/memory.md has what both give.
        dtype: Dtype policy of the model, such as `"mixed_bfloat16"`; None is the global one,
            `keras.config.dtype_policy()`.
        strict: Whether the file must have all weights of the model and no others, but for a
            classifier of other classes. If not, weights that it lacks, such as those of another
            `attention`, keep their initial values, and others are left out; a log line lists both.
    """

    drop_path: float | Sequence[float] = 0.0
    dropout: float = 0.0
    attention: Factory | None = None
    mlp: Factory | None = None
    include_top: bool = True
    weights: str | os.PathLike | None = None
    input_shape: tuple[int, int, int] | None = None
    pooling: str | None = None
    classes: int = 1000
    classifier_activation: str | Callable | keras.layers.Layer | None = "softmax"
    include_preprocessing: bool = False
    input_tensor: Any = None
    name: str | None = None
    remat: Remat = False
    residual_dtype: str | None = None
    dtype: Any = None
    strict: bool = True

    def __post_init__(self):
        check_argument("pooling", self.pooling, Literal[*TokenPooling.poolings, "attention"] | None)
        check_counts(classes=self.classes)

    @property
    def pools_patches(self) -> bool:
        """Whether the output is pooled over the patches rather than read from a class token."""
        return self.pooling not in (None, "token", "token_avg")

    def grid(self, patch_size: int, stride: int | None = None) -> tuple[int, int]:
        """Return the number of rows and columns of patches; see `layers.tokens.patch_grid`."""
        check_counts(patch_size=patch_size, stride=1 if stride is None else stride)
        return patch_grid(self.input_shape, patch_size, stride)

    def blocks(
        self,
        attention: Factory,
        mlp: Factory,
        depth: int,
        drop_path_schedule: str = "linear",
        stage_starts: Collection[int] = (),
        similarity: Similarity | None = None,
        names: Sequence[str] | None = None,
        **arguments: Any,
    ) -> Layers:
        """Return `depth` blocks.

        A block whose attention reads the maps of the previous block (`SharedAttention`,
        `AccumulatingAttention`), or whose maps the similarity loss compares with them, receives
        them from it: both are a `SharedMapsBlock`.

        Args:
            attention: Returns the family's attention layer for the block of a given index.
            mlp: Likewise, the MLP of the block.
            depth: Number of blocks.
            drop_path_schedule: How a single rate of stochastic depth becomes one per block:
                `"linear"`, from 0 in the first block, or `"constant"`.
            stage_starts: Indices of blocks whose tokens differ from those of the previous block
                (a class token is added, a stage begins). They receive no maps.
            similarity: The similarity loss; None for no loss.
            names: One name per block; None means `blocks_0`, `blocks_1`, etc.
            **arguments: Further arguments of every block.

        Raises:
            ValueError: if a factory returns the same layer twice, `drop_path` does not match the
                depth, or the first block or one of `stage_starts` reads maps.
        """
        check_counts(depth=depth)
        rates = self.drop_path
        if isinstance(rates, Real):
            rates = drop_path_rates(rates, depth, drop_path_schedule)
        attentions = _layers_of_blocks("attention", self.attention or attention, depth)
        mlps = _layers_of_blocks("mlp", self.mlp or mlp, depth)
        weights, compared = [0.0] * depth, {}
        if similarity is not None:
            weights = similarity.weights(depth)
            compared = {"similarity_over": similarity.over, "similarity_of": similarity.of}
        receives = [
            (isinstance(attention, SharingAttention) and attention.reads_maps) or weight > 0
            for attention, weight in zip(attentions, weights, strict=True)
        ]
        blocks = []
        emits = [*receives[1:], False]
        parts = zip(attentions, mlps, rates, strict=True)
        for index, (attention, mlp, rate) in enumerate(parts):
            has_maps = index and index not in stage_starts
            rule = (
                "`attention` must not read shared maps in the first block of a network or stage, "
            )
            rule += f"or behind a class token: there are none for block {index}."
            check(has_maps or not receives[index], rule, type(attention).__name__)
            kind, maps = Block, {}
            if receives[index] or emits[index]:
                kind = SharedMapsBlock
                maps = {"receives_maps": receives[index], "emits_maps": emits[index], **compared}
                maps["similarity"] = weights[index]
            block = kind(
                attention,
                mlp,
                drop_path=rate,
                residual_dtype=self.residual_dtype,
                name=names[index] if names else f"blocks_{index}",
                **maps,
                **arguments,
            )
            blocks.append(block)
        return blocks

    def head(
        self,
        num_class_tokens: int = 1,
        dense_head: bool = False,
        initialization: str = "normal",
        dim: int = 1,
        num_register_tokens: int = 0,
        attention_pooling: keras.layers.Layer | None = None,
        default_pooling: str | None = None,
        after_pooling: Sequence[keras.layers.Layer] = (),
    ) -> Layers:
        """Return the layers after the last norm: pooling, a classifier with its activation, or none.

        The classifier runs in float32 also where the other layers run in half precision.

        Args:
            num_class_tokens: Number of leading tokens that are classified. With two,
                each has its own classifier, as in a distilled model.
            dense_head: Whether the patches are also classified.
            initialization: Initial weights of the classifiers, as in `layers.initializers`.
            dim: Width of the last tokens, on which `"uniform"` depends.
            num_register_tokens: Number of tokens between those and the patches.
            attention_pooling: The layer of the pooling `"attention"`, if the family has it.
            default_pooling: The pooling under a classifier; None is `"attention"` if there is that,
                else `"token"`, or `"avg"` without class tokens.
            after_pooling: Layers over the vector of the image.

        Raises:
            ValueError: if `pooling` is what the network does not have, or over patches and the
                classifier reads several tokens.
        """
        lacks = dict.fromkeys(("token", "token_avg"), num_class_tokens == 0)
        lacks["attention"] = attention_pooling is None
        rule = f"`pooling` must be 'avg' or 'max': there is no pooling by {self.pooling}."
        check(not lacks.get(self.pooling), rule, self.pooling)
        activation = [] if self.classifier_activation is None else [self.classifier_activation]
        if activation and not isinstance(activation[0], keras.layers.Layer):
            activation = [
                keras.layers.Activation(activation[0], dtype=at_least_float32(), name="prediction")
            ]
        if self.include_top and (num_class_tokens == 2 or dense_head):
            rule = "`pooling` must be None or 'token' where the classifier reads several tokens."
            is_pooled = self.pooling not in (None, "token") or default_pooling == "avg"
            check(not is_pooled, rule, self.pooling or default_pooling)
            head = DenseHead if dense_head else DistilledHead
            return [head(self.classes, initialization, name="head"), *activation]
        layers: Layers = []
        if self.include_top or self.pooling:
            default = "attention" if attention_pooling else "token" if num_class_tokens else "avg"
            pooling = self.pooling or default_pooling or default
            prefix = num_class_tokens + num_register_tokens
            pool = attention_pooling
            if pooling != "attention":
                pool = TokenPooling(pooling, prefix, name="pool")
            layers += [pool, *after_pooling]
        if self.include_top:
            starts = initializers(initialization, dim)
            dense = keras.layers.Dense(
                self.classes, dtype=at_least_float32(), name="head", **starts
            )
            layers += [dense, *activation]
        return layers


def drop_path_rates(rate: float, depth: int, schedule: str) -> list[float]:
    """Return a rate of stochastic depth per block: `"linear"`, from 0 on, or `"constant"`."""
    return np.linspace(0 if schedule == "linear" else rate, rate, depth).tolist()


def _layers_of_blocks(argument: str, factory: Factory, depth: int) -> Layers:
    """Call a factory for every block, and check that it returns another layer for each."""
    layers = [factory(index) for index in range(depth)]
    are_new = len(set(map(id, layers))) == depth
    check(are_new, f"`{argument}` must return a new layer for each block.", layers)
    return layers


def to_python(value: object, max_ndim: int = 0) -> Any:
    """Convert NumPy's numbers to Python's, which Keras asks for, in lists and dictionaries, too.

    An array of at most `max_ndim` dimensions becomes a number or a list.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim <= max_ndim:
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(to_python(item, max_ndim) for item in value)
    if type(value) is dict:
        return {key: to_python(item, max_ndim) for key, item in value.items()}
    return value
