"""Run under TensorFlow as `python -m keras_vitx.export.from_file MODEL.keras CUSTOM FOLDER`.

CUSTOM is the result of `find_custom`, as JSON.
"""

import json
import sys

import keras

from keras_vitx.export.custom import explain, load_custom
from keras_vitx.export.saved_model import write


def main(file: str, custom: str, folder: str) -> None:
    """Export the model in `file` to a SavedModel in `folder`."""
    try:
        objects = load_custom(json.loads(custom))
        # Not compiled, since an export does not need the compile config.
        write(keras.saving.load_model(file, objects, compile=False), folder)
    except Exception as error:
        explain(error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
