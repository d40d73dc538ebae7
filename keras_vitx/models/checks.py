"""Validation of the arguments that all families share."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.layers import TokenPooling
from keras_vitx.layers.tokens import nearest_sides


def patch_grid(
    image_shape: Sequence[int],
    patch_size: int,
    stride: int | None = None,
    argument: str = "input_shape",
) -> tuple[int, int]:
    """Return the number of rows and columns of patches in an image.

    Args:
        image_shape: `(height, width)`, and anything after them.
        patch_size: Side of a patch in pixels.
        stride: Distance between adjacent patches in pixels; None means `patch_size`.
        argument: Name of the argument with the shape, for errors.

    Raises:
        ValueError: if a side is not a multiple of `patch_size` or, with a `stride`, is
            smaller than it.
    """
    check_counts(patch_size=patch_size, stride=1 if stride is None else stride)
    height, width, *_ = image_shape
    received = f"Received: {argument}={tuple(image_shape)}"
    if stride is not None:
        if min(height, width) < patch_size:
            raise ValueError(
                f"`{argument}` must have sides of at least the patch size {patch_size}. {received}."
            )
        return (height - patch_size) // stride + 1, (width - patch_size) // stride + 1
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"`{argument}` must have sides that are multiples of the patch size {patch_size}. "
            f"{received}; {nearest_sides((height, width), patch_size)}."
        )
    return height // patch_size, width // patch_size


def check_top(pooling: str | None, classes: int, classifier_activation: Any) -> None:
    """Check the arguments of the classifier.

    Raises:
        ValueError: if one is invalid.
    """
    known = TokenPooling.poolings
    if pooling is not None and pooling not in known:
        raise ValueError(f"`pooling` must be None or one of {known}. Received: {pooling!r}.")
    check_counts(classes=classes)
    try:
        keras.activations.get(classifier_activation)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`classifier_activation` must be None or an activation that Keras knows. "
            f"Received: {classifier_activation!r}."
        ) from error


def resolve_shape(
    input_shape: Sequence[int] | None, input_tensor: Any
) -> tuple[int, int, int] | None:
    """Return the image shape given by either argument, or None.

    Raises:
        ValueError: if an axis is missing, or the two arguments contradict each other.
    """
    if input_tensor is not None:
        if not keras.backend.is_keras_tensor(input_tensor):
            raise ValueError(
                "`input_tensor` must be a Keras tensor, e.g. `keras.Input((224, 224, 3))`. "
                f"Received: {type(input_tensor).__name__}."
            )
        if input_shape is not None and tuple(input_shape) != tuple(input_tensor.shape[1:]):
            raise ValueError(
                "`input_shape` contradicts `input_tensor`. Received: "
                f"input_shape={tuple(input_shape)}, a tensor of shape {input_tensor.shape}."
            )
        input_shape = input_tensor.shape[1:]
    if input_shape is None:
        return None
    if (
        not isinstance(input_shape, (tuple, list))
        or len(input_shape) != 3
        or not all(map(is_count, input_shape))
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), three positive whole numbers. "
            f"Received: input_shape={input_shape!r}."
        )
    return tuple(int(side) for side in input_shape)


def is_count(number: Any, least: int = 1) -> bool:
    """Return whether `number` is an integer of at least `least`."""
    is_whole = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    return is_whole and number >= least


def check_counts(least: int = 1, **counts: Any) -> None:
    """Check that each of `counts` is an integer of at least `least`.

    Raises:
        ValueError: naming the first that is not.
    """
    for name, count in counts.items():
        if not is_count(count, least):
            raise ValueError(
                f"`{name}` must be a whole number of at least {least}. Received: {count!r}."
            )


def check_heads(dim: int, num_heads: int) -> None:
    """Check that `num_heads` divides `dim`.

    Raises:
        ValueError: if it does not.
    """
    check_counts(dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise ValueError(
            f"`num_heads` must divide `dim`. Received: num_heads={num_heads}, dim={dim}."
        )


def scale_factor(scale: Any, shape: Sequence[int]) -> int:
    """Return by how much the sides of a map grow or shrink: `scale` or its inverse.

    Args:
        scale: A power of two, such as 4 or 0.5.
        shape: Rows and columns of the map.

    Raises:
        ValueError: if it is none, or nothing would be left of the map.
    """
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool) and scale > 0
    factor = round(max(scale, 1 / scale)) if is_number else 0
    if not is_number or max(scale, 1 / scale) != factor or factor & (factor - 1):
        raise ValueError(f"`scales` must be powers of two, such as 4 or 0.5. Received: {scale!r}.")
    if scale < 1 and min(shape) < factor:
        raise ValueError(
            f"`scales` must leave at least one place of a map of {shape[0]} x {shape[1]}. "
            f"Received: {scale!r}."
        )
    return factor
