"""A trained head on a new set of classes: keep it, permute it, or start anew."""

import logging
from collections.abc import Sequence
from typing import Literal

import keras
import numpy as np

from keras_vitx.data.predictions import imagenet_classes

Head = Literal["match", "keep", "fresh"]
log = logging.getLogger(__name__)


def match_head(
    model: keras.Model, class_names: Sequence[str] | None, head: Head = "match"
) -> Literal["kept", "permuted", "fresh"]:
    """Make the head of `model` fit the classes of a data set; log one line if it changes.

    With `"match"`, the head is

    - permuted, where both have the same names in another order: output i becomes
      that of `class_names[i]`, for every classifier of the head;
    - initialised anew, where the names differ;
    - kept, where the names agree or those of one side are unknown.

    Sets `model.class_names` to `class_names`.

    Args:
        model: A classifier with one output per class.
        class_names: Names of the classes of the data; None where unknown.
        head: `"keep"` and `"fresh"` override the comparison of names.

    Returns:
        What was done.

    Raises:
        ValueError: for another `head`, or if a head that has to change isn't the
            last layer of the model.
    """
    check_head(head)
    old, new = _names(model), None if class_names is None else tuple(class_names)
    if new is not None and len(new) != model.output_shape[-1]:
        new = None  # Two classes and one output, or labels that don't reach the last output.
    done = "kept"
    if head == "fresh":
        _initialize(model)
        done = "fresh"
    elif head == "match" and new is not None and old is not None and old != new:
        if sorted(old) == sorted(new) and len(set(new)) == len(new):
            _permute(model, [old.index(name) for name in new])
            done = "permuted"
            log.warning("The head's classes are brought into the order of the data.")
        else:
            _initialize(model)
            done = "fresh"
            log.warning(
                "The head was trained for other classes (%s) than the data's (%s): it is "
                'initialised anew. head="keep" keeps it.',
                _some(old),
                _some(new),
            )
    elif head == "match" and (old is None) != (new is None) and trained(model):
        log.warning(
            "The head is kept: whether it was trained for the classes of the data is unknown. "
            'head="fresh" initialises it anew.'
        )
    if new is not None:
        model.class_names = new
    return done


def check_head(head: str) -> None:
    """Raise a ValueError for an unknown `head`."""
    if head not in ("match", "keep", "fresh"):
        raise ValueError(f"`head` must be 'match', 'keep' or 'fresh'. Received: {head!r}.")


def trained(model: keras.Model) -> bool:
    """Whether the head is known to be trained: it has class names, or came with weights."""
    return getattr(model, "class_names", None) is not None or getattr(model, "head_loaded", False)


def _names(model):
    names = getattr(model, "class_names", None)
    if names is not None:
        return tuple(names)
    # Checkpoints of ImageNet carry no names.
    if trained(model) and model.output_shape[-1] == len(imagenet_classes()):
        return tuple(synset for synset, _ in imagenet_classes())
    return None


def classifiers(model: keras.Model) -> list[keras.layers.Dense]:
    """Return the Dense layers that end in the classes: one, or several as in `DistilledHead`.

    Raises:
        ValueError: if the model ends in something else.
    """
    last = model.layers[-1]
    if isinstance(last, keras.Model):
        return classifiers(last)
    names = getattr(last, "names", ())
    found = [last, *(getattr(last, name, None) for name in names)]
    found = [layer for layer in found if isinstance(layer, keras.layers.Dense)]
    if not found:
        raise ValueError(
            f"`head`: the model's last layer, {last.name!r} ({type(last).__name__}), is no "
            "classifier that can be changed. Give head='keep'."
        )
    return found


def _permute(model, order):
    for layer in classifiers(model):
        for variable in layer.weights:
            # All but LoRA's first factor have one column per class.
            if variable.name != "lora_kernel_a":
                value = keras.ops.convert_to_numpy(variable.value)
                variable.assign(np.take(value, order, axis=-1))


def _initialize(model):
    for layer in classifiers(model):
        for variable in layer.weights:
            initializer = {
                "kernel": layer.kernel_initializer,
                "bias": layer.bias_initializer,
                "lora_kernel_b": keras.initializers.Zeros(),
            }.get(variable.name)
            if initializer is not None:
                variable.assign(initializer(variable.shape, variable.dtype))


def _some(names):
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
