"""Train tiny models on given numbers of devices; printed as JSON, for test_devices.py.

    python on_devices.py DIRECTORY FAMILY DEVICES [DEVICES ...]

DEVICES are a count, or COUNT-sharded for sharded weights. The chief prints, as its last line,
{devices: {"fitted": curve of `kv.fit`, "random": that of a plain training with random numbers}}.
"""

import contextlib
import json
import os
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
# The devices don't divide the last batches of validation and test images.
SOURCE = tuple(
    (
        np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), "uint8"),
        np.arange(count) % 4,
    )
    for seed, count in enumerate((32, 13, 11))
)


def model_of(family):
    keras.utils.set_random_seed(kv.training.devices.in_use().process)
    return FAMILIES[family]()


def fitted(family, output):
    """Return the losses of a few steps of `kv.fit`, and what evaluation counts."""
    model = model_of(family)
    changes = {"epochs": 2, "batch_size": 16, "warmup_epochs": 0, "learning_rate": 5e-3}
    changes["epsilon"] = 0.1  # Else an update does not depend on the scale of the gradients.
    history = kv.fit(model, SOURCE, **changes, output=output)
    values = [v.value for v in model.variables] if BACKEND == "jax" else []
    norms = [np.linalg.norm(weight) for weight in model.get_weights() if weight.dtype.kind == "f"]
    return {
        "loss": history.history["loss"],
        "val_loss": history.history["val_loss"],
        "test_loss": [history.test["loss"]],
        "weights": float(np.linalg.norm(norms)),
        "sharded": sum(not value.sharding.is_fully_replicated for value in values),
        "images": kv.evaluate(model, SOURCE, "test", batch_size=4)["images"],
    }


def plain():
    """Return the losses of a plain training, and what differs between replicas."""
    model, seeds = model_of("Random"), []
    model.compile("sgd", "sparse_categorical_crossentropy")
    erasing = kv.data.Augmentation(erasing=0.8)
    batches = kv.data.pipelines(SOURCE, model, 16, augmentation=erasing, pixels=True).train
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seeds.append(distinct(model, "seed"))
    )
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        kv.fit(model, batches, epochs=1, warmup_epochs=0, callbacks=[stop])
    is_changed = "apply" in vars(model.optimizer)
    history = kv.fit(model, batches, epochs=2, warmup_epochs=0, callbacks=[count]).history
    found = {"loss": history["loss"], "seed": seeds[-1], "moving_mean": distinct(model, "mean")}
    return found | {"optimizer_is_changed": is_changed}


def distinct(model, name):
    """Count the distinct values of a variable over all replicas."""
    if BACKEND == "jax":
        return 1
    value = next(v for v in model.non_trainable_variables if name in v.name).value
    if BACKEND == "tensorflow":
        found = model.distribute_strategy.experimental_local_results(value)
    else:
        from torch import distributed

        found = [value.new_zeros(value.shape) for _ in range(distributed.get_world_size())]
        distributed.all_gather(found, value.detach())
    return len({float(keras.ops.convert_to_numpy(one)[0]) for one in found})


def main(directory, family, *numbers):
    found = {}
    for number in numbers:
        count, _, sharded = number.partition("-")
        kv.training.use_devices(int(count), shard_weights=bool(sharded))
        found[number] = {"fitted": fitted(family, f"{directory}/{number}")}
        # Replicas draw numbers of their own; those of JAX are compared with one device's.
        if not sharded and (BACKEND == "jax" or int(count) > 1):
            found[number]["random"] = plain()
    if kv.training.is_chief():
        print(json.dumps(found))


if __name__ == "__main__":
    kv.training.devices.MIN_SHARDED = 256  # The models are tiny.
    if BACKEND == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        configurations = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, configurations)
    main(*sys.argv[1:])
    sys.stdout.flush()
    if BACKEND == "torch":
        os._exit(0)  # Native code of gloo's threads aborted once in twelve exits.
