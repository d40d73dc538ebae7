"""The model that an exported file holds, made of the user's by the options of `export`."""

import math

import keras

from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.layers.base import classes_in
from keras_vitx.outputs import Kind, outputs_of

PROBABILITIES = "probabilities"


def kind_of(model: keras.Model) -> Kind | None:
    """Return what a classifier's outputs are; None of any other model."""
    try:
        return outputs_of(model).kind
    except ValueError:
        return None


NAMES = {None: "features", "logits": "logits", "softmax": PROBABILITIES, "sigmoid": PROBABILITIES}
"""The name of a single output, by its kind."""


def output_names(model: keras.Model, name: str) -> tuple[str, ...]:
    """Return the names of the outputs: the `name` of a single one, or their keys or layers."""
    if not isinstance(model, keras.Sequential) and isinstance(model.output, dict):
        # Keras flattens them in this order.
        return tuple(sorted(model.output))
    if len(model.outputs) == 1:
        return (name,)
    names = tuple(model.output_names)
    is_one_layer = len(set(names)) < len(names)
    return tuple(f"output_{i}" for i in range(len(names))) if is_one_layer else names


def with_output(model: keras.Model, name: str, old: str) -> keras.Model:
    """Return a model whose output, of the name `old`, is `"logits"` or `"probabilities"`."""
    if name == old:
        return model
    if name == PROBABILITIES:
        # A softmax over one output would be 1.
        activation = "softmax" if model.output_shape[-1] > 1 else "sigmoid"
        top = keras.layers.Activation(activation, dtype="float32")
        return keras.Model(model.inputs[0], top(model.outputs[0]))
    return _without_activation(model)


def _without_activation(model):
    """Return a classifier that ends in logits."""
    last = model.layers[-1]
    if isinstance(last, (keras.layers.Activation, keras.layers.Softmax)):
        return keras.Model(model.inputs[0], last.input)
    if isinstance(last, keras.Model):
        inner = _without_activation(last)
        return keras.models.clone_model(
            model, clone_function=lambda layer: inner if layer is last else layer
        )
    top = type(last).from_config({**last.get_config(), "activation": "linear"})
    top.build(last.input.shape)
    top.set_weights(last.get_weights())
    return keras.Model(model.inputs[0], top(last.input))


def in_float32(model: keras.Model) -> keras.Model:
    """Return a model that computes in float32: a copy, if a layer computes in half precision.

    A quantized model, which can't be copied, stays as it is.
    """
    layers = sublayers(model)
    halves = [layer.compute_dtype in ("float16", "bfloat16") for layer in layers]
    if not any(halves) or any(layer.quantization_mode for layer in layers):
        return model
    copy = type(model).from_config(model.get_config(), custom_objects=classes_in(model))
    copy.set_weights(model.get_weights())
    for layer, is_half in zip(sublayers(copy), halves, strict=True):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
        if is_half:
            layer.dtype_policy = "float32"
    return copy


def preprocessing_of(
    model: keras.Model, size: bool | tuple[int, int], any_size: bool
) -> tuple[ImagePreprocessing, tuple[int | None, int | None]] | None:
    """Return the preprocessing of a model as a layer, and the size of its pixels; None for False.

    Without `any_size`, True is the size that is cropped without resizing.
    """
    if size is False:
        return None
    layer = ImagePreprocessing.of(model)
    if size is True:
        sides = (math.floor(side / layer.crop_ratio) for side in layer.size)
        size = (None, None) if any_size else tuple(sides)
    return layer, tuple(size)


def with_preprocessing(network: keras.Model, preprocessing: tuple | None) -> keras.Model:
    """Return a model of pixels, uint8: what `preprocessing_of` returned, then the network."""
    if preprocessing is None:
        return network
    layer, size = preprocessing
    images = keras.Input((*size, len(layer.mean)), dtype="uint8", name="images")
    return keras.Model(images, network(layer(images)), name=network.name)
