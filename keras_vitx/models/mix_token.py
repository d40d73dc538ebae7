"""MixToken: patches exchanged within a batch after the patch embedding (Jiang et al., 2021).

A box of the grid of patches is exchanged with that of the batch in reverse order. The class is
that of both images, by the share of the area; every patch keeps the label of its own image: its
output is exchanged back before the loss. Unlike CutMix, no patch sees pixels of two images.

The batches choose the box, and pass it with the labels (`keras_vitx.training.MixToken`). A step
of training is then a function of its batch alone, on every backend; the network has no random
state for it and no layer, so that inference and saved files are as without it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

BOX = "mix_token"
"""Name of the box among the labels: bool `(batch, rows * columns)`, alike for all images."""

# Not an attribute of the model: TensorFlow's strategies run steps of several replicas in threads.
_active: ContextVar[tuple[Any, Any]] = ContextVar(BOX, default=(None, None))


@contextlib.contextmanager
def mixing(model: keras.Model, data: Any) -> Iterator[None]:
    """Let `box_of(model)` return the box of `data`, the batch of a training step."""
    _, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
    token = _active.set((model, separate(labels)[1]))
    try:
        yield
    finally:
        _active.reset(token)


def box_of(model: keras.Model) -> Any:
    """Return the box of the training step that `model` runs, or None."""
    owner, box = _active.get()
    return box if owner is model else None


def separate(labels: Any) -> tuple[Any, Any]:
    """Return the labels without the box, and the box or None."""
    if not isinstance(labels, dict) or BOX not in labels:
        return labels, None
    rest = _without(labels, BOX)
    return rest["head"] if list(rest) == ["head"] else rest, labels[BOX]


def at_embedding(steps: list) -> tuple[list, list]:
    """Split a list of layers after its patch embedding.

    Raises:
        ValueError: if there is none.
    """
    for index, step in enumerate(steps, start=1):
        if hasattr(step, "new_grid"):
            return steps[:index], steps[index:]
    raise ValueError("MixToken exchanges patches, but the model has no patch embedding.")


def exchanged(patches: Any, box: Any) -> Any:
    """Exchange the patches in the box with those of the batch in reverse order.

    Args:
        patches: `(batch, rows * columns, dim)`.
        box: `(batch, rows * columns)`.
    """
    return ops.where(ops.cast(box, "bool")[..., None], ops.flip(patches, axis=0), patches)


def mixed_loss(compare: Callable, labels: Any, outputs: Any, weights: Any, box: Any) -> Any:
    r"""Return the loss of a batch whose patches were exchanged.

    $(1 - s)\, \mathrm{loss}(\hat y, y) + s\, \mathrm{loss}(\hat y, y')$ with $s$ the area
    of the box and $y'$ the labels in reverse order, which for a cross entropy is the loss of
    the mixed label. The loss of the patches (`"aux_head"`) is that of their own images.

    Args:
        compare: A function of labels, outputs and sample weights that returns the loss.
        labels: Labels, or a dictionary of labels.
        outputs: Output of the model, or a dictionary of outputs.
        weights: Weight per image, `(batch,)`, or None.
        box: `(batch, rows * columns)`.
    """
    share = _share(box)
    weights = ops.ones_like(share) if weights is None else weights
    one, other = _times(weights, 1 - share), _times(weights, share)
    of_images = _without(labels, "aux_head")
    reverse = keras.tree.map_structure(lambda label: ops.flip(label, axis=0), of_images)
    classes = _without(outputs, "aux_head")
    total = compare(of_images, classes, one) + compare(reverse, classes, other)
    if isinstance(outputs, dict) and "aux_head" in outputs:
        total = total + compare(labels, {"aux_head": outputs["aux_head"]}, weights)
    return total


def main_labels(labels: Any, box: Any) -> Any:
    """Return the labels of those images that cover the larger part, for the metrics."""
    main = _share(box) <= 0.5

    def chosen(label):
        axes = tuple(range(1, len(label.shape)))
        return ops.where(ops.expand_dims(main, axes), label, ops.flip(label, axis=0))

    return keras.tree.map_structure(chosen, labels)


def _without(values, name):
    """Return a dictionary without one of its names; other values are returned unchanged."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if key != name}


def _times(weights, factors):
    """Multiply weights, or a dictionary of them, by a factor per image."""

    def times(weight):
        axes = tuple(range(1, len(weight.shape)))
        return ops.cast(weight, factors.dtype) * ops.expand_dims(factors, axes)

    return keras.tree.map_structure(times, weights)


def _share(box):
    """Return the fraction of the area in the box, `(batch,)`."""
    return ops.mean(ops.cast(box, "float32"), axis=-1)
