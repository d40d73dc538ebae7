"""Size, latency and accuracy of exported files: every runtime and precision, and timm's files.

    python benchmarks/precisions.py cifar10.npz CaiT_Mini=cifar10 [SIZE=WEIGHTS ...]
    python benchmarks/precisions.py --timm CaiT_S24 ConViT_S

The first form exports each checkpoint to each runtime in each precision, and prints the size of
the file, the latency of one image and the top-1 accuracy on the test images of the source.
"int8-static" is calibrated on its training images. The second form compares the latency of
our ONNX files, in float32 and with random weights, with that of timm's own, in ONNX Runtime and
OpenVINO, at 224 pixels. Latencies are medians over `--rounds`, each in a new process, the
files in turns.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

import keras_vitx as kv
from keras_vitx.export.comparison.verify import run_file
from keras_vitx.export.formats import FORMATS

RUNTIMES = ("onnx", "openvino", "litert")
TIMM = {"CaiT_S24": "cait_s24_224", "ConViT_S": "convit_small"}
BATCH = 100
"""Images per call when the accuracy is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", help="as of keras-vitx evaluate, with test images")
    parser.add_argument("checkpoints", nargs="*", help="SIZE=WEIGHTS")
    parser.add_argument("--timm", nargs="+", choices=TIMM, default=[], metavar="SIZE")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument("--precisions", nargs="+", help="default: all that a runtime has")
    parser.add_argument("--count", type=int, help="test images; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each latency")
    arguments = parser.parse_args()
    for checkpoint in arguments.checkpoints:
        size, _, weights = checkpoint.partition("=")
        precisions(kv.create_model(size, weights=weights or None), arguments)
    for size in arguments.timm:
        against_timm(size, arguments.rounds)


def precisions(model, arguments) -> None:
    """Print the table of one checkpoint."""
    test = kv.data.open_source(arguments.source, validation_split=0).test
    count = arguments.count or test.size
    images = kv.preprocess_input([test.images[index] for index in range(count)], model)
    labels = test.labels[:count]
    batches = {str(start): images[start : start + BATCH] for start in range(0, len(images), BATCH)}
    print(f"{model.name}, {count} test images")
    print("| runtime | precision | MB | one image, ms | accuracy, % |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        rows = {}
        for name in arguments.runtimes:
            for precision in (None, *FORMATS[name].precisions):
                if arguments.precisions and (precision or "float32") not in arguments.precisions:
                    continue
                path = Path(folder, f"{name}-{precision}{FORMATS[name].suffix}")
                static = {"calibration": arguments.source} if precision == "int8-static" else {}
                options = {"precision": precision, "verify": False, "verbose": False, **static}
                exported = kv.export(model, path, name, **options)
                outputs, _ = run_file(path, FORMATS[name], batches)
                (output,) = exported.outputs
                found = np.concatenate([outputs[f"{start}.{output}"] for start in batches])
                accuracy = 100 * np.mean(found.argmax(axis=-1) == labels)
                rows[path] = (name, precision or "float32", exported.size / 1e6, accuracy)
                print(f"... {path.name}: {accuracy:.2f} %", file=sys.stderr, flush=True)
        files = [(path, row[0], images[:1]) for path, row in rows.items()]
        latencies = in_turns(files, arguments.rounds)
    for row, latency in zip(rows.values(), latencies, strict=True):
        name, precision, size, accuracy = row
        print(f"| {name} | {precision} | {size:.2f} | {latency:.2f} | {accuracy:.2f} |")


def in_turns(files: list[tuple], rounds: int) -> list[float]:
    """Return the median latency of each (path, runtime, images), in ms."""
    times = [[] for _ in files]
    for _ in range(rounds):
        for (path, runtime, images), found in zip(files, times, strict=True):
            _, facts = run_file(path, FORMATS[runtime], {"0": images})
            found.append(facts["latency_ms"])
    return [statistics.median(found) for found in times]


def against_timm(size: str, rounds: int) -> None:
    """Print the latencies of a size of ours and of timm's."""
    import types

    # The installed torchvision may not match torch; timm imports it, but it is not used here.
    module = "torchvision._meta_registrations"
    sys.modules.setdefault(module, types.ModuleType(module))
    import timm
    import torch
    from timm.utils.onnx import onnx_export

    random = np.random.default_rng(0)
    images = random.standard_normal((1, 224, 224, 3)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours.onnx"), Path(folder, "timm.onnx")
        model = kv.create_model(size, classifier_activation=None)
        kv.export(model, ours, "onnx", verify=False, verbose=False)
        network = timm.create_model(TIMM[size], exportable=True).eval()
        example = torch.zeros(1, 3, 224, 224)
        with torch.no_grad():
            network(example)  # ConViT keeps its positions, which must not be inference tensors.
            onnx_export(network, str(theirs), example, input_size=(3, 224, 224))
        runtimes = ("onnx", "openvino")
        given = ((ours, images), (theirs, images.transpose(0, 3, 1, 2).copy()))
        files = [(path, runtime, batch) for runtime in runtimes for path, batch in given]
        latencies = in_turns(files, rounds)
    print(f"{size}, one image at 224\n| runtime | ours, ms | timm, ms |\n|---|---|---|")
    for index, runtime in enumerate(runtimes):
        mine, other = latencies[2 * index : 2 * index + 2]
        print(f"| {runtime} | {mine:.0f} | {other:.0f} |")


if __name__ == "__main__":
    main()
