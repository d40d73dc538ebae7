"""Exported files in their own runtimes.

Run as `python runtimes.py FORMAT PATH INPUTS.npz OUTPUTS.npz` to compute the outputs of a file.
Neither Keras nor keras_vitx can be imported in that process, so a file that depends on one of
them fails. This file imports neither.
"""

import importlib.metadata
import os
import shutil
import statistics
import sys
import threading
import time

import numpy as np

WARMUP, MAX_RUNS, SECONDS = 2, 30, 0.5
"""Runs before the latency is measured, and the limits of the measurement."""

PACKAGES = {
    "saved_model": "tensorflow",
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai-edge-litert",
    "torch": "torch",
    "stablehlo": "jax",
}


def load(format, path):
    """Return a function on the CPU from images to float32 outputs by name, safe for threads."""
    return globals()[f"_{format}"](str(path))


def _saved_model(path):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signatures = {}
    for signature in loaded.signatures.values():
        (spec,) = signature.structured_input_signature[1].values()
        if spec.dtype == tf.string:  # Encoded images.
            continue
        signatures.setdefault(tuple(spec.shape[1:3]), (signature, spec))

    def run(images):
        signature, spec = signatures.get(images.shape[1:3]) or next(iter(signatures.values()))
        outputs = signature(**{spec.name: tf.cast(images, spec.dtype)})
        # NumPy has no bfloat16.
        return {name: tf.cast(each, "float32").numpy() for name, each in outputs.items()}

    # The function refers to variables that the module holds.
    run.loaded = loaded
    return run


def _onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images_input,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    half = images_input.type == "tensor(float16)"

    def run(images):
        outputs = session.run(
            names, {images_input.name: images.astype("float16") if half else images}
        )
        return {name: each.astype("float32") for name, each in zip(names, outputs, strict=True)}

    return run


def _openvino(path):
    import openvino
    from openvino import properties

    # In the precision of the file, where a CPU would choose bfloat16 by itself.
    model = openvino.compile_model(
        path, "CPU", {properties.hint.inference_precision: openvino.Type.f32}
    )
    names = [output.get_any_name() for output in model.outputs]
    lock = threading.Lock()

    def run(images):
        with lock:
            outputs = model(images)
            return {name: outputs[index].astype("float32") for index, name in enumerate(names)}

    return run


def _litert(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=os.cpu_count())
    runner = interpreter.get_signature_runner("serving_default")
    lock = threading.Lock()

    def run(images):
        with lock:
            outputs = runner(images=images)
            return {name: each.astype("float32") for name, each in outputs.items()}

    return run


def _torch(path):
    import torch

    module = torch.export.load(path).module()

    def run(images):
        with torch.no_grad():
            outputs = module(torch.from_numpy(images))
        return {name: each.float().numpy() for name, each in outputs.items()}

    return run


def _stablehlo(path):
    import jax

    with open(path, "rb") as file:
        call = jax.jit(jax.export.deserialize(bytearray(file.read())).call)

    def run(images):
        return {name: np.asarray(each, "float32") for name, each in call(images).items()}

    return run


def main(format, path, inputs, outputs):
    """Write the outputs of each batch as `<batch>.<name>`, and `latency_ms` and `version`."""
    # Submodules, too: what Python has imported before, it does not look for in their parents.
    loaded = [name for name in sys.modules if name.split(".")[0] in ("keras", "keras_vitx")]
    sys.modules.update(dict.fromkeys(["keras", "keras_vitx", *loaded]))
    batches = dict(np.load(inputs))
    run = load(format, path)
    results = {}
    for name, images in batches.items():
        for output, value in run(images).items():
            results[f"{name}.{output}"] = value
    latency = _latency(run, next(iter(batches.values()))[:1])
    version = importlib.metadata.version(PACKAGES[format])
    np.savez(outputs, latency_ms=latency, version=version, **results)


def _latency(run, images):
    """Return the median latency of a batch, in milliseconds."""
    for _ in range(WARMUP):
        run(images)
    times, end = [], time.perf_counter() + SECONDS
    while not times or (len(times) < MAX_RUNS and time.perf_counter() < end):
        start = time.perf_counter()
        run(images)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def end_with_parent(folder):
    """Remove `folder` and end this process when the parent, at the other end of stdin, is gone."""

    def wait():
        os.read(0, 1)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent(os.path.dirname(sys.argv[3]))
    main(*sys.argv[1:])
