"""A training with everything that has a state, which test_restart.py kills in a process."""

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx.layers import DropPath, PatchEmbedding, TokenPooling
from keras_vitx.models import Chain
from keras_vitx.training.restart import read_state

EPOCHS, STEPS = 3, 4


def train(output, precision="float32", callbacks=(), seed=0):
    """Train to the end, from weights of `seed` unless the run in `output` continues."""
    keras.utils.set_random_seed(seed)
    random_images = np.random.default_rng(0).integers(0, 255, (STEPS * 8, 16, 16, 3), "uint8")
    layers = [PatchEmbedding(8, 4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    layers += [DropPath(0.2), TokenPooling("avg", 0), keras.layers.Dense(4, name="head")]
    layers += [keras.layers.Activation("softmax", name="prediction")]
    model = Chain(layers, (16, 16, 3), preprocessing=kv.Preprocessing.pixels(), name="trial")
    return kv.fit(
        model, (random_images, np.arange(STEPS * 8) % 4), epochs=EPOCHS, batch_size=8,
        validation_split=0.2, warmup_epochs=1, ema=0.9, mixup=0.5, cutmix=0.5, clip_norm=1.0,
        steps_per_epoch=STEPS, augmentation="random_resized_crop", precision=precision,
        output=output, resume=True, callbacks=callbacks,
    )  # fmt: skip


def results(output):
    """Return all numbers of a finished run, and the names of its whole files."""
    state, record = read_state(output / "restart.safetensors"), (output / "run.json").read_text()
    table = (output / "history.csv").read_text()
    return [
        *keras.tree.flatten(state),
        record,
        table,
        *sorted(each.name for each in output.glob("[!.]*")),
    ]
