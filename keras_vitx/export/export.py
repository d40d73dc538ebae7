"""`keras_vitx.export(model, path, format=...)`."""

import contextlib
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_vitx.checks import check
from keras_vitx.export.check import check_tolerance, compare, named_batches
from keras_vitx.export.convert import convert
from keras_vitx.export.formats import format_to_write
from keras_vitx.export.graph import INPUT, graph_of
from keras_vitx.export.record import (
    Exported,
    atomic_export,
    check_destination,
    files_of,
    write_record,
)
from keras_vitx.folding import fuse as fused
from keras_vitx.preprocessing import Preprocessing

LOCK = threading.RLock()
"""Held by an export: the tracers of PyTorch have one state for all threads."""


def export(
    model: keras.Model,
    path: str | os.PathLike,
    format: str | None = None,
    *,
    preprocessing: bool | tuple[int, int] = False,
    outputs: str | None = None,
    serving: bool | int = False,
    precision: str | None = None,
    compute_dtype: str | None = None,
    data_format: str = "channels_last",
    image_sizes: Sequence[tuple[int, int]] = (),
    opset: int | None = None,
    fuse: bool = True,
    verify: bool = True,
    images: Any = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    imports: Sequence[str] = (),
    verbose: bool = True,
) -> Exported:
    """Export a model, on any backend, to a file that runs without Keras.

    | format | path | opened by | written by |
    |---|---|---|---|
    | `saved_model` | a directory | TensorFlow | TensorFlow |
    | `onnx` | `.onnx` | ONNX Runtime | PyTorch, onnxscript |
    | `openvino` | `.xml`, with a `.bin` beside it | OpenVINO | TensorFlow, OpenVINO |
    | `litert` | `.tflite` | LiteRT (TensorFlow Lite) | TensorFlow |
    | `torch` | `.pt2` | `torch.export.load` | PyTorch |
    | `stablehlo` | `.stablehlo` | `jax.export.deserialize` | JAX |

    The input is named `images`, `(batch, height, width, channels)`, with any batch size. The
    output is named `probabilities`, `logits` or `features`; several outputs have the names of the
    model's. One sigmoid output, `(batch, 1)`, is the probability of the second of two classes.
    `model` is not modified. Of several threads, one exports at a time.

    If the format needs another backend than the model's, the config and the weights of the model
    go to a second process, which runs that backend. It imports the modules that define
    the model's custom layers and functions, which must be written with `keras.ops`, and no others.

    Args:
        model: A built model whose input is one batch of images. Height and width may be
            unknown if its layers and the format allow it.
        path: The file or directory to write, atomically, with a record of the export beside it,
            `<name>.json` (`export.json` inside a directory).
        format: A name in the table. None means the format of the suffix of `path`, or
            `saved_model` without one; other suffixes are an error.
        preprocessing: Whether the file takes pixels, uint8, and resizes, crops and
            normalizes them as `ImagePreprocessing`. `(height, width)` is the size of the
            pixels. True means any size in a SavedModel and in ONNX, and in the other formats
            the size that is cropped without resizing.
        outputs: `"probabilities"` or `"logits"`; None keeps the model's.
        serving: Whether the default signature of a SavedModel is for servers: its input
            `image_bytes` is JPEG, PNG or GIF files, `(batch,)`, and its outputs are the names
            `classes` and the `probabilities`, both `(batch, n)`, in descending order. An integer
            is n; True means all classes. Implies `preprocessing=True`.
        precision: Precision of the stored weights. None keeps the model's.
            `"float16"` and `"bfloat16"` halve the file; the computation stays in float32.
            OpenVINO and LiteRT have `"float16"` only. For int8, quantize the exported file by the
            tools of its runtime.
        compute_dtype: `"float16"` or `"bfloat16"` for ONNX and torch files that compute in half
            precision, which is faster on GPUs, and store weights in it. The classifier, the
            softmax of attention and the statistics of normalizations stay in float32. If the
            runtime of this machine lacks such operations, pass `verify=False`.
        data_format: `"channels_first"` for a file that takes images
            `(batch, channels, height, width)`, which it transposes.
        image_sizes: Other `(height, width)` of a SavedModel's images, each with its own
            signature, such as `serve_256x192`. Position embeddings are resampled; all other
            weights are stored once.
        opset: Version of ONNX's operations, from 17 to 23. None means 20. Below it, as ONNX Runtime
            before 1.17 (19) and TensorRT 8.6 (17) need, GELU is several operations.
        fuse: Whether to fold the normalizations of attention maps first, by `keras_vitx.fuse`. If
            that fails, the model is exported unfused, and `Exported.not_fused` is the reason.
        verify: Whether to run the file in its own runtime and compare its outputs with the
            model's before it is moved into place; see `keras_vitx.export.verify`.
        images: Images for the comparison, in the format of the file's input. None means images
            of the shipped Fashion-MNIST sample.
        tolerance: Largest difference allowed; None means the default of `verify`.
        overwrite: Whether to replace a file of the same format at `path`. Anything else is
            never replaced; `assets.extra` of a SavedModel, a server's requests to warm up, stays.
        imports: Names of modules that the second process imports first, such as one that also
            registers classes that a notebook defines.
        verbose: Whether to print one line per stage to standard error.

    Raises:
        ValueError: if an argument is invalid, the second process can't find a custom class,
            or the outputs differ.
        ImportError: if a package that writes or runs the format is not installed.
        OSError: if the file can't be written, `path` already exists, or the second
            process fails (`ChildProcessError`).
    """
    path = Path(path).expanduser()
    check_tolerance(tolerance)
    are_names = not isinstance(imports, str) and all(isinstance(name, str) for name in imports)
    check(are_names, '`imports` must be module names such as ("my_module",).', imports)
    if serving is not False:
        preprocessing, outputs = preprocessing or True, outputs or "probabilities"
    options = {
        "preprocessing": preprocessing,
        "outputs": outputs,
        "serving": serving,
        "precision": precision,
        "compute_dtype": compute_dtype,
        "data_format": data_format,
        "image_sizes": list(image_sizes),
        "opset": opset,
    }
    kind = format_to_write(path, format)
    seconds: dict[str, float] = {}
    found: dict[str, Any] = {"options": options, "seconds": seconds, "versions": {}}
    with LOCK:
        graph = final = graph_of(model, kind, **options)
        check_destination(path, kind, overwrite)
        batches = named_batches(graph, images) if verify else None
        if fuse:
            with _stage("fusing", seconds, verbose):
                try:
                    networks = {name: fused(network) for name, network in graph.networks.items()}
                    final = replace(graph, networks=networks)
                except ValueError as error:
                    found["not_fused"] = str(error)
        with atomic_export(path, kind) as temporary:
            with _stage("converting and running" if verify else "converting", seconds, verbose):
                results = convert(final, kind, temporary, imports, batches)
            difference = None
            if verify:
                with _stage("comparing", seconds, verbose):
                    difference, found["top1"] = compare(results, graph, batches, tolerance, path)
                found["latency_ms"] = float(results["latency_ms"])
            found["size"] = sum(file.stat().st_size for file in files_of(temporary, kind))
            for package in ("keras", "keras-vitx", *kind.needs):
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found["versions"][package] = importlib.metadata.version(package)
            (spec,) = graph.model.inputs
            dtype = keras.backend.standardize_dtype(spec.dtype)
            inputs = {"shape": list(spec.shape), "dtype": dtype}
            normalization = getattr(model, "preprocessing", None)
            if isinstance(normalization, Preprocessing) and not preprocessing:
                inputs["preprocessing"] = normalization.to_dict()
            form = (kind.name, {INPUT: inputs}, graph.outputs, graph.classes)
            exported = Exported(path, difference, *form, **found)
            write_record(exported, temporary, kind)
    return exported


@contextlib.contextmanager
def _stage(name: str, seconds: dict[str, float], verbose: bool) -> Iterator[None]:
    """Time a stage of the export, and report it."""
    if verbose:
        print(f"export: {name} ...", end=" ", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = round(time.perf_counter() - start, 2)
        if verbose:
            print(f"{seconds[name]:.1f} s", file=sys.stderr, flush=True)
