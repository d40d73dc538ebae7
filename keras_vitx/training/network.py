"""The settings of a recipe that change a built network."""

import typing
from collections.abc import Iterator

import keras
import numpy as np

from keras_vitx.keras_internals import sublayers
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.training.recipe import Precision, Recipe


def set_network(model: keras.Model, recipe: Recipe) -> None:
    """Apply the settings of a recipe from `drop_path` to `precision` to `model`, in place.

    Call it before `compile`. `Recipe("mine", drop_path=0.1)` changes only stochastic depth.

    Raises:
        ValueError: if a setting does not apply to the model.
    """
    if recipe.remat is not None and not hasattr(model, "remat"):
        raise ValueError(
            f"`remat` must be None for a model that is not a `Chain`. Received: {recipe.remat}. "
            "Create its layers within `keras.RematScope` instead."
        )
    if recipe.crop_ratio is not None and getattr(model, "preprocessing", None) is None:
        raise ValueError(
            f"`crop_ratio` must be None without `preprocessing`. Received: {recipe.crop_ratio}."
        )
    if recipe.drop_path is not None:
        set_drop_path(model, recipe.drop_path, recipe.drop_path_schedule)
    if recipe.similarity is not None:
        set_similarity(model, recipe.similarity, recipe.similarity_depth or 1)
    if recipe.remat is not None:
        model.remat = recipe.remat
    if recipe.crop_ratio is not None:
        preprocessing = Preprocessing.of(model.preprocessing)
        model.preprocessing = preprocessing.replace(crop_ratio=recipe.crop_ratio)
    if recipe.precision is not None:
        set_precision(model, recipe.precision)


def set_drop_path(model: keras.Model, rate: float, schedule: str = "linear") -> None:
    """Set the rate of stochastic depth, linear from 0 or constant, except in class attention."""
    blocks = [block for block in _blocks(model) if not hasattr(block.attention, "num_class_tokens")]
    if not blocks:
        raise ValueError(
            f"`drop_path` must be None without blocks. Received: {rate} for {model.name!r}."
        )
    rates = np.linspace(0 if schedule == "linear" else rate, rate, len(blocks))
    for block, block_rate in zip(blocks, rates, strict=True):
        block.set_drop_path(float(block_rate))


def set_similarity(model: keras.Model, weight: float, depth: int) -> None:
    """Set the weight of the similarity between maps in the loss, in place.

    Each of the first `depth` pairs of blocks has the weight `weight / depth` (DeepViT, Appendix A,
    Equation 6, whose B is `depth`). Raises a ValueError unless the blocks share their maps.
    """
    blocks = _blocks(model)
    if not 1 <= depth < len(blocks):
        raise ValueError(
            "`similarity_depth` must be at least 1 and below the number of blocks, "
            f"{len(blocks)}. Received: {depth}."
        )
    missing = [b.name for b in blocks[1 : depth + 1] if not getattr(b, "receives_maps", False)]
    if weight and missing:
        raise ValueError(
            "`similarity` must be None for a model whose blocks receive no maps. Received: "
            f"{weight}, for {missing[0]!r} of {model.name!r}. Create the model with "
            f"similarity={weight}, similarity_depth={depth}."
        )
    for index, block in enumerate(blocks):
        if hasattr(block, "similarity"):
            block.similarity = weight / depth if 1 <= index <= depth else 0.0


def set_precision(model: keras.Model, precision: Precision) -> None:
    """Set the precision in which `model` computes; its variables stay in float32.

    The last layer, the classifier, also computes in float32.

    Args:
        model: A model, changed in place.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Raises:
        ValueError: if `precision` is unknown.
    """
    precisions = typing.get_args(Precision)
    if precision not in precisions:
        raise ValueError(f"`precision` must be one of {precisions}. Received: {precision!r}.")
    classifier = set(map(id, sublayers(model.layers[-1])))
    for layer in sublayers(model):
        if id(layer) not in classifier:
            layer.dtype_policy = precision


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers of a model in order, including those of nested models."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)
        else:
            yield layer


def is_block(layer: keras.layers.Layer) -> bool:
    """Return whether `layer` is a block of the zoo: residual branches with stochastic depth."""
    return hasattr(layer, "set_drop_path")


def _blocks(model):
    return [layer for layer in layers_of(model) if is_block(layer)]
