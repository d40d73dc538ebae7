"""Train tiny models on given numbers of devices; printed as JSON, for test_devices.py.

    python on_devices.py FAMILIES DEVICES [DEVICES ...]

FAMILIES are separated by commas. DEVICES are a count, or COPIESxPARTS for model parallelism.
The chief prints {family: {devices: {"loss": [...], ...}}} as its last line.
"""

import json
import os
import sys

import keras
import numpy as np

import keras_vitx as kv

SIZE = {"dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8}
TASK = {"input_shape": (16, 16, 3), "classes": 4}
FAMILIES = {
    "ViT": lambda: kv.ViT(**SIZE, **TASK, distillation_token=True),
    "DeepViT": lambda: kv.DeepViT(**SIZE, **TASK),
    "RefinedViT": lambda: kv.RefinedViT(**SIZE, **TASK, dense_head=True),
    "CaiT": lambda: kv.CaiT(**SIZE, **TASK, drop_path=0.2, dropout=0.2),
}
SOURCE = tuple(
    (
        np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), "uint8"),
        np.arange(count) % 4,
    )
    # The devices don't divide the last batches of validation and test images.
    for seed, count in enumerate((32, 13, 11))
)


def curve(family):
    """Return the losses and metrics of a few steps, and the weights, summed up."""
    keras.utils.set_random_seed(0)
    model = FAMILIES[family]()
    history = kv.fit(
        model,
        SOURCE,
        epochs=2,
        batch_size=16,
        warmup_epochs=0,
        learning_rate=1e-3,
        verbose=0,
    )
    weights = [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in model.variables]
    floats = [array for array in weights if array.dtype.kind == "f"]
    sums = {"weights": [float(np.square(array).sum()) for array in floats]}
    return {**history.history, "test": list(history.test.values()), **sums}


def main(families, *numbers):
    found = {family: {} for family in families.split(",")}
    for number in numbers:
        copies, _, parts = number.partition("x")
        kv.training.use_devices(int(copies) * int(parts or 1), int(parts or 1))
        for family in found:
            found[family][number] = curve(family)
    if kv.training.is_chief():
        print(json.dumps(found))


if __name__ == "__main__":
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    main(*sys.argv[1:])
