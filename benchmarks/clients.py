"""Exported files, opened by clients that import neither this package nor its backend.

    make build/npm                                       # ONNX Runtime Web
    python benchmarks/clients.py                         # a table, which docs/export.md sums up
    python benchmarks/clients.py --backends jax --clients "ONNX Runtime" LiteRT --models CaiT LoRA

Each backend exports every model to every format, in a process of its own. Then each client, in
another, opens the files and runs three images at once. A cell is the largest difference from the
live model's outputs, relative to the largest output, or "-" and the reason. The models are small,
with random weights far from their initial values. ONNX Runtime Web needs Chromium.
"""

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

BACKENDS = ("tensorflow", "jax", "torch")
SUFFIXES = {
    "saved_model": "", "onnx": ".onnx", "openvino": ".xml", "litert": ".tflite", "torch": ".pt2",
    "stablehlo": ".stablehlo",
}  # fmt: skip
MINI = {"depth": 2}
MODELS = {
    "CaiT": ("CaiT_Mini", MINI | {"class_depth": 1}),
    "ViT": ("ViT_Mini", MINI),
    "ConViT": ("ConViT_Mini", MINI | {"local_depth": 1}),
    "DeepViT": ("DeepViT_Mini", MINI),
    "RefinedViT": ("RefinedViT_Mini", MINI),
    "CBViT": ("CBViT_Mini", MINI),
    "PiT": (
        "PiT",
        {"dims": (48, 96), "depths": (1, 2), "num_heads": (2, 4), "patch_size": 4, "stride": 2},
    ),
    "Mixer": ("Mixer", {"dim": 96, "patch_size": 4} | MINI),
    "distilled": ("ViT_Mini", MINI | {"distillation_token": True}),
    "dense head": ("RefinedViT_Mini", MINI | {"dense_head": True}),
}
MODELS |= {"LoRA": MODELS["CaiT"], "pixels": MODELS["ConViT"]}
"""The rows: constructors and arguments. `LoRA` has adapters, `pixels` its preprocessing inside."""
NPM = Path(__file__).parents[1] / "build" / "npm" / "onnxruntime-web" / "dist"


def make(name):
    """Return the model of a row, and a batch for its file."""
    import keras

    import keras_vitx as kv
    from keras_vitx.keras_internals import sublayers

    keras.utils.set_random_seed(0)
    constructor, arguments = MODELS[name]
    model = getattr(kv, constructor)(input_shape=(32, 32, 3), **arguments)
    random = np.random.default_rng(0)
    for variable in model.weights:
        noise = random.normal(0, 0.05, variable.shape).astype("float32")
        variable.assign(keras.ops.convert_to_numpy(variable) + np.abs(noise))
    if name == "LoRA":
        for layer in sublayers(model):
            if isinstance(layer, keras.layers.Dense) and layer.name != "head":
                layer.enable_lora(2)
                layer.lora_kernel_b.assign(random.normal(0, 0.05, layer.lora_kernel_b.shape))
    if name == "pixels":
        return model, random.integers(0, 256, (3, 40, 56, 3), "uint8")
    return model, random.standard_normal((3, 32, 32, 3)).astype("float32")


def write(directory, models, formats):
    """Export models under the current backend; write images, outputs and the reasons of failure."""
    import keras

    import keras_vitx as kv

    for name in models:
        model, images = make(name)
        stem = directory / f"{name.replace(' ', '_')}.{keras.backend.backend()}"
        live = kv.preprocess_input(list(images), model) if name == "pixels" else images
        outputs = keras.ops.convert_to_numpy(model(live, training=False))
        np.savez(f"{stem}.npz", images=images, outputs=outputs)
        sides = images.shape[1:3] if name == "pixels" else False
        for format in formats:
            path = Path(f"{stem}.{format}{SUFFIXES[format]}")
            if path.exists():
                continue
            try:
                kv.export(model, path, format, preprocessing=sides, verify=False, verbose=False)
            except Exception as error:
                Path(f"{stem}.{format}.failed").write_text(str(error).partition("\n")[0])


def tensorflow(path):
    import tensorflow as tf

    run = tf.saved_model.load(path).signatures["serving_default"]
    return lambda images: run(images=tf.constant(images))["probabilities"]


def tfsm_layer(path):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    return keras.layers.TFSMLayer(path, call_endpoint="serve")


def onnxruntime(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda images: session.run(["probabilities"], {"images": images})[0]


def openvino(path):
    import openvino

    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: model({"images": images})["probabilities"]


def tf_lite(path):
    import tensorflow as tf

    return lite(tf.lite.Interpreter(path))


def litert(path):
    from ai_edge_litert.interpreter import Interpreter

    return lite(Interpreter(path))


def lite(interpreter):
    run = interpreter.get_signature_runner("serving_default")
    return lambda images: run(images=images)["probabilities"]


def torch_export(path):
    import torch

    module = torch.export.load(path).module()
    return lambda images: module(torch.tensor(images))["probabilities"].detach()


def jax_export(path):
    import jax

    call = jax.export.deserialize(bytearray(Path(path).read_bytes())).call
    return lambda images: call(images)["probabilities"]


CLIENTS = {
    "TensorFlow": ("saved_model", tensorflow),
    "TFSMLayer": ("saved_model", tfsm_layer),
    "ONNX Runtime": ("onnx", onnxruntime),
    "ONNX Runtime Web": ("onnx", None),
    "OpenVINO": ("openvino", openvino),
    "tf.lite": ("litert", tf_lite),
    "LiteRT": ("litert", litert),
    "torch.export": ("torch", torch_export),
    "jax.export": ("stablehlo", jax_export),
}
"""The columns: format, and the function that opens a file and returns one of images."""

PAGE = """<script src="ort/ort.wasm.min.js"></script><script type="module">
for (const { path, images, type, shape } of await (await fetch("jobs.json")).json()) {
  let found;
  try {
    const session = await ort.InferenceSession.create(path);
    const content = await (await fetch(images)).arrayBuffer();
    const data = new { uint8: Uint8Array, float32: Float32Array }[type](content);
    const { probabilities } = await session.run({ images: new ort.Tensor(type, data, shape) });
    found = { outputs: Array.from(probabilities.data), shape: probabilities.dims };
  } catch (error) { found = { reason: String(error) }; }
  await fetch("/", { method: "POST", body: JSON.stringify(found) });
}
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and collects what the page sends."""

    def do_POST(self):
        self.server.found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        """Nothing."""


def in_chromium(directory, files, batches):
    """Return what ONNX Runtime Web finds for files and their batches, one after the other."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None or not NPM.exists():
        missing = "Chromium" if chromium is None else f"{NPM} (make build/npm)"
        return [{"reason": f"{missing} is not installed"}] * len(files)
    jobs = []
    for path, images in zip(files, batches, strict=True):
        path.with_suffix(".images").write_bytes(images.tobytes())
        job = {"path": path.name, "images": path.with_suffix(".images").name}
        jobs.append(job | {"type": str(images.dtype), "shape": images.shape})
    (directory / "jobs.json").write_text(json.dumps(jobs))
    (directory / "page.html").write_text(PAGE)
    shutil.copytree(NPM, directory / "ort", dirs_exist_ok=True)
    handler = functools.partial(Server, directory=directory)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        server.found = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://localhost:{server.server_port}/page.html"
        profile = f"--user-data-dir={directory / 'profile'}"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", profile, page]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60 + 10 * len(files)
            while len(server.found) < len(files) and time.monotonic() < deadline:
                time.sleep(0.1)
            process.terminate()
        server.shutdown()
        silent = [{"reason": "The page does not answer"}] * (len(files) - len(server.found))
        return server.found + silent


def read(directory, client):
    """Print the difference, or the reason why there is none, of each file that a client opens."""
    sys.modules["keras_vitx"] = None  # An import fails.
    format, opened = CLIENTS[client]
    files, batches, expected, found = [], [], [], []
    for recorded in sorted(directory.glob("*.npz")):
        file = recorded.with_suffix(f".{format}{SUFFIXES[format]}")
        if file.exists():
            arrays = np.load(recorded)
            files.append(file), batches.append(arrays["images"]), expected.append(arrays["outputs"])
    if opened is None:
        found = in_chromium(directory, files, batches)
    for file, images in zip(files, batches, strict=True) if opened else ():
        try:
            found.append({"outputs": np.asarray(opened(str(file))(images))})
        except Exception as error:
            found.append({"reason": f"{type(error).__name__}: {error}".partition("\n")[0]})
    for file, one, live in zip(files, found, expected, strict=True):
        if "outputs" in one:
            outputs = np.reshape(np.asarray(one["outputs"], "float32"), live.shape)
            one = {"difference": float(np.abs(outputs - live).max() / np.abs(live).max())}
        model, backend = file.name.split(".")[:2]
        print(json.dumps({"model": model, "backend": backend, "client": client, **one}), flush=True)


def table(cells, directory, models, clients, backends):
    """Return the table in Markdown, and below it the reasons of empty cells."""
    reasons, lines = [], [f"| model | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]

    def entry(model, client, backend):
        found = cells.get((model, client, backend), {})
        if "difference" in found:
            return f"{found['difference']:.0e}".replace("e-0", "e-").replace("0e+00", "0")
        failed = directory / f"{model}.{backend}.{CLIENTS[client][0]}.failed"
        reason = failed.read_text() if failed.exists() else found.get("reason", "The client died")
        if reason not in reasons:
            reasons.append(reason)
        return f"- ({reasons.index(reason) + 1})"

    for model in models:
        row = (
            ", ".join(entry(model.replace(" ", "_"), client, backend) for backend in backends)
            for client in clients
        )
        lines.append(f"| {model} | {' | '.join(row)} |")
    return "\n".join([*lines, "", *(f"({i}) {reason}" for i, reason in enumerate(reasons, 1))])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--directory", type=Path, help="keep the files; exports continue there")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        formats = dict.fromkeys(CLIENTS[client][0] for client in options.clients)
        return write(options.write, options.models, formats)
    if options.read:
        return read(options.read, *options.clients)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(exist_ok=True)
        for backend in options.backends:
            environment = {**os.environ, "KERAS_BACKEND": backend}
            command = [sys.executable, *sys.argv, "--write", str(directory)]
            subprocess.run(command, check=True, env=environment)
        cells = {}
        for client in options.clients:
            command = [sys.executable, __file__, "--clients", client, "--read", str(directory)]
            printed = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
            for line in filter(lambda line: line.startswith("{"), printed.splitlines()):
                one = json.loads(line)
                cells[one["model"], one["client"], one["backend"]] = one
        print(f"In a cell: {', '.join(options.backends)}.\n")
        print(table(cells, directory, options.models, options.clients, options.backends))


if __name__ == "__main__":
    main()
