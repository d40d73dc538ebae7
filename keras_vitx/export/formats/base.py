"""What a format is, and what its writer is given."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vitx.keras_internals import sublayers

INPUT = "images"
"""Name of the input in every format."""

HALF_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Graph:
    """What is written: a transposition and preprocessing, if asked for, then the network.

    `networks` are the network as "serve", and the same for other image sizes by their signatures;
    `before` is the layer that takes pixels, of `size`. `precision` is that of stored weights,
    `compute_dtype` half precision of the layers, `top` the number of classes that a server's
    signature returns, and `calibration` images of the file's input.
    """

    networks: Mapping[str, keras.Model]
    outputs: tuple[str, ...]
    before: keras.layers.Layer | None = None
    size: tuple[int | None, int | None] = (None, None)
    data_format: str = "channels_last"
    precision: str | None = None
    compute_dtype: str | None = None
    classes: tuple[str, ...] = ()
    top: int = 0
    calibration: np.ndarray | None = None

    @functools.cached_property
    def models(self) -> dict[str, keras.Model]:
        """One model, from the file's input to its outputs, for each signature."""
        return {name: self._joined(network) for name, network in self.networks.items()}

    @property
    def model(self) -> keras.Model:
        """The model for images of its own size."""
        return self.models["serve"]

    def named(self, outputs) -> dict:
        """Return the outputs of the model by name."""
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def _joined(self, network):
        (spec,) = network.inputs
        shape, dtype, layers = spec.shape, spec.dtype, [network]
        if self.before is not None:
            shape, dtype = (None, *self.size, len(self.before.mean)), "uint8"
            layers.insert(0, self.before)
        if self.data_format == "channels_first":
            shape = (shape[0], shape[3], *shape[1:3])
            layers.insert(0, keras.layers.Permute((2, 3, 1)))
        if layers == [network]:
            return network
        x = images = keras.Input(batch_shape=shape, dtype=dtype, name=INPUT)
        for layer in layers:
            x = layer(x)
        return keras.Model(images, x, name=network.name)


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        suffix: Suffix of the file; "" for a folder. `companions` are those of files beside it.
        backend: The Keras backend under which `write` runs.
        needs: Packages that write it and run it, in the extra `extra` of `pyproject.toml`.
        is_one: Whether a path holds this format, judged by its first bytes or its names.
        risk: What opening a file of a stranger may do; empty if it can only compute.
        float32: Whether a model in mixed precision is written in float32.
        int8_weights: Whether the products of int8 layers are written in float32.
        any_size: Whether preprocessing inside the file takes images of any size.
        precisions: Precisions of stored weights, besides the model's own.
        computes: Dtypes of half precision that its products can be written in.
        quantizer: The package that quantizes its files, if `needs` has none for it.
    """

    name: str
    title: str
    suffix: str
    backend: str
    needs: tuple[str, ...]
    extra: str
    write: Callable[[Graph, Path], None]
    is_one: Callable[[Path], bool]
    risk: str = ""
    float32: bool = False
    int8_weights: bool = False
    any_size: bool = False
    companions: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float16", "bfloat16")
    computes: tuple[str, ...] = ()
    quantizer: str = ""


def starts_with(*beginnings: bytes, at: int = 0) -> Callable[[Path], bool]:
    """Return a function that tells whether a file has one of some bytes at an offset."""

    def is_one(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(at)
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return is_one


def halves(model: keras.Model, precision: str | None) -> dict[int, np.ndarray]:
    """Return the variables, except small ones, that half precision can hold, by `id`."""
    found = {}
    if precision not in HALF_DTYPES:
        return found
    for variable in model.variables:
        if variable.dtype != "float32" or len(variable.shape) < 2:
            continue
        with np.errstate(over="ignore"):
            values = ops.convert_to_numpy(variable).astype(HALF_DTYPES[precision])
        if np.isfinite(values.astype("float32")).all():
            found[id(variable)] = values
    return found


@contextlib.contextmanager
def in_arithmetic(graph: Graph, format: Format) -> Iterator[None]:
    """Let layers compute in the arithmetic of the file within the context.

    With `format.float32`, mixed precision becomes float32; with `format.int8_weights`, int8 `Dense`
    layers multiply in float32, $x (W / s) + b$, and don't round inputs; with `graph.compute_dtype`,
    all layers but the classifier compute in half precision.
    """
    models = graph.models.values()
    before, products = {}, []
    kept = {id(layer) for model in models for layer in _in_float32(model)}
    try:
        for layer in (layer for model in models for layer in sublayers(model)):
            policy = None
            if graph.compute_dtype:
                policy = None if id(layer) in kept else f"mixed_{graph.compute_dtype}"
            elif format.float32 and layer.compute_dtype in HALF_DTYPES:
                policy = None if layer.quantization_mode else "float32"
            if policy:
                before[layer] = layer.dtype_policy
                layer.dtype_policy = policy
            is_dense = isinstance(layer, keras.layers.Dense) and not layer.lora_enabled
            if format.int8_weights and is_dense and layer.quantization_mode == "int8":
                # An attribute of the instance hides the method of the class.
                layer.quantized_call = functools.partial(_product, layer)
                products.append(layer)
        yield
    finally:
        for layer, policy in before.items():
            layer.dtype_policy = policy
        for layer in products:
            vars(layer).pop("quantized_call", None)


def _in_float32(model):
    """Yield the layers that stay in float32: those before the network, and its last one."""
    *before, last = getattr(model, "steps", None) or model.layers
    yield from (layer for layer in before if getattr(layer, "takes_pixels", False))
    if isinstance(last, keras.Model):
        yield from _in_float32(last)
    else:
        yield from (last, *sublayers(last))


def _product(layer, inputs, training=None):
    kernel = ops.cast(layer.kernel, "float32") / ops.cast(layer.kernel_scale, "float32")
    y = ops.matmul(ops.cast(inputs, "float32"), kernel)
    if layer.bias is not None:
        y = y + ops.cast(layer.bias, "float32")
    return ops.cast(layer.activation(y), layer.compute_dtype)
