"""Run as `python -m keras_vitx.export.from_file MODEL.keras FOLDER` under TensorFlow."""

import sys

import keras

from keras_vitx.export.saved_model import write

if __name__ == "__main__":
    # How the model was trained is of no use here, and may need code we lack.
    write(keras.saving.load_model(sys.argv[1], compile=False), sys.argv[2])
