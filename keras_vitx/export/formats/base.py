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
    weights, `compute_dtype` half precision of the layers, and `top` the number of classes that a
    server's signature returns.
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
        suffix: Suffix of the file; "" for a directory.
        companion: Suffix of a second file beside it; "" for none.
        backend: The Keras backend under which `write` runs.
        needs: Packages that write it, and last the one that runs it; `extra` installs them.
        matches: Whether a path holds this format, by its first bytes or file names.
        risk: The harm that opening an untrusted file may do; empty if it can only compute.
        float32: Whether half precision of the model is written in float32.
        any_size: Whether preprocessing inside the file takes images of any size.
        precisions: Precisions of stored weights, besides the model's.
        half_products: Whether products may be in half precision, by `compute_dtype`.
        quantized: How the layers of a model may be quantized by `model.quantize`.
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
    quantized: tuple[str, ...] = ("int8", "int4", "float8")


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
    `format.float32`, mixed precision becomes float32.
    """
    policies = {}
    for model in graph.models.values():
        classifier = sublayers(_last(model))
        for layer in sublayers(model):
            if graph.compute_dtype:
                if layer not in classifier:
                    policies[layer] = f"mixed_{graph.compute_dtype}"
            elif format.float32 and layer.compute_dtype in HALF_DTYPES:
                # "int8_from_mixed_bfloat16" becomes "int8_from_float32".
                quantized, separator, _ = layer.dtype_policy.name.rpartition("_from_")
                policies[layer] = f"{quantized}{separator}float32"
    old_policies = {layer: layer.dtype_policy for layer in policies}
    try:
        for layer, policy in policies.items():
            layer.dtype_policy = policy
        yield
    finally:
        for layer, policy in old_policies.items():
            layer.dtype_policy = policy


def _last(model: keras.Model) -> keras.layers.Layer:
    last = model.layers[-1]
    return _last(last) if isinstance(last, keras.Model) else last
