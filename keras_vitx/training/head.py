"""The head of a model: matching it to the classes of a data set, and training it alone."""

import logging
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.data.predictions import imagenet_classes
from keras_vitx.outputs import class_names_of
from keras_vitx.text import shortened
from keras_vitx.training.batches import labels_of
from keras_vitx.training.compiling import compile_for, compiled_by_user
from keras_vitx.training.network import layers_of
from keras_vitx.training.recipe import Recipe
from keras_vitx.training.resume import resumable_fit

Head = Literal["match", "keep", "fresh"]
log = logging.getLogger(__name__)


def match_head(
    model: keras.Model, class_names: Sequence[str] | None, head: Head = "match"
) -> Literal["kept", "permuted", "fresh"]:
    """Match the head of `model` to a data set, set `model.class_names`, and return the change.

    `"match"` permutes the classifiers if the names are the same in another order, reinitializes
    them if the names differ, and keeps them otherwise. The result is also `"fresh"` for a head that
    was not in the checkpoint.
    """
    old, new = _names(model), None if class_names is None else tuple(class_names)
    outputs = model.output_shape[-1]
    # One output is the probability of the second of two classes.
    if new is not None and len(new) != (2 if outputs == 1 else outputs):
        new = None  # There are more outputs than labels.
    change = "fresh" if head == "fresh" else "kept"
    if head == "match" and old is not None and new is not None and old != new:
        if sorted(old) == sorted(new) and len(set(new)) == len(new):
            change = "permuted"
            log.warning("The head's classes were permuted to the order of the data's classes.")
        else:
            change = "fresh"
            log.warning(
                "The head was trained for other classes (%s) than the data's (%s) and was "
                'reinitialized. head="keep" keeps it.',
                shortened(old),
                shortened(new),
            )
    elif head == "match" and (old is None) != (new is None) and (old or _is_loaded(model)):
        log.warning(
            'The head was kept: whether its classes fit is unknown. head="fresh" reinitializes it.'
        )
    if change == "permuted":
        _permute(model, [old.index(name) for name in new])
    elif change == "fresh":
        _initialize(model)
    if new is not None:
        model.class_names = new
    if change == "kept" and getattr(model, "head_loaded", None) is False:
        # Not False from now on, since the next `fit` has a trained head.
        model.head_loaded, change = None, "fresh"
    return change


def train_head(
    model: keras.Model,
    batches: Any,
    recipe: Recipe,
    steps: int,
    distillation: Any = None,
    **settings: Any,
) -> None:
    """Train only the classifiers for the recipe's `freeze_epochs`."""
    epochs = recipe.freeze_epochs
    if compiled_by_user(model):
        raise ValueError(f"`freeze_epochs` must be 0 for a compiled model. Received: {epochs}.")
    heads = {id(variable) for head in classifiers(model) for variable in head.variables}
    trainable = [layer for layer in layers_of(model) if layer.trainable]
    frozen = [layer for layer in trainable if heads.isdisjoint(map(id, layer.variables))]
    for layer in frozen:
        layer.trainable = False
    try:
        recipe = recipe.replace(epochs=epochs, cooldown_epochs=0, ema=None)
        compile_for(model, recipe, steps, lambda: labels_of(batches), distillation)
        resumable_fit(model, batches, epochs=epochs, directory=None, **settings)
    finally:
        for layer in frozen:
            layer.trainable = True


def _names(model):
    """Return the class names of a trained head; None if unknown."""
    names = class_names_of(model)
    # ImageNet checkpoints contain no class names.
    if names is None and _is_loaded(model) and model.output_shape[-1] == len(imagenet_classes()):
        names = tuple(synset for synset, _ in imagenet_classes())
    return names


def _is_loaded(model):
    return getattr(model, "head_loaded", False)


def classifiers(model: keras.Model) -> list[keras.layers.Dense]:
    """Return the Dense layers with one output per class: one, or several in `DistilledHead`."""
    last = model.layers[-1]
    if isinstance(last, keras.Model):
        return classifiers(last)
    layers = [last, *(getattr(last, name, None) for name in getattr(last, "names", ()))]
    layers = [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
    if not layers:
        raise ValueError(
            "`head` must be 'keep' for a model whose last layer is not a classifier. Received: a "
            f"model that ends in {last.name!r} ({type(last).__name__})."
        )
    return layers


def _permute(model, order):
    for variable in (v for layer in classifiers(model) for v in layer.weights):
        # All variables except LoRA's first factor have one column per class.
        if variable.name != "lora_kernel_a":
            value = keras.ops.convert_to_numpy(variable.value)
            # With one output for two classes, the other class has the negative logit.
            variable.assign(-value if value.shape[-1] == 1 else np.take(value, order, axis=-1))


def _initialize(model):
    for layer in classifiers(model):
        initializers = {
            "kernel": layer.kernel_initializer,
            "bias": layer.bias_initializer,
            "lora_kernel_b": keras.initializers.Zeros(),
        }
        for variable in layer.weights:
            if variable.name in initializers:
                variable.assign(initializers[variable.name](variable.shape, variable.dtype))
