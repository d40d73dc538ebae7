"""Attribution: how much a prediction owes to each patch or pixel of its image."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Literal

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_vitx.analysis.trace import BlockTrace, trace
from keras_vitx.backend import input_gradient
from keras_vitx.checks import check_argument
from keras_vitx.layers import TokenPooling
from keras_vitx.layers.recording import recording
from keras_vitx.outputs import outputs_of

Method = Literal["rollout", "gradient_attention", "gradient", "smooth_gradient"]
Target = int | Iterable[int] | None


def attribute(
    model: keras.Model,
    images: ArrayLike,
    method: Method = "gradient_attention",
    target: Target = None,
    samples: int = 50,
    noise: float = 0.15,
    seed: int = 0,
) -> np.ndarray:
    r"""Return how much the prediction of a class owes to each patch or pixel.

    With $A_{l,h}$ the maps that multiplied the values in head $h$ of block $l$, $y$ the logit of
    the class and $X$ the image:

    - `"rollout"`, of no class: $R_l = \hat A_l R_{l-1}$, where $\hat A_l$ is
      $\frac1H \sum_h |A_{l,h}| + I$, divided by its row sums (Abnar and Zuidema, 2020, Section 3).
    - `"gradient_attention"`: $R_l = R_{l-1} + \bar A_l R_{l-1}$ with
      $\bar A_l = \frac1H \sum_h \max(0, A_{l,h} \odot \partial y / \partial A_{l,h})$ (Chefer et
      al., 2021, arXiv 2103.15679, Equations 5 and 6).
    - `"gradient"`: $|\partial y / \partial X|$, the largest of the channels (Simonyan et al., 2013,
      Section 3.1).
    - `"smooth_gradient"`: the same of the mean gradient over noisy images (Smilkov et al., 2017).

    $R_0$ is the identity for patches. The result is the row of the class token in the last $R$, or
    the mean of those of the patches if the classifier pools them. In a rollout, the contributions
    of patches and of other tokens sum to 1; the other methods promise no sum.

    Maps may be modified. Rows need not sum to 1; a negative weight counts by its magnitude in a
    rollout, and with the sign of its gradient otherwise. Class attention changes the class tokens
    only. Shared maps count in each block by what they do there. $R$ begins anew where the grid
    changes (PiT).

    Blocks run without fused attention while they are traced; nothing needs to be switched off.

    Args:
        model: A model of this package, a `Chain`, with a classifier unless for `"rollout"`.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        method: The name of the method.
        target: The class $c$ (of one sigmoid, 0 or 1), or one per image; None is the most probable.
        samples: Number of noisy images for `"smooth_gradient"`.
        noise: Their standard deviation, as a fraction of the range of values of an image.
        seed: Seed of the noise.

    Returns:
        float32, `(batch, rows, columns)` of the last grid for the two methods of maps, `(batch,
        height, width)` for the two of pixels.

    Raises:
        ValueError: if the model has no classifier, or no attention on a grid of patches.
    """
    check_argument("method", method, Method)
    images = np.asarray(images, "float32")
    if method == "rollout":
        return _of_patches(model, rollout(trace(model, images)))
    kind, classes = outputs_of(model)
    # One sigmoid is two classes: the logit of the first is the negative one.
    rows = [[-1], [1]] if (kind, classes) == ("sigmoid", 1) else np.eye(classes)
    rows = np.asarray(rows, "float32")
    if target is None:
        target = ((model.predict_on_batch(images) - 0.5) @ rows.T).argmax(-1)
    of_target = rows[np.broadcast_to(target, len(images))]
    if method == "gradient_attention":
        blocks = list(trace(model, images))
        maps = {block.name: block.maps for block in blocks if block.maps is not None}
        if not maps:
            raise ValueError(f"`model` must have attention. Received: {model.name!r}.")
        unchanged = {name: np.zeros_like(array) for name, array in maps.items()}
        gradient = input_gradient(partial(_score, model), model.variables)
        gradients = gradient(unchanged, images, of_target)
        return _of_patches(model, gradient_attention(blocks, gradients))
    gradient = input_gradient(partial(_score, model, {}), model.variables)
    if method == "gradient":
        return np.abs(gradient(images, of_target)).max(-1)
    random, axes = np.random.default_rng(seed), tuple(range(1, images.ndim))
    deviation = noise * np.ptp(images, axis=axes, keepdims=True)
    total = np.zeros_like(images)
    for _ in range(samples):
        noisy = images + deviation * random.standard_normal(images.shape, "float32")
        total += gradient(noisy, of_target)
    return np.abs(total / samples).max(-1)


def rollout(blocks: Iterable[BlockTrace]) -> np.ndarray:
    """Return $R_L$ of `"rollout"` in `attribute`, `(batch, tokens, patches)`."""

    def step(block):
        maps = _square(np.abs(block.maps).mean(1), block)
        return maps / maps.sum(-1, keepdims=True)

    return _product(blocks, step)


def gradient_attention(
    blocks: Iterable[BlockTrace], gradients: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return $R_L$ of `"gradient_attention"` in `attribute`, `(batch, tokens, patches)`.

    Args:
        blocks: The traces.
        gradients: The gradients by their maps, by name of the block.
    """
    return _product(
        blocks,
        lambda block: _square(np.maximum(block.maps * gradients[block.name], 0).mean(1), block),
    )


def _square(maps, block):
    """Return a map between all tokens plus the identity; class attention has fewer queries."""
    tokens, (_, queries, keys) = block.inputs.shape[1], maps.shape
    result = np.repeat(np.eye(tokens, dtype="float32")[None], len(maps), axis=0)
    result[:, :queries, tokens - keys :] += maps
    return result


def _product(blocks: Iterable[BlockTrace], step: Callable[[BlockTrace], np.ndarray]) -> np.ndarray:
    """Multiply the matrices of the blocks: what each token has of each patch."""
    total, grid = None, None
    for block in blocks:
        if block.maps is None or block.grid is None:
            continue
        if block.grid != grid:
            grid, patches = block.grid, np.eye(block.num_patches, dtype="float32")
            total = np.repeat(patches[None], len(block.maps), axis=0)
        # A class token that enters has nothing of the image yet.
        entered = block.inputs.shape[1] - total.shape[1]
        total = step(block) @ np.pad(total, ((0, 0), (entered, 0), (0, 0)))
        del block  # Free its arrays before the next block runs.
    if total is None:
        raise ValueError("`model` must have attention on a grid of patches.")
    return total


def _of_patches(model, total):
    """Return the row that the classifier reads, on the grid: `(batch, rows, columns)`."""
    patches = total.shape[-1]
    pools = any(isinstance(x, TokenPooling) and x.pooling != "token" for x in model.layers)
    has_class_token = total.shape[1] > patches and not pools
    rows = total[:, 0] if has_class_token else total[:, -patches:].mean(1)
    return rows.reshape(len(rows), *model.grid)


def _score(model, changes, images, of_target):
    """Return the sum of the logits of the targets, with `changes` added to the maps, by block."""
    x = images
    for layer in model.logit_layers:
        change = changes.get(layer.name)
        with nullcontext() if change is None else recording(_add_to_maps(change)):
            x = layer(x)
    return ops.sum(ops.multiply(ops.cast(x, "float32"), of_target))


def _add_to_maps(change):
    """Return a function that adds `change` to maps, and leaves other tensors as they are."""
    return lambda name, x: x + ops.cast(change, x.dtype) if name == "maps" else x
