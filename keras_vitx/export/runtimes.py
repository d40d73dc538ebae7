"""Exported files in their own runtimes.

`python runtimes.py FORMAT PATH INPUTS.npz OUTPUTS.npz` computes the outputs of a file in a process
that can import neither Keras nor keras_vitx, and neither does this module.
"""

import atexit
import os
import shutil
import statistics
import sys
import threading
import time

import numpy as np

SECONDS, MAX_RUNS = 0.5, 30
"""Limits of the measurement of a latency."""

LOCK = threading.Lock()
"""Held while a file is opened: `torch.export.load` has one state for all threads."""


def load(format, path):
    """Return a thread-safe function, on the CPU, from images to float32 outputs by name."""
    with LOCK:
        return globals()[f"_{format}"](str(path))


def _saved_model(path):
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signatures = {}
    for signature in loaded.signatures.values():
        (spec,) = signature.structured_input_signature[1].values()
        if spec.dtype != tf.string:  # Not encoded images.
            signatures.setdefault(tuple(spec.shape[1:3]), (signature, spec))

    def run(images):
        signature, spec = signatures.get(images.shape[1:3]) or next(iter(signatures.values()))
        outputs = signature(**{spec.name: tf.cast(images, spec.dtype)})
        # NumPy has no bfloat16.
        return {name: tf.cast(each, "float32").numpy() for name, each in outputs.items()}

    # Keep the module, which owns the variables.
    run.loaded = loaded
    return run


def _onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]

    def run(images):
        images = images.astype("float16") if source.type == "tensor(float16)" else images
        outputs = session.run(names, {source.name: images})
        return {name: each.astype("float32") for name, each in zip(names, outputs, strict=True)}

    return run


def _openvino(path):
    import openvino
    from openvino import properties

    # By default, some CPUs would compute in bfloat16.
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
            return {name: each.astype("float32") for name, each in runner(images=images).items()}

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
    return lambda images: {name: np.asarray(each, "float32") for name, each in call(images).items()}


def main(format, path, inputs, outputs):
    """Write the outputs of each batch as `<batch>.<name>`, and `latency_ms`, a median."""
    # Block loaded submodules, too: Python would not look for them in their parents.
    loaded = [name for name in sys.modules if name.split(".")[0] in ("keras", "keras_vitx")]
    sys.modules.update(dict.fromkeys(["keras", "keras_vitx", *loaded]))
    batches = dict(np.load(inputs))
    run = load(format, path)
    found = {key: run(images) for key, images in batches.items()}
    results = {f"{key}.{name}": each for key, row in found.items() for name, each in row.items()}
    one, times, end = next(iter(batches.values()))[:1], [], time.perf_counter() + SECONDS
    while len(times) < 3 or (len(times) < MAX_RUNS and time.perf_counter() < end):
        start = time.perf_counter()
        run(one)
        times.append(1000 * (time.perf_counter() - start))
    # The first two warm up.
    np.savez(outputs, latency_ms=statistics.median(times[2:]), **results)


def end_with_parent(directory):
    """Remove `directory` and end this process when the parent, the other end of stdin, is gone."""
    removing = threading.Lock()

    def wait():
        os.read(0, 1)
        with removing:
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    # An error due to removed files must not end this process before all are removed.
    atexit.register(removing.acquire)


if __name__ == "__main__":
    end_with_parent(os.path.dirname(sys.argv[3]))
    main(*sys.argv[1:])
