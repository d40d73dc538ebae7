"""What a format is, and what its writer is given."""

import contextlib
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
    """A model as a writer gets it.

    Attributes:
        models: The model, whose one input is a batch of images, as "serve"; and the same network
            for other image sizes, by the name of their signatures.
        outputs: Names of its outputs, in order.
        precision: Precision of the stored weights, one of `Format.precisions`, or None.
        compute_dtype: `"float16"` or `"bfloat16"` if the layers compute in half precision.
        classes: Names of the classes, if the file is to have the signature of a server.
        top: Number of classes that this signature returns.
        calibration: Images of the file's input, from which ranges of activations are taken.
    """

    models: Mapping[str, keras.Model]
    outputs: tuple[str, ...]
    precision: str | None = None
    compute_dtype: str | None = None
    classes: tuple[str, ...] = ()
    top: int = 0
    calibration: np.ndarray | None = None

    @property
    def model(self) -> keras.Model:
        """The model for images of its own size."""
        return self.models["serve"]

    def named(self, outputs) -> dict:
        """Return the outputs of the model by name."""
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: Name in the public API.
        title: Name in messages.
        suffix: Suffix of the file; "" for a folder.
        backend: The Keras backend that writes it.
        needs: Packages that write it and run it.
        extra: The extra of `pyproject.toml` that includes them.
        write: A function of a `Graph` and a path. It runs under `backend`.
        is_one: Whether a path holds this format, judged by its first bytes or its names.
        risk: What opening a file of a stranger may do; empty if it can only compute.
        float32: Whether a model in mixed precision is written in float32.
        int8_weights: Whether the products of int8 layers are written in float32.
        any_size: Whether preprocessing inside the file takes images of any size.
        companions: Suffixes of files that belong to the one at the path.
        precisions: Precisions of weights that it is written in, besides the model's own.
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
    """Return the variables that half precision can hold, as arrays by `id`.

    Small ones, such as biases and scales, stay as they are: they take no space.
    """
    found = {}
    if precision not in HALF_DTYPES:
        return found
    for variable in model.variables:
        is_float32 = keras.backend.standardize_dtype(variable.dtype) == "float32"
        if not is_float32 or len(variable.shape) < 2:
            continue
        with np.errstate(over="ignore"):
            values = ops.convert_to_numpy(variable).astype(HALF_DTYPES[precision])
        if np.isfinite(values.astype("float32")).all():
            found[id(variable)] = values
    return found


@contextlib.contextmanager
def in_arithmetic(graph: Graph, format: Format) -> Iterator[None]:
    """Let layers compute in the arithmetic of the file within the context.

    - `format.float32`: layers in mixed precision compute in float32.
    - `format.int8_weights`: int8 `Dense` layers keep int8 weights, and multiply in float32:
      $x (W / s) + b$ in place of the product of int8 weights and rounded inputs.
    - `graph.compute_dtype`: all layers but the classifier compute in half precision.
    """
    models = graph.models.values()
    layers = [layer for model in models for layer in sublayers(model)]
    policies = {}
    if graph.compute_dtype:
        kept = {id(layer) for model in models for layer in _in_float32(model)}
        wanted = f"mixed_{graph.compute_dtype}"
        policies = {layer: wanted for layer in layers if id(layer) not in kept}
    elif format.float32:
        half = [layer for layer in layers if layer.compute_dtype in HALF_DTYPES]
        policies = {layer: "float32" for layer in half if layer.quantization_mode is None}
    products = [
        layer
        for layer in layers
        if format.int8_weights
        and isinstance(layer, keras.layers.Dense)
        and layer.quantization_mode == "int8"
        and not layer.lora_enabled
    ]
    before = {layer: layer.dtype_policy for layer in policies}
    try:
        for layer, policy in policies.items():
            layer.dtype_policy = policy
        for layer in products:
            # An attribute of the instance hides the method of the class.
            layer.quantized_call = _product(layer)
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


def _product(layer):
    def call(inputs, training=None):
        kernel = ops.cast(layer.kernel, "float32") / ops.cast(layer.kernel_scale, "float32")
        y = ops.matmul(ops.cast(inputs, "float32"), kernel)
        if layer.bias is not None:
            y = y + ops.cast(layer.bias, "float32")
        return ops.cast(layer.activation(y), layer.compute_dtype)

    return call
