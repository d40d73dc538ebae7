"""Run as `python serve.py FOLDER INPUTS.npz OUTPUTS.npz`: what a SavedModel gives.

Where this runs neither Keras nor keras_vitx can be imported, so that a
SavedModel which needs either fails.
"""

import sys

import numpy as np


def main(folder: str, inputs: str, outputs: str) -> None:
    """Write the outputs for each batch of `inputs`, as `<batch>.<output>`, in float32."""
    sys.modules.update({"keras": None, "keras_vitx": None})
    import tensorflow as tf

    served = tf.saved_model.load(folder)
    results = {}
    for name, images in np.load(inputs).items():
        for index, output in enumerate(tf.nest.flatten(served.serve(images))):
            # numpy's files can't hold bfloat16.
            results[f"{name}.{index}"] = tf.cast(output, "float32").numpy()
    np.savez(outputs, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
