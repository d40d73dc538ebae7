"""Exported files in their own runtimes.

`python runtimes.py FORMAT PATH INPUTS.npz OUTPUTS.npz` computes the outputs of a file in a process
that can import neither Keras nor keras_vitx, and neither does this module.
"""

import sys

import numpy as np


def saved_model(path):
    """Return a function from images to outputs by name, of a SavedModel in TensorFlow."""
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serve"]

    def run(images):
        outputs = serve(images=tf.constant(images))
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run


def onnx(path):
    """Return the same of an `.onnx` file in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    (source,) = session.get_inputs()
    return lambda images: dict(zip(names, session.run(names, {source.name: images}), strict=True))


def torch(path):
    """Return the same of a `.pt2` file in PyTorch."""
    import torch

    module = torch.export.load(path).module()

    def run(images):
        with torch.no_grad():
            outputs = module(torch.from_numpy(images))
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run


def main(format, path, inputs, outputs):
    """Write the outputs of each batch as `<batch>.<name>`."""
    # Block loaded submodules, too: Python would not look for them in their parents.
    loaded = [name for name in sys.modules if name.split(".")[0] in ("keras", "keras_vitx")]
    sys.modules.update(dict.fromkeys(["keras", "keras_vitx", *loaded]))
    run = {"saved_model": saved_model, "onnx": onnx, "torch": torch}[format](path)
    with np.load(inputs) as batches:
        rows = {batch: run(images) for batch, images in batches.items()}
    arrays = {f"{batch}.{name}": each for batch, row in rows.items() for name, each in row.items()}
    np.savez(outputs, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
