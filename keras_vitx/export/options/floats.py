"""Layers in the arithmetic that a format has, while it is written."""

import contextlib
from collections.abc import Iterator

import keras
from keras import ops

from keras_vitx.export.formats.base import Format, Graph
from keras_vitx.keras_internals import sublayers


@contextlib.contextmanager
def in_floats(graph: Graph, format: Format) -> Iterator[None]:
    """Let layers compute in float32 within the context, where the format needs it.

    - `format.float32`: layers in mixed precision compute in float32.
    - `format.int8_weights`: int8 `Dense` layers keep int8 weights, and multiply in float32:
      $x (W / s) + b$ in place of the product of int8 weights and rounded inputs.
    """
    layers = [
        layer for model in (graph.model, *graph.others.values()) for layer in sublayers(model)
    ]
    halves = [
        (layer, layer.dtype_policy)
        for layer in layers
        if format.float32
        and layer.compute_dtype in ("bfloat16", "float16")
        and layer.quantization_mode is None
    ]
    integers = [
        layer
        for layer in layers
        if format.int8_weights
        and isinstance(layer, keras.layers.Dense)
        and layer.quantization_mode == "int8"
        and not layer.lora_enabled
    ]
    try:
        for layer, _ in halves:
            layer.dtype_policy = "float32"
        for layer in integers:
            # An attribute of the instance hides the method of the class.
            layer.quantized_call = _product(layer)
        yield
    finally:
        for layer, policy in halves:
            layer.dtype_policy = policy
        for layer in integers:
            vars(layer).pop("quantized_call", None)


def _product(layer):
    def call(inputs, training=None):
        kernel = ops.cast(layer.kernel, "float32") / ops.cast(layer.kernel_scale, "float32")
        y = ops.matmul(ops.cast(inputs, "float32"), kernel)
        if layer.bias is not None:
            y = y + ops.cast(layer.bias, "float32")
        return ops.cast(layer.activation(y), layer.compute_dtype)

    return call
