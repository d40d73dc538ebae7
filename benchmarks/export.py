"""Exported files: every cell of the table, and timm's own files.

    python benchmarks/export.py table --tiny              # the table of docs/export.md
    python benchmarks/export.py table --formats onnx --backends jax --models CaiT LoRA
    python benchmarks/export.py timm CaiT_S24 ConViT_S

`table`: each cell is `keras_vitx.export(model, path, format)` with its defaults, and its entry the
largest difference from the model's outputs, relative to the largest output, or the reason why
there is none. Weights are random, at a scale where every one of them matters. Results are
appended to `--results` cell by cell, so that a run that was stopped continues there.

`timm` compares the latency of our ONNX files, in float32 and with random weights, with that of
timm's own, in ONNX Runtime and OpenVINO, at 224 pixels. Latencies are medians over `--rounds`,
each in a new process, the files in turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BACKENDS = ("tensorflow", "jax", "torch")
FORMAT_NAMES = ("saved_model", "onnx", "openvino", "litert", "torch", "stablehlo")
FAMILIES = {
    "CaiT": ("CaiT_Mini", {"class_depth": 1}),
    "ViT": ("ViT_Mini", {}),
    "ConViT": ("ConViT_Mini", {"local_depth": 1}),
    "DeepViT": ("DeepViT_Mini", {}),
    "RefinedViT": ("RefinedViT_Mini", {}),
    "CBViT": ("CBViT_Mini", {}),
    "distilled": ("ViT_Mini", {"distillation_token": True}),
    "dense head": ("RefinedViT_Mini", {"dense_head": True}),
    "LoRA": ("CaiT_Mini", {"class_depth": 1}),
}
"""Sizes and their changed arguments, by the name of the row; the last is changed after."""
DEPTH = 2
"""Blocks of a model with `--tiny`."""


def make(name: str, tiny: bool):
    """Return the model of a row."""
    import keras

    import keras_vitx as kv

    if name == "PiT":
        depths = (1, 2) if tiny else (2, 6)
        model = kv.PiT((48, 96), depths, (2, 4), patch_size=4, stride=2, input_shape=(32, 32, 3))
    elif name == "Mixer":
        model = kv.Mixer(96, DEPTH if tiny else 8, patch_size=4, input_shape=(32, 32, 3))
    else:
        size, arguments = FAMILIES[name]
        arguments = {**arguments, "depth": DEPTH} if tiny else {}
        if name in ("distilled", "dense head"):
            arguments |= FAMILIES[name][1]
        model = kv.create_model(size, **arguments)
    random = np.random.default_rng(0)
    for variable in model.weights:
        noise = random.normal(0, 0.05, variable.shape).astype("float32")
        variable.assign(keras.ops.convert_to_numpy(variable) + np.abs(noise))
    if name == "LoRA":
        _add_lora(model)
    return model


def _add_lora(model) -> None:
    import keras

    from keras_vitx.keras_internals import sublayers

    random = np.random.default_rng(1)
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.Dense) and layer.name != "head":
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(random.normal(0, 0.05, layer.lora_kernel_b.shape))


def cell(name: str, format: str, tiny: bool) -> dict:
    """Export one model to one format; return the figures or the reason why there are none."""
    import keras_vitx as kv
    from keras_vitx.export.formats import FORMATS

    model = make(name, tiny)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"model{FORMATS[format].suffix}")
        try:
            exported = kv.export(model, path, format, verbose=False)
        except Exception as error:
            return {"reason": str(error).splitlines()[0][:300]}
    return {
        "difference": exported.difference,
        "top1": exported.top1,
        "latency_ms": exported.latency_ms,
        "size": exported.size,
        "fused": exported.not_fused is None,
        "seconds": round(time.perf_counter() - start, 1),
        "stages": exported.seconds,
    }


def run_backend(arguments) -> None:
    """Append the cells of the current backend that are missing in the results."""
    import keras

    backend = keras.backend.backend()
    done = {(each["backend"], each["format"], each["model"]) for each in read(arguments.results)}
    for name in arguments.models:
        for format in arguments.formats:
            if (backend, format, name) not in done:
                found = cell(name, format, arguments.tiny)
                found = {"backend": backend, "format": format, "model": name, **found}
                with arguments.results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps(found), file=sys.stderr, flush=True)


def read(file: Path) -> list[dict]:
    """Return the results so far."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def table(results: list[dict]) -> str:
    """Return a Markdown table, one entry per backend in a cell, and numbered reasons below it."""
    found = {(each["backend"], each["format"], each["model"]): each for each in results}
    reasons: list[str] = []

    def entry(*key):
        if key not in found:
            return "not run"
        if "reason" not in found[key]:
            return f"{found[key]['difference']:.0e}".replace("e-0", "e-")
        if found[key]["reason"] not in reasons:
            reasons.append(found[key]["reason"])
        return f"({reasons.index(found[key]['reason']) + 1})"

    lines = ["| model | " + " | ".join(FORMAT_NAMES) + " |", "|---" * (len(FORMAT_NAMES) + 1) + "|"]
    for name in (*FAMILIES, "PiT", "Mixer"):
        cells = (
            ", ".join(entry(backend, format, name) for backend in BACKENDS)
            for format in FORMAT_NAMES
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"({i}) {reason}" for i, reason in enumerate(reasons, 1))])


TIMM = {
    "CaiT_XXS24": "cait_xxs24_224",
    "CaiT_S24": "cait_s24_224",
    "ConViT_S": "convit_small",
}


def in_turns(files: list[tuple], rounds: int) -> list[float]:
    """Return the median latency of each (path, runtime, images), in ms."""
    from keras_vitx.export.convert import run_file
    from keras_vitx.export.formats import FORMATS

    times = [[] for _ in files]
    for _ in range(rounds):
        for (path, runtime, images), found in zip(files, times, strict=True):
            outputs = run_file(path, FORMATS[runtime], {"0": images})
            found.append(float(outputs["latency_ms"]))
    return [statistics.median(found) for found in times]


def against_timm(size: str, rounds: int) -> None:
    """Print the latencies of a size of ours and of timm's."""
    import types

    import keras_vitx as kv

    # The installed torchvision may not match torch; timm imports it, but it is not used here.
    module = "torchvision._meta_registrations"
    sys.modules.setdefault(module, types.ModuleType(module))
    import timm
    import torch
    from timm.utils.onnx import onnx_export

    random = np.random.default_rng(0)
    images = random.standard_normal((1, 224, 224, 3)).astype("float32")
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = Path(directory, "ours.onnx"), Path(directory, "timm.onnx")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    cells = commands.add_parser("table")
    cells.add_argument("--tiny", action="store_true", help=f"models of {DEPTH} blocks")
    cells.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    cells.add_argument("--formats", nargs="+", default=FORMAT_NAMES, choices=FORMAT_NAMES)
    names = (*FAMILIES, "PiT", "Mixer")
    cells.add_argument("--models", nargs="+", default=names, choices=names)
    cells.add_argument("--results", type=Path, default=Path("export_table.jsonl"))
    cells.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    peers = commands.add_parser("timm")
    peers.add_argument("sizes", nargs="+", choices=TIMM)
    peers.add_argument("--rounds", type=int, default=3, help="measurements of each latency")
    arguments = parser.parse_args()
    if arguments.command == "table":
        run_backend(arguments) if arguments.here else run_table(arguments)
    for size in getattr(arguments, "sizes", ()):
        against_timm(size, arguments.rounds)


def run_table(arguments) -> None:
    """Run each backend in a process of its own, and print the table."""
    for backend in arguments.backends:
        command = [sys.executable, *sys.argv, "--here"]
        subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": backend})
    results = read(arguments.results)
    print(f"In a cell: {', '.join(BACKENDS)}.\n\n{table(results)}")
    good = sum("reason" not in each for each in results)
    print(f"\n{good} of {len(results)} cells.")


if __name__ == "__main__":
    main()
