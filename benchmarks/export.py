"""Files in other runtimes, accuracy of quantized models, latency of our ONNX files beside timm's.

    python benchmarks/export.py runtimes CaiT_Mini
    KERAS_BACKEND=jax python benchmarks/export.py accuracy cifar10.npz
    python benchmarks/export.py timm CaiT_S24 ConViT_S

`runtimes` prints the table of docs/export.md: the probabilities of 200 windows of scikit-image's
photographs, in each runtime that is installed, beside those of the model. Windows have any size,
and one size for files with preprocessing that take no other.

`accuracy` prints what docs/export.md sums up: the shipped checkpoints on the test images of
CIFAR-10, in Keras (float32, a policy, `model.quantize`) and quantized by ONNX Runtime, with ranges
of activations that are found for each image (dynamic) or fixed on 128 training images (static).

`timm` compares the latency of our ONNX files, in float32 and with random weights, with that of
timm's own, in ONNX Runtime and OpenVINO, at 224 pixels. Latencies are medians over `--rounds`, the
files in turns.
"""

import argparse
import functools
import importlib
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tables
from contenders import TIMM, skip_torchvision

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

FAMILIES = ("ViT", "CaiT", "ConViT", "DeepViT", "RefinedViT", "CBViT")
PRECISIONS = ("float32", "mixed_bfloat16", "int8", "int4", "dynamic", "static")


def accuracy(data: str, precisions: list[str]) -> None:
    """Print the top-1 accuracy of the shipped checkpoints on the test images of a data set."""
    import keras
    from quantize_onnx import CALIBRATION, classes_of, quantize

    import keras_vitx as kv

    source = kv.data.load_dataset(data)
    print(f"| | {' | '.join(precisions)} |\n{'|---' * (len(precisions) + 1)}|")
    for family in FAMILIES:
        row = [f"{family}_Mini"]
        for precision in precisions:
            keras.config.set_dtype_policy("mixed_bfloat16" if "bfloat" in precision else "float32")
            model = kv.create_model(f"{family}_Mini", weights="cifar10")
            images = kv.preprocess_input([*source.test.images], model)
            if precision in ("dynamic", "static"):
                with tempfile.TemporaryDirectory() as directory:
                    calibration = [*source.train.images[:CALIBRATION]]
                    exported = kv.export(model, Path(directory, "model.onnx"))
                    files = quantize(exported.path, kv.preprocess_input(calibration, model))
                    found = classes_of(files[precision == "static"], images)
            else:
                if precision.startswith("int"):
                    model.quantize(precision)
                found = model.predict(images, batch_size=250, verbose=0).argmax(axis=-1)
            row.append(f"{100 * np.mean(found == source.test.labels):.2f}")
        print(f"| {' | '.join(row)} |", flush=True)


def half(path: Path, converter: str) -> Path:
    """Write an ONNX file in float16 beside `path`."""
    import onnx

    convert = importlib.import_module(converter).convert_float_to_float16
    onnx.save(convert(onnx.load(path), keep_io_types=True), path.with_suffix(".half.onnx"))
    return path.with_suffix(".half.onnx")


def dynamic(path: Path) -> Path:
    """Write an ONNX file beside `path` whose products are in int8, as ONNX Runtime makes it."""
    from quantize_onnx import OPTIONS, quantization

    quantization.quantize_dynamic(path, path.with_suffix(".int8.onnx"), **OPTIONS)
    return path.with_suffix(".int8.onnx")


def openvino_of(path: Path, precision: str):
    """Return a function that runs an ONNX file in OpenVINO; weights are int8 by NNCF."""
    if precision != "int8":
        return openvino(path, {"float32": "f32", "bfloat16": "bf16"}[precision])
    import nncf
    from openvino import convert_model

    return openvino(nncf.compress_weights(convert_model(path)))


def litert(path: Path, precision: str):
    """Return a function that runs a SavedModel in LiteRT."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    converter = tf.lite.TFLiteConverter.from_saved_model(str(path), ["serving_default"])
    converter.optimizations = [tf.lite.Optimize.DEFAULT] * (precision != "float32")
    converter.target_spec.supported_types = [tf.float16] * (precision == "float16")
    run = Interpreter(model_content=converter.convert()).get_signature_runner("serving_default")
    return lambda images: [*run(images=images).values()]


def in_file(format: str):
    """Return a function that opens a file in its own runtime."""
    from keras_vitx.export import runtimes

    def open_file(path):
        run = getattr(runtimes, format)(str(path))
        return lambda images: [*run(images).values()]

    return open_file


COMMON, THEIRS = "onnxconverter_common.float16", "onnxruntime.transformers.float16"
RUNTIMES = [
    # Runtime, precision, the model's before it is exported, format, function that opens the file.
    ("TensorFlow", "float32", None, "saved_model", in_file("saved_model")),
    ("TensorFlow", "int8 (Keras)", "int8", "saved_model", in_file("saved_model")),
    ("LiteRT", "float32", None, "saved_model", functools.partial(litert, precision="float32")),
    ("LiteRT", "float16", None, "saved_model", functools.partial(litert, precision="float16")),
    ("LiteRT", "int8 (dynamic)", None, "saved_model", functools.partial(litert, precision="int8")),
    ("ONNX Runtime", "float32", None, "onnx", in_file("onnx")),
    ("ONNX Runtime", f"float16 ({THEIRS})", None, "onnx", lambda p: onnx_runtime(half(p, THEIRS))),
    ("ONNX Runtime", f"float16 ({COMMON})", None, "onnx", lambda p: onnx_runtime(half(p, COMMON))),
    ("ONNX Runtime", "int8 (dynamic)", None, "onnx", lambda p: onnx_runtime(dynamic(p))),
    ("ONNX Runtime", "int8 (Keras)", "int8", "onnx", in_file("onnx")),
    ("OpenVINO", "float32", None, "onnx", functools.partial(openvino_of, precision="float32")),
    ("OpenVINO", "bfloat16", None, "onnx", functools.partial(openvino_of, precision="bfloat16")),
    (
        "OpenVINO",
        "int8 (weights, NNCF)",
        None,
        "onnx",
        functools.partial(openvino_of, precision="int8"),
    ),
    ("PyTorch", "float32", None, "torch", in_file("torch")),
    ("PyTorch", "int8 (Keras)", "int8", "torch", in_file("torch")),
]


def in_runtimes(size: str, count: int = 200) -> None:
    """Print how far runtimes are from a model with a shipped checkpoint."""
    from quantize_onnx import windows

    import keras_vitx as kv
    from keras_vitx.export import FORMATS

    several = [np.asarray(window) for window in windows(count, 0)]
    alike = [np.asarray(window.resize((120, 90))) for window in windows(count, 0)]
    model = kv.create_model(size, weights="cifar10")
    expected = {}  # By whether all windows have one size.
    for one_size, images in ((False, several), (True, alike)):
        inputs = kv.preprocess_input(images, model)
        expected[one_size] = images, inputs, model.predict(inputs, verbose=0)

    @functools.cache
    def exported(directory: str, format: str, mode: str | None, preprocessing) -> Path:
        model = kv.create_model(size, weights="cifar10")
        if mode:
            model.quantize(mode)
        name = f"{mode}_{preprocessing}{FORMATS[format].suffix}"
        path = Path(directory, name)
        return kv.export(model, path, format, preprocessing=preprocessing).path

    with tempfile.TemporaryDirectory() as directory:
        for runtime, precision, mode, format, open_file in RUNTIMES:
            row = [runtime, precision]
            for pixels in (False, True):
                one_size = pixels and (runtime == "LiteRT" or not FORMATS[format].any_size)
                images, inputs, wanted = expected[one_size]
                preprocessing = images[0].shape[:2] if one_size else pixels
                try:
                    run = open_file(exported(directory, format, mode, preprocessing))
                    given = images if pixels else inputs
                    found = np.concatenate([np.asarray(run(each[None])[0]) for each in given])
                except Exception as error:
                    row.append(f"{type(error).__name__}")
                    continue
                equal = np.sum(found.argmax(axis=-1) == wanted.argmax(axis=-1))
                row.append(f"{np.abs(found - wanted).max():.1e}, {equal}")
            print("|", " | ".join(row), "|", flush=True)
    names = ("keras", "tensorflow", "ai-edge-litert", "onnxruntime", "openvino", "nncf", "torch")
    print(size, *(f"{name} {version(name)}" for name in names), sep=", ")


def onnx_runtime(path: Path):
    """Return a function that runs a file in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    return lambda images: session.run(None, {source.name: images})


def openvino(path: Path, precision: str = "f32"):
    """Return a function that runs a file in OpenVINO."""
    import openvino

    return openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": precision})


def in_turns(runs: list[tuple], rounds: int) -> list[float]:
    """Return the median latency of each (function, images), in ms, after two runs to warm up."""
    times = [[] for _ in runs]
    for _ in range(rounds + 2):
        for (run, images), found in zip(runs, times, strict=True):
            start = time.perf_counter()
            run(images)
            found.append(1000 * (time.perf_counter() - start))
    return [statistics.median(found[2:]) for found in times]


def against_timm(size: str, rounds: int) -> None:
    """Print the latencies of a size of ours and of timm's."""
    import keras_vitx as kv

    skip_torchvision()
    import timm
    import torch
    from timm.utils.onnx import onnx_export

    random = np.random.default_rng(0)
    images = random.standard_normal((1, 224, 224, 3)).astype("float32")
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = Path(directory, "ours.onnx"), Path(directory, "timm.onnx")
        model = kv.create_model(size, classifier_activation=None)
        kv.export(model, ours, "onnx")
        network = timm.create_model(TIMM[size], exportable=True).eval()
        example = torch.zeros(1, 3, 224, 224)
        with torch.no_grad():
            network(example)  # ConViT keeps its positions, which must not be inference tensors.
            onnx_export(network, str(theirs), example, input_size=(3, 224, 224))
        given = ((ours, images), (theirs, images.transpose(0, 3, 1, 2).copy()))
        runs = [
            (open_file(path), one) for open_file in (onnx_runtime, openvino) for path, one in given
        ]
        latencies = in_turns(runs, rounds)
    rounded = [f"{latency:.0f}" for latency in latencies]
    rows = [["onnx", *rounded[:2]], ["openvino", *rounded[2:]]]
    print(size, tables.markdown([["one image at 224", "ours, ms", "timm, ms"], *rows]), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("runtimes").add_argument("size", choices=[f"{f}_Mini" for f in FAMILIES])
    precisions = commands.add_parser("accuracy")
    precisions.add_argument("data", help="CIFAR-10, as for `keras-vitx evaluate`")
    precisions.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    peers = commands.add_parser("timm")
    peers.add_argument("sizes", nargs="+", choices=TIMM)
    peers.add_argument("--rounds", type=int, default=30, help="measurements of each latency")
    arguments = parser.parse_args()
    if arguments.command == "runtimes":
        in_runtimes(arguments.size)
    elif arguments.command == "accuracy":
        accuracy(arguments.data, arguments.precisions)
    for size in getattr(arguments, "sizes", ()):
        against_timm(size, arguments.rounds)


if __name__ == "__main__":
    main()
