"""Run under TensorFlow as `python -m keras_vitx.export.from_file MODEL.keras CUSTOM FOLDER`.

CUSTOM is what `find_custom` returned, as JSON.
"""

import json
import sys

import keras

from keras_vitx.export.custom import explain, load_custom
from keras_vitx.export.saved_model import write


def main(file: str, custom: str, folder: str) -> None:
    """Write the SavedModel of the model in a file."""
    try:
        objects = load_custom(json.loads(custom))
        # Not compiled: an export needs nothing of how the model was trained.
        write(keras.saving.load_model(file, objects, compile=False), folder)
    except Exception as error:
        explain(error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
