"""The base of all formats: `Format`, and the `Graph` that it writes."""

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
    """The content of a file: optional transposition and preprocessing, then the network.

    `networks` are the network as "serve", and for other image sizes by their signatures;
    `preprocessing` is the layer that takes pixels, of `size`. `precision` is that of the stored
    weights, `compute_dtype` half precision of the layers, `top` the number of classes that a
    server's signature returns, and `calibration` images in the format of the file's input.
    """

    networks: Mapping[str, keras.Model]
    outputs: tuple[str, ...]
    preprocessing: keras.layers.Layer | None = None
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
        return {name: self._model(network) for name, network in self.networks.items()}

    @property
    def model(self) -> keras.Model:
        """The model for images of the default size."""
        return self.models["serve"]

    def name_outputs(self, outputs) -> dict:
        """Return the outputs of the model by name."""
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def _model(self, network):
        (spec,) = network.inputs
        shape, dtype, layers = spec.shape, spec.dtype, [network]
        if self.preprocessing is not None:
            shape, dtype = (None, *self.size, len(self.preprocessing.mean)), "uint8"
            layers.insert(0, self.preprocessing)
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
        suffix: Suffix of the file; "" for a folder.
        companion: Suffix of a second file beside it; "" for none.
        backend: The Keras backend under which `write` runs.
        needs: Packages that write it, and last the one that runs it; `extra` installs them.
        matches: Whether a path holds this format, by its first bytes or file names.
        risk: The harm that opening an untrusted file may do; empty if it can only compute.
        float32: Whether half precision and int8 products of the model are written in float32.
        any_size: Whether preprocessing inside the file takes images of any size.
        precisions: Precisions of stored weights, besides the model's.
        half_products: Whether products may be in half precision, by `compute_dtype`.
        float8: Whether it takes models that are quantized to float8.
        quantizer: The package that quantizes its files, if it is not in `needs`.
    """

    name: str
    title: str
    suffix: str
    backend: str
    needs: tuple[str, ...]
    extra: str
    write: Callable[[Graph, Path], None]
    matches: Callable[[Path], bool]
    risk: str = ""
    float32: bool = False
    any_size: bool = False
    companion: str = ""
    precisions: tuple[str, ...] = ("float16", "bfloat16")
    half_products: bool = False
    float8: bool = True
    quantizer: str = ""


def starts_with(*beginnings: bytes, at: int = 0) -> Callable[[Path], bool]:
    """Return a predicate of a path: whether the file has any of `beginnings` at offset `at`."""

    def matches(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(at)
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return matches


def half_arrays(model: keras.Model, dtype: str | None) -> dict[int, np.ndarray]:
    """Return the variables, except vectors, that half precision can hold, rounded, by `id`."""
    arrays = {}
    if dtype not in HALF_DTYPES:
        return arrays
    for variable in model.variables:
        if variable.dtype != "float32" or len(variable.shape) < 2:
            continue
        with np.errstate(over="ignore"):
            values = ops.convert_to_numpy(variable).astype(HALF_DTYPES[dtype])
        if np.isfinite(values.astype("float32")).all():
            arrays[id(variable)] = values
    return arrays


@contextlib.contextmanager
def file_arithmetic(graph: Graph, format: Format) -> Iterator[None]:
    """Let layers compute in the dtypes of the file within the context.

    With `graph.compute_dtype`, all layers but the classifier compute in half precision. With
    `format.float32`, mixed precision becomes float32, and so do products in int8 and int4.
    """
    policies, products = {}, []
    for model in graph.models.values():
        classifier = sublayers(_last(model))
        for layer in sublayers(model):
            mode = layer.quantization_mode
            if graph.compute_dtype and layer not in classifier:
                policies[layer] = f"mixed_{graph.compute_dtype}"
            if not format.float32 or graph.compute_dtype:
                continue
            if mode is None and layer.compute_dtype in HALF_DTYPES:
                policies[layer] = "float32"
            if mode in ("int8", "int4") and isinstance(layer, keras.layers.Dense):
                products.append(layer)
    old_policies = {layer: layer.dtype_policy for layer in policies}
    try:
        for layer, policy in policies.items():
            layer.dtype_policy = policy
        for layer in products:
            # An instance attribute shadows the method.
            layer.quantized_call = functools.partial(_product, layer, _kernel(layer))
        yield
    finally:
        for layer, policy in old_policies.items():
            layer.dtype_policy = policy
        for layer in products:
            vars(layer).pop("quantized_call", None)


def _last(model: keras.Model) -> keras.layers.Layer:
    last = (getattr(model, "steps", None) or model.layers)[-1]
    return _last(last) if isinstance(last, keras.Model) else last


def _kernel(layer):
    """Return the kernel of a layer in int8, or unpacked from int4, `(groups, rows, columns)`."""
    kernel = next(variable for variable in layer.weights if variable.name == "kernel")
    if layer.quantization_mode == "int8":
        return kernel
    kernel = ops.convert_to_numpy(keras.quantizers.unpack_int4(kernel.value, layer.units, axis=-1))
    if not hasattr(layer, "kernel_zero"):
        return kernel
    groups, rows = layer.kernel_zero.shape[0], np.sum(ops.convert_to_numpy(layer.g_idx) == 0)
    return np.pad(kernel, ((0, groups * rows - len(kernel)), (0, 0))).reshape(groups, rows, -1)


def _product(layer, kernel, inputs, training=None):
    r"""Return $x W + b$ of a layer in int8 or int4, in float32.

    $W$ is $K / s$, or $(K - z) s$ with the zero and the scale of each group of rows in int4. LoRA
    adds $\frac{\alpha}{r} x A B$.
    """
    x, kernel, scale = (ops.cast(each, "float32") for each in (inputs, kernel, layer.kernel_scale))
    if hasattr(layer, "kernel_zero"):
        zero = ops.cast(layer.kernel_zero, "float32")
        kernel = (kernel - zero[:, None]) * scale[:, None]
        kernel = ops.reshape(kernel, (-1, layer.units))[: x.shape[-1]]
    else:
        kernel = kernel / scale
    y = ops.matmul(x, kernel)
    if layer.lora_enabled:
        update = ops.matmul(ops.matmul(x, layer.lora_kernel_a), layer.lora_kernel_b)
        y = y + layer.lora_alpha / layer.lora_rank * update
    if layer.bias is not None:
        y = y + ops.cast(layer.bias, "float32")
    return ops.cast(layer.activation(y), layer.compute_dtype)
