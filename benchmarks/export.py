"""Accuracy of quantized models, and the latency of our ONNX files beside timm's.

    KERAS_BACKEND=jax python benchmarks/export.py accuracy cifar10.npz
    python benchmarks/export.py timm CaiT_S24 ConViT_S

`accuracy` prints what docs/export.md sums up: the shipped checkpoints on the test images of
CIFAR-10, in Keras (float32, a policy, `model.quantize`) and quantized by ONNX Runtime, with ranges
of activations that are found for each image (dynamic) or fixed on 128 training images (static).

`timm` compares the latency of our ONNX files, in float32 and with random weights, with that of
timm's own, in ONNX Runtime and OpenVINO, at 224 pixels. Latencies are medians over `--rounds`, the
files in turns.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tables
from contenders import TIMM, skip_torchvision

FAMILIES = ("ViT", "CaiT", "ConViT", "DeepViT", "RefinedViT", "CBViT")
PRECISIONS = ("float32", "mixed_bfloat16", "int8", "int4", "dynamic", "static")


def accuracy(data: str, precisions: list[str]) -> None:
    """Print the top-1 accuracy of the shipped checkpoints on the test images of a data set."""
    import keras

    import keras_vitx as kv

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from quantize_onnx import CALIBRATION, classes_of, quantize

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


def onnx_runtime(path: Path):
    """Return a function that runs a file in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    return lambda images: session.run(None, {source.name: images})


def openvino(path: Path):
    """Return a function that runs a file in OpenVINO, in float32."""
    import openvino

    return openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


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
    precisions = commands.add_parser("accuracy")
    precisions.add_argument("data", help="CIFAR-10, as for `keras-vitx evaluate`")
    precisions.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    peers = commands.add_parser("timm")
    peers.add_argument("sizes", nargs="+", choices=TIMM)
    peers.add_argument("--rounds", type=int, default=30, help="measurements of each latency")
    arguments = parser.parse_args()
    if arguments.command == "accuracy":
        accuracy(arguments.data, arguments.precisions)
    for size in getattr(arguments, "sizes", ()):
        against_timm(size, arguments.rounds)


if __name__ == "__main__":
    main()
