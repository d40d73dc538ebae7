"""Train tiny models on given numbers of devices; printed as JSON, for test_devices.py.

    python on_devices.py FOLDER FAMILIES DEVICES [DEVICES ...]

FAMILIES are separated by commas. DEVICES are a count, or COPIESxPARTS for model parallelism.
The chief prints {devices: {family: {"loss": [...], ...}}} as its last line.
"""

import json
import sys

import keras
import numpy as np

import keras_vitx as kv

BACKEND = keras.backend.backend()
SIZE = {"dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4}
TASK = {"input_shape": (16, 16, 3), "classes": 4}
FAMILIES = {
    "ViT": lambda: kv.ViT(**{**SIZE, "depth": 1}, **TASK, distillation_token=True),
    "DeepViT": lambda: kv.DeepViT(**SIZE, **TASK),
    "Random": lambda: kv.DeepViT(**{**SIZE, "depth": 1}, **TASK, drop_path=0.2, dropout=0.2),
}
SOURCE = tuple(
    (
        np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), "uint8"),
        np.arange(count) % 4,
    )
    # The devices don't divide the last batches of validation and test images.
    for seed, count in enumerate((32, 13, 11))
)


def weights_of(model):
    """The norm of all weights."""
    arrays = [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]
    return float(np.sqrt(sum(np.square(array, dtype="float64").sum() for array in arrays)))


def split_of(model):
    """The number of variables that are split between devices (JAX)."""
    values = [v.value for v in model.variables] if BACKEND == "jax" else []
    return sum(not value.sharding.is_fully_replicated for value in values)


def curve(family, output):
    """Return the losses of a few steps of `kv.fit`, and what evaluation counts."""
    keras.utils.set_random_seed(0)
    model = FAMILIES[family]()
    history = kv.fit(
        model,
        SOURCE,
        epochs=2,
        batch_size=16,
        warmup_epochs=0,
        learning_rate=5e-4,
        output=output,
        verbose=0,
    )
    return {
        "loss": history.history["loss"],
        "val_loss": history.history["val_loss"],
        "test_loss": [history.test["loss"]],
        "weights": weights_of(model),
        "split": split_of(model),
        "images": kv.evaluate(model, SOURCE, "test")["images"],
    }


def plain(family):
    """Return the losses of the same with plain `model.fit`, and what differs between replicas."""
    keras.utils.set_random_seed(0)
    model = FAMILIES[family]()
    model.compile("sgd", "sparse_categorical_crossentropy")
    batches = kv.data.pipelines(SOURCE, model, 16, augmentation=None).train
    states = Distinct()
    history = model.fit(
        kv.training.share_of(batches),
        epochs=2,
        verbose=0,
        callbacks=[kv.training.Replicate(), states],
    )
    return {"loss": history.history["loss"], **states.counts}


class Distinct(keras.callbacks.Callback):
    """Count the distinct seeds and moving means of the first of each, over all replicas."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def on_train_batch_begin(self, batch, logs=None):
        self.count("seed")

    def on_train_end(self, logs=None):
        self.count("moving_mean")

    def count(self, name):
        value = next(v for v in self.model.non_trainable_variables if name in v.name).value
        found = [value]
        if BACKEND == "torch":
            from torch import distributed

            if distributed.is_initialized():
                found = [value.new_zeros(value.shape) for _ in range(distributed.get_world_size())]
                distributed.all_gather(found, value.detach())
        elif BACKEND == "tensorflow":
            found = self.model.distribute_strategy.experimental_local_results(value)
        else:
            return
        self.counts[name] = len({float(keras.ops.convert_to_numpy(one)[0]) for one in found})


def main(folder, families, *numbers):
    found = {}
    for number in numbers:
        copies, _, parts = number.partition("x")
        kv.training.use_devices(int(copies) * int(parts or 1), int(parts or 1))
        found[number] = {}
        for family in families.split(","):
            output = f"{folder}/{family}-{number}"
            if family != "Random":
                found[number][family] = curve(family, output)
            elif BACKEND == "jax" or number != "1":
                found[number][family] = plain(family)
    if kv.training.is_chief():
        print(json.dumps(found))


if __name__ == "__main__":
    if BACKEND == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    main(*sys.argv[1:])
