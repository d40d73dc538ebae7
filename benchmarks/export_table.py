"""Every backend x every format x every family: exported, opened in its own runtime, compared.

    python benchmarks/export_table.py --tiny              # the table of docs/export.md
    python benchmarks/export_table.py --formats onnx --backends jax --models CaiT int8

Each cell is `keras_vitx.export(model, path, format)` with its defaults, and its entry the
largest difference from the model's outputs, relative to the largest output, or the reason why
there is none. Weights are random, at a scale where every one of them matters. Results are
appended to `--results` cell by cell, so that a run that was stopped continues there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")
FORMATS = ("saved_model", "onnx", "openvino", "litert", "torch", "stablehlo")
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
    "int8": ("ViT_Mini", {}),
}
"""Sizes and their changed arguments, by the name of the row; the last two are changed after."""
DEPTH = 2
"""Blocks of a model with `--tiny`."""


def make(name: str, tiny: bool):
    """Return the model of a row."""
    import keras
    import numpy as np

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
    if name == "int8":
        model.quantize("int8")
    return model


def _add_lora(model) -> None:
    import keras
    import numpy as np

    from keras_vitx.keras_internals import sublayers

    random = np.random.default_rng(1)
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.Dense) and layer.name != "head":
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(random.normal(0, 0.05, layer.lora_kernel_b.shape))


def cell(name: str, format: str, tiny: bool) -> dict:
    """Export one model to one format; return the figures or the reason why there are none."""
    import keras_vitx as kv

    model = make(name, tiny)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"model{kv.export.FORMATS[format].suffix}")
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


WORKER = """
import json, runpy, sys
if sys.argv[1].endswith(".py"):
    main = runpy.run_path(sys.argv[1])["main"]
else:
    from keras_vitx.export.elsewhere.from_file import main
for line in sys.stdin:
    try:
        main(*json.loads(line))
        print("\\nreply", flush=True)
    except Exception as error:
        print("\\nreply", repr(str(error)), flush=True)
"""


def keep_processes() -> None:
    """Let the second processes live on, one per script and backend, to import only once."""
    import importlib

    workers: dict[tuple, subprocess.Popen] = {}

    def run_python(*arguments, backend="tensorflow"):
        script, *rest = arguments[1:] if arguments[0] == "-m" else arguments
        key = str(script), backend
        if key not in workers:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                "KERAS_BACKEND": backend,
                "CUDA_VISIBLE_DEVICES": "-1",
            }
            workers[key] = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(script)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        worker = workers[key]
        print(json.dumps(list(map(str, rest))), file=worker.stdin, flush=True)
        line = next(line for line in worker.stdout if line.startswith("reply"))
        if line.strip() != "reply":
            raise ChildProcessError(line[len("reply ") :].strip())

    for name in ("elsewhere.from_file", "comparison.verify"):
        importlib.import_module(f"keras_vitx.export.{name}").run_python = run_python


def run_backend(arguments) -> None:
    """Append the cells of the current backend that are missing in the results."""
    import keras

    if arguments.keep_processes:
        keep_processes()
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

    lines = ["| model | " + " | ".join(FORMATS) + " |", "|---" * (len(FORMATS) + 1) + "|"]
    for name in (*FAMILIES, "PiT", "Mixer"):
        cells = (
            ", ".join(entry(backend, format, name) for backend in BACKENDS) for format in FORMATS
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"({i}) {reason}" for i, reason in enumerate(reasons, 1))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help=f"models of {DEPTH} blocks")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    names = (*FAMILIES, "PiT", "Mixer")
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--results", type=Path, default=Path("export_table.jsonl"))
    parser.add_argument(
        "--keep-processes", action="store_true", help="import once per backend; a third of the time"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        run_backend(arguments)
        return
    for backend in arguments.backends:
        command = [sys.executable, *sys.argv, "--here"]
        subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": backend})
    results = read(arguments.results)
    print(f"In a cell: {', '.join(BACKENDS)}.\n\n{table(results)}")
    good = sum("reason" not in each for each in results)
    print(f"\n{good} of {len(results)} cells.")


if __name__ == "__main__":
    main()
