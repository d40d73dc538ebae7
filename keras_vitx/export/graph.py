"""What an exported file holds: one record, made once from a model and the options of `export`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vitx.checks import check
from keras_vitx.data.predictions import class_names
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers import ImagePreprocessing
from keras_vitx.outputs import outputs_of
from keras_vitx.serialized import remade

INPUT = "images"
"""Name of the input in every format."""

OUTPUTS = ("probabilities", "logits")
"""Names of the output of a classifier."""

HALF_DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Format:
    """A file format."""

    name: str
    title: str
    suffix: str  # "" for a directory.
    backend: str  # The Keras backend under which `write` runs.
    needs: tuple[str, ...]  # Packages that write it, and last the one that runs it.
    extra: str  # The extra of this package that installs them.
    write: Callable[["Graph", Path], None]
    matches: Callable[[Path], bool]  # Whether a path holds it, by its first bytes or file names.
    # Raises a ValueError if a file reads others than its own when it is opened.
    check: Callable[[Path], None] = lambda path: None
    risk: str = (
        ""  # The harm that opening an untrusted file may do, if it can do more than compute.
    )
    float32: bool = False  # Whether half precision of the model is written in float32.
    any_size: bool = False  # Whether preprocessing inside the file takes images of any size.
    companion: str = ""  # Suffix of a second file beside it.
    precisions: tuple[str, ...] = ("float16", "bfloat16")  # Of stored weights, besides the model's.
    half_products: bool = False  # Whether products may be in half precision, by `compute_dtype`.
    quantized: tuple[str, ...] = ("int8", "int4", "float8")  # Modes of `model.quantize`.
    opsets: tuple[int, ...] = ()  # Versions of its operations, the default last.


def starts_with(*beginnings: bytes, at: int = 0) -> Callable[[Path], bool]:
    """Return a predicate of a path: whether the file has any of `beginnings` at offset `at`."""

    def matches(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            file.seek(at)
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return matches


@dataclass(frozen=True)
class Graph:
    """The content of a file: optional transposition and preprocessing, then the network."""

    networks: Mapping[str, keras.Model]  # "serve", and for other image sizes by their signatures.
    outputs: tuple[str, ...]  # Names.
    classes: tuple[str, ...] = ()  # Names; two for one sigmoid.
    preprocessing: keras.layers.Layer | None = None  # Takes pixels, of `size`.
    size: tuple[int | None, int | None] = (None, None)
    data_format: str = "channels_last"
    precision: str | None = None  # Of the stored weights.
    compute_dtype: str | None = None  # Half precision of the layers.
    opset: int | None = None
    top: int = 0  # Number of classes that a server's signature returns.

    @functools.cached_property
    def models(self) -> dict[str, keras.Model]:
        """One model, from the file's input to its outputs, for each signature."""
        return {name: self._model(network) for name, network in self.networks.items()}

    @property
    def model(self) -> keras.Model:
        """The model for images of the default size."""
        return self.models["serve"]

    def name_outputs(self, outputs: Any) -> dict[str, Any]:
        """Return the outputs of the model by name."""
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def in_dtypes_of(self, format: Format) -> "Graph":
        """Return the graph with copies of the networks that compute in the dtypes of the file.

        With `compute_dtype`, all layers but the classifier compute in half precision. With
        `format.float32`, mixed precision becomes float32.
        """

        def policies(network):
            layers, last = sublayers(network), _last(network)
            kept = sublayers(last) if isinstance(last, keras.layers.Layer) else [last]
            if self.compute_dtype:
                return {each: f"mixed_{self.compute_dtype}" for each in layers if each not in kept}
            layers = [each for each in layers if each.compute_dtype in HALF_DTYPES]
            parts = [each.dtype_policy.name.rpartition("_from_") for each in layers]
            # "int8_from_mixed_bfloat16" becomes "int8_from_float32".
            policies = [f"{mode}{by}float32" for mode, by, _ in parts] if format.float32 else []
            return dict(zip(layers, policies, strict=False))

        networks = dict(self.networks)
        for name, network in networks.items():
            if policies(network):
                networks[name] = copy = remade(network)
                for layer, policy in policies(copy).items():
                    layer.dtype_policy = policy
        return replace(self, networks=networks)

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


def half_arrays(model: keras.Model, dtype: str | None) -> dict[int, np.ndarray]:
    """Return the variables, except vectors, that half precision can hold, rounded, by `id`."""
    arrays = {}
    for variable in model.variables if dtype else ():
        if variable.dtype == "float32" and len(variable.shape) > 1:
            with np.errstate(over="ignore"):
                values = ops.convert_to_numpy(variable).astype(HALF_DTYPES[dtype])
            if np.isfinite(values.astype("float32")).all():
                arrays[id(variable)] = values
    return arrays


def graph_of(
    model: keras.Model,
    format: Format,
    preprocessing: bool | tuple[int, int] = False,
    outputs: str | None = None,
    serving: bool | int = False,
    precision: str | None = None,
    compute_dtype: str | None = None,
    data_format: str = "channels_last",
    image_sizes: Sequence[tuple[int, int]] = (),
    opset: int | None = None,
) -> Graph:
    """Check the arguments of `export`, and return the graph to write, not fused."""
    rule = "`preprocessing` must be True, False, or the (height, width) of the pixels."
    check(isinstance(preprocessing, bool) or _is_size(preprocessing), rule, preprocessing)
    check(outputs in (None, *OUTPUTS), f"`outputs` must be None or one of {OUTPUTS}.", outputs)
    rule = "`serving` must be True, False, or the number of classes to return."
    check(isinstance(serving, int) and (serving > 0 or serving is False), rule, serving)
    required = ("saved_model", "probabilities", "channels_last")
    given = (format.name, outputs, data_format)
    rule = f"`serving` must be False but for {required}."
    check(serving is False or given == required, rule, given)
    rule = "`data_format` must be 'channels_last' or 'channels_first'."
    check(data_format in ("channels_last", "channels_first"), rule, data_format)
    rule = f"`precision` must be None or one of {format.precisions}, those of the format."
    check(precision in (None, *format.precisions), rule, (format.name, precision))
    rule = f"`compute_dtype` must be None, or one of {tuple(HALF_DTYPES)} for ONNX and torch files."
    halves = HALF_DTYPES if format.half_products else ()
    check(compute_dtype in (None, *halves), rule, (format.name, compute_dtype))
    rule = f"`precision` must be None with compute_dtype={compute_dtype!r}."
    check(not compute_dtype or precision in (None, compute_dtype), rule, precision)
    rule = "`image_sizes` must be (height, width) pairs, for a SavedModel without preprocessing."
    sized = format.name == "saved_model" and not preprocessing
    check(all(map(_is_size, image_sizes)) and (sized or not image_sizes), rule, image_sizes)
    resizes = hasattr(model, "at_size") or not image_sizes
    check(resizes, "`model` must be a model of keras_vitx for `image_sizes`.", type(model).__name__)
    rule = f"`opset` must be None, or one of {format.opsets} for ONNX."
    check(opset in (None, *format.opsets), rule, (format.name, opset))
    _check_model(model, format, compute_dtype)
    kind, names = output_names(model)
    rule = f"`model` must not have an output named {INPUT!r}, as the input of an {format.name} file"
    check(INPUT not in names or format.name not in ("onnx", "openvino"), f"{rule}.", names)
    classes = ()
    if kind:
        count = model.output_shape[-1]
        classes = class_names(model, 2 if count == 1 and kind == "sigmoid" else count)
    layer, size = None, (None, None)
    if preprocessing is not False:
        layer = ImagePreprocessing.of(model)
        if preprocessing is not True:
            size = tuple(preprocessing)
        elif not format.any_size:
            # Images that are cropped without resizing.
            size = tuple(round(side / layer.crop_ratio) for side in layer.size)
    networks = {"serve": with_outputs(model, kind, outputs)}
    for sides in image_sizes:
        networks["serve_{}x{}".format(*sides)] = networks["serve"].at_size(sides)
    top = len(classes) if serving is True else min(int(serving), len(classes))
    arguments = (data_format, precision, compute_dtype, opset or (format.opsets or [None])[-1], top)
    return Graph(networks, (outputs,) if outputs else names, classes, layer, size, *arguments)


def _is_size(size):
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    return is_pair and all(isinstance(side, int) and side > 0 for side in size)


def _check_model(model, format, compute_dtype):
    """Check that `model` takes one batch of images, and that the format has its quantization."""
    is_built = isinstance(model, keras.Model) and model.built
    inputs = getattr(model, "inputs", None) if is_built else None
    shapes = [tuple(tensor.shape) for tensor in inputs or ()]
    rule = "`model` must be a built Keras model of images, (batch, height, width, channels)."
    is_of_images = len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][3] is not None
    check(is_of_images, rule, shapes or model)
    modes = {each.quantization_mode for each in sublayers(model)} - {None}
    quantized = f"quantized to {', '.join(sorted(modes))}"
    rule = (
        f"`model` must not be {quantized} for the format {format.name!r}, whose converter can't "
        "write it. Export it before `model.quantize`, and quantize the file by the tools of its "
        "runtime; or choose another format (docs/export.md)."
    )
    check(modes <= set(format.quantized), rule, model.name)
    rule = f"`compute_dtype` must be None for a model {quantized}."
    check(not (modes and compute_dtype), rule, compute_dtype)


def output_names(model: keras.Model) -> tuple[str | None, tuple[str, ...]]:
    """Return "softmax", "sigmoid" or "logits" of a classifier, else None; the names of the outputs.

    A single output is named by what it is, others by their keys or layers.
    """
    if isinstance(outputs := getattr(model, "output", None), dict):
        # Keras flattens them in this order.
        return None, tuple(sorted(outputs))
    if len(model.outputs) == 1:
        # `keras.ops.softmax` and `keras.ops.sigmoid` are operations of these names, not layers.
        kind = type(_last(model)).__name__.lower()
        if kind not in ("softmax", "sigmoid"):
            try:
                kind = outputs_of(model).kind
            except ValueError:
                return None, ("features",)
        return kind, ("logits" if kind == "logits" else "probabilities",)
    names = tuple(model.output_names)
    is_one_layer = len(set(names)) < len(names)
    return None, tuple(f"output_{i}" for i in range(len(names))) if is_one_layer else names


def _last(model):
    last = (getattr(model, "operations", None) or model.layers)[-1]
    return _last(last) if isinstance(last, keras.Model) else last


def with_outputs(model: keras.Model, kind: str | None, outputs: str | None) -> keras.Model:
    """Return a copy whose output is probabilities or logits; the same model if it is already."""
    rule = f"`model` must end in a classifier for outputs={outputs!r}."
    check(outputs is None or kind is not None, rule, model.name)
    if outputs is None or (outputs == "logits") == (kind == "logits"):
        return model
    if outputs == "probabilities":
        rule = "`outputs` must be None or 'logits' for one linear output; end it in a sigmoid first"
        check(model.output_shape[-1] > 1, f"{rule}.", outputs)
    activation = "softmax" if outputs == "probabilities" else "linear"
    return remade(model, lambda config: _set_activation(config, activation))


def _set_activation(config, activation):
    """Set, in the config of a model, the last activation that is not linear, or of the last layer.

    Layers are in the order in which they run.
    """
    for layer in reversed(config["config"]["layers"]):
        inner = layer["config"]
        if "layers" in inner:
            return _set_activation(layer, activation)
        rule = "`outputs` must be None for a model that does not end in its classifier."
        check(layer["class_name"] != "Average", rule, inner["name"])
        if layer["class_name"] in ("Softmax", "Sigmoid"):
            kept = {name: inner[name] for name in ("name", "dtype") if name in inner}
            names = {"module": "keras.layers", "class_name": "Activation", "registered_name": None}
            for call in layer.get("inbound_nodes", ()):
                call["kwargs"] = {}  # A softmax has a mask.
            return layer.update(names, config={**kept, "activation": activation})
        if activation != "linear" or inner["activation"] not in (None, "linear"):
            return inner.update(activation=activation)
    return None
