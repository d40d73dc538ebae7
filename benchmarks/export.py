"""Files in other runtimes, accuracy of quantized models, latency of our ONNX files beside timm's.

    python benchmarks/export.py runtimes CaiT_Mini
    KERAS_BACKEND=torch python benchmarks/export.py accuracy cifar10.npz --images 2000
    python benchmarks/export.py timm CaiT_S24 ConViT_S

`runtimes` prints the table of docs/export.md: the probabilities of 200 windows of scikit-image's
photographs, in each runtime that is installed, beside those of the model. Windows have any size,
and one size for files with preprocessing that take no other.

`accuracy` prints the table of docs/guides/memory.md: the shipped checkpoints on the test images of
CIFAR-10, before saving, loaded in a fresh process, and the number of classes that differ then.

`timm` compares the latency of our ONNX files, in float32 and with random weights, with that of
timm's own, in ONNX Runtime and OpenVINO, at 224 pixels. Latencies are medians over `--rounds`, the
files in turns.
"""

import argparse
import contextlib
import functools
import importlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tables
from contenders import TIMM, skip_torchvision

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

FAMILIES = ("ViT", "CaiT", "ConViT", "DeepViT", "RefinedViT", "CBViT")
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16", "mixed_float16", "autocast", "int8", "int4")
PRECISIONS += ("int8+lora", "lora+int8")
TRAINING = 800  # Images that adapters are trained on, once.


def accuracy(data: str, precisions: list[str], count: int) -> None:
    """Print the accuracy of the shipped checkpoints on test images, before and after saving."""
    import keras

    import keras_vitx as kv

    source = kv.data.load_dataset(data)
    labels = source.test.labels[:count]
    print(f"| | {' | '.join(precisions)} |\n{'|---' * (len(precisions) + 1)}|")
    for family in FAMILIES:
        row = [f"{family}_Mini"]
        for precision in precisions:
            keras.config.set_dtype_policy(precision if "float" in precision else "float32")
            model = kv.create_model(f"{family}_Mini", weights="cifar10")
            images = kv.preprocess_input([*source.test.images[:count]], model)
            training = kv.preprocess_input([*source.train.images[:TRAINING]], model)
            with tempfile.TemporaryDirectory() as directory:
                model = prepared(model, precision, training, source.train.labels[:TRAINING])
                found = before_and_after(model, Path(directory, "m.keras"), images, precision)
            row.append(", ".join(f"{100 * np.mean(one == labels):.2f}" for one in found))
            if changed := np.sum(found[0] != found[-1]):
                row[-1] += f" ({changed})"
        print(f"| {' | '.join(row)} |", flush=True)


def prepared(model, precision: str, images, labels):
    """Return a model that is quantized or given LoRA, which is trained, in the order of names."""
    import keras

    import keras_vitx as kv
    from keras_vitx.keras_internals import sublayers

    for step in precision.split("+"):
        if step == "lora":
            for layer in sublayers(model):
                if isinstance(layer, keras.layers.Dense):
                    layer.enable_lora(4)
            model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy")
            model.fit(images, labels, batch_size=32, verbose=0)
        elif step.startswith("int"):
            model = kv.fuse(model) if precision.startswith("lora") else model
            model.quantize(step)
    return model


def before_and_after(model, path: Path, images, precision: str) -> list[np.ndarray]:
    """Return the classes that a model predicts here and, unless `save` refuses, when loaded."""
    found = [classes(model, images, precision)]
    try:
        model.save(path)
    except ValueError:
        return found
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return [*found, pool.submit(classes, path, images, precision).result()]


def classes(model, images, precision: str) -> np.ndarray:
    """Return the classes that a model, or a saved one, predicts, perhaps under autocast."""
    import keras

    import keras_vitx  # noqa: F401 - registers its classes

    model = keras.saving.load_model(model) if isinstance(model, Path) else model
    with autocast() if precision == "autocast" else contextlib.nullcontext():
        return model.predict(images, batch_size=250, verbose=0).argmax(axis=-1)


def autocast():
    """Return PyTorch's autocast to bfloat16 on a CPU."""
    import torch

    return torch.autocast("cpu", torch.bfloat16)


def half(path: Path, converter: str) -> Path:
    """Write an ONNX file in float16 beside `path`."""
    import onnx

    convert, model = importlib.import_module(converter).convert_float_to_float16, onnx.load(path)
    casts = [node.name for node in model.graph.node if node.op_type == "Cast"]
    path = path.with_suffix(".half.onnx")
    onnx.save(convert(model, keep_io_types=True, node_block_list=casts), path)
    return path


def dynamic(path: Path) -> Path:
    """Write an ONNX file beside `path` whose products are in int8, as ONNX Runtime makes it."""
    from quantize_onnx import OPTIONS, quantization

    quantization.quantize_dynamic(path, path.with_suffix(".int8.onnx"), **OPTIONS)
    return path.with_suffix(".int8.onnx")


def openvino_int8(path: Path):
    """Return a function that runs an ONNX file in OpenVINO, its weights in int8 by NNCF."""
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


def in_file(path: Path):
    """Return a function that opens a file in its own runtime."""
    from keras_vitx.export import runtimes

    format = {"": "saved_model", ".onnx": "onnx", ".pt2": "torch"}[path.suffix]
    run = getattr(runtimes, format)(str(path))
    return lambda images: [*run(images).values()]


def in_autocast(path: Path):
    """Return a function that runs a `.pt2` file under autocast."""
    import torch

    run = autocast()(torch.no_grad()(torch.export.load(path).module()))
    return lambda images: [each.float() for each in run(torch.from_numpy(images)).values()]


COMMON, THEIRS = "onnxconverter_common.float16", "onnxruntime.transformers.float16"
RUNTIMES = [
    # Runtime, precision, the model's before it is exported, format, function that opens the file.
    ("TensorFlow", "float32", None, "saved_model", in_file),
    ("TensorFlow", "int8 (Keras)", "int8", "saved_model", in_file),
    ("LiteRT", "float32", None, "saved_model", lambda path: litert(path, "float32")),
    ("LiteRT", "float16", None, "saved_model", lambda path: litert(path, "float16")),
    ("LiteRT", "int8 (dynamic)", None, "saved_model", lambda path: litert(path, "int8")),
    ("ONNX Runtime", "float32", None, "onnx", in_file),
    ("ONNX Runtime", f"float16 ({THEIRS})", None, "onnx", lambda p: in_file(half(p, THEIRS))),
    ("ONNX Runtime", f"float16 ({COMMON})", None, "onnx", lambda p: in_file(half(p, COMMON))),
    ("ONNX Runtime", "int8 (dynamic)", None, "onnx", lambda path: in_file(dynamic(path))),
    ("ONNX Runtime", "int8 (Keras)", "int8", "onnx", in_file),
    ("OpenVINO", "float32", None, "onnx", lambda path: openvino(path)),
    ("OpenVINO", "bfloat16", None, "onnx", lambda path: openvino(path, "bf16")),
    ("OpenVINO", "int8 (weights, NNCF)", None, "onnx", openvino_int8),
    ("PyTorch", "float32", None, "torch", in_file),
    ("PyTorch", "bfloat16 (autocast)", None, "torch", in_autocast),
    ("PyTorch", "int8 (Keras)", "int8", "torch", in_file),
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
                    equal = np.sum(found.argmax(axis=-1) == wanted.argmax(axis=-1))
                    row.append(f"{np.abs(found - wanted).max():.1e}, {equal}")
                except Exception as error:
                    row.append(type(error).__name__)
            print("|", " | ".join(row), "|", flush=True)
    names = "tensorflow ai-edge-litert onnxruntime onnxconverter-common openvino nncf torch keras"
    print(size, *(f"{name} {version(name)}" for name in names.split()), sep=", ")


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
        runs = [(open_file(path), one) for open_file in (in_file, openvino) for path, one in given]
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
    precisions.add_argument("--images", type=int, help="the first of the test images; default: all")
    precisions.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    peers = commands.add_parser("timm")
    peers.add_argument("sizes", nargs="+", choices=TIMM)
    peers.add_argument("--rounds", type=int, default=30, help="measurements of each latency")
    arguments = parser.parse_args()
    if arguments.command == "runtimes":
        in_runtimes(arguments.size)
    elif arguments.command == "accuracy":
        accuracy(arguments.data, arguments.precisions, arguments.images)
    for size in getattr(arguments, "sizes", ()):
        against_timm(size, arguments.rounds)


if __name__ == "__main__":
    main()
