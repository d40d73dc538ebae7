"""Run as `python serve.py FOLDER INPUTS.npz OUTPUTS.npz` to compute the outputs of a SavedModel.

Neither Keras nor keras_vitx can be imported in this process, so a SavedModel that
depends on one of them fails.
"""

import sys

import numpy as np


def main(folder: str, inputs: str, outputs: str) -> None:
    """Write the outputs for each batch of `inputs`, as `<batch>.<output>`, in float32."""
    sys.modules.update({"keras": None, "keras_vitx": None})
    import tensorflow as tf

    served = tf.saved_model.load(folder)
    (spec,) = served.signatures["serving_default"].structured_input_signature[1].values()
    results = {}
    for name, images in np.load(inputs).items():
        served_outputs = served.serve(tf.cast(images, spec.dtype))
        for index, output in enumerate(tf.nest.flatten(served_outputs)):
            # NumPy has no bfloat16.
            results[f"{name}.{index}"] = tf.cast(output, "float32").numpy()
    np.savez(outputs, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
