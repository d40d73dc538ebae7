"""The devices of a run, on one or several machines.

JAX (`keras.distribution`) and TensorFlow (`MirroredStrategy`) have one process per machine, PyTorch
(`torch.distributed`) one per device. `batch_size` always counts the images on all devices.
"""

import atexit
import contextlib
import functools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np

from keras_vitx.checks import check

Count = int | Literal["all"]

# Minimum size of a sharded variable; a smaller one is not worth a collective.
MIN_SHARDED = 4096


@dataclass(frozen=True)
class Devices:
    """The devices in use: `count` in all processes, with `replicas` copies of the model.

    Each of the `processes` reads its shard of every batch. Process 0, the chief, writes the files.
    """

    count: int = 1
    replicas: int = 1
    processes: int = 1
    process: int = 0


def use_devices(devices: Count, shard_weights: bool = False) -> Devices:
    """Use several devices from now on; call it before creating the model.

    ```python
    kv.training.use_devices(8)
    model = kv.CaiT_S24(classes=10)
    kv.fit(model, "photos", "finetune", batch_size=256)  # 32 images per device
    ```

    Args:
        devices: Number of devices in all processes; `"all"` for all available ones; 1 to return to
            one device.
        shard_weights: Whether each weight and its optimizer states are split over the devices,
            which gather the weights of a block to compute it (JAX only).

    Raises:
        ValueError: if there are not that many devices, or PyTorch was started as a single process.
    """
    backend = keras.backend.backend()
    is_count = isinstance(devices, (int, np.integer)) and devices >= 1
    check(devices == "all" or is_count, "`devices` must be 'all' or at least 1.", devices)
    rule = "`shard_weights` must be False, except under JAX."
    check(backend == "jax" or not shard_weights, rule, shard_weights)
    if backend == "jax":
        _use_jax(devices, shard_weights)
    elif backend == "tensorflow":
        _use_tensorflow(devices)
    else:
        _use_torch(devices)
    return in_use()


def in_use() -> Devices:
    """Return the devices in use."""
    backend = keras.backend.backend()
    if backend == "jax" and (engine := keras.distribution.distribution()) is not None:
        import jax

        count, processes = engine.device_mesh.devices.size, engine.num_processes
        return Devices(count, engine.num_model_replicas, processes, jax.process_index())
    if backend == "tensorflow":
        import tensorflow as tf

        count = tf.distribute.get_strategy().num_replicas_in_sync
        return Devices(count, count)
    if backend == "torch":
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            count, rank = distributed.get_world_size(), distributed.get_rank()
            return Devices(count, count, count, rank)
    return Devices()


def is_chief() -> bool:
    """Return whether this process writes the files of the run."""
    return in_use().process == 0


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Return a context for saving in one process: JAX creates variables in all of them at once."""
    current = keras.distribution.distribution()
    if in_use().processes > 1:
        keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(current)


def copies_of(variable: keras.Variable) -> list[Any]:
    """Return the copies of a variable in this process: one per replica under TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return [variable]
    import tensorflow as tf

    return list(tf.distribute.get_strategy().experimental_local_results(variable.value))


def check_devices(model: keras.Model) -> None:
    """Raise a ValueError unless the model was created for the devices in use.

    Under PyTorch, this connects the processes of `torchrun` if they aren't connected yet.
    """
    backend = keras.backend.backend()
    if backend == "torch" and in_use().count == 1 and _torchrun():
        use_devices("all")
    count = model_devices = in_use().count
    if backend == "jax" and model.variables:
        model_devices = len(model.variables[0].value.sharding.device_set)
    elif backend == "tensorflow":
        model_devices = model.distribute_strategy.num_replicas_in_sync
    rule = f"`model` must be created after `use_devices`, for the {count} devices in use."
    check(model_devices == count, rule, model_devices)


def check_batch(images: int, devices: Devices) -> None:
    """Raise a ValueError unless a batch can be split evenly between the replicas."""
    rule = f"`batch_size` must be divisible by the {devices.replicas} devices that share a batch."
    check(images % devices.replicas == 0, rule, images)


def _use_jax(devices, shard_weights):
    import jax

    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ and not jax.distributed.is_initialized():
        keras.distribution.initialize()
    available = keras.distribution.list_devices()
    count = _number(devices, available)
    if count == 1:
        keras.distribution.set_distribution(None)
        return
    engine = ShardedWeights if shard_weights else keras.distribution.DataParallel
    # `shard_of` splits batches between processes, whatever their source.
    distribution = engine(devices=available[:count], auto_shard_dataset=False)
    rule = f"`devices` must be all {len(available)} with several processes."
    check(distribution.num_processes == 1 or count == len(available), rule, devices)
    keras.distribution.set_distribution(distribution)


def _use_tensorflow(devices):
    import tensorflow as tf

    rule = "`TF_CONFIG` must be unset: on several machines, use JAX or PyTorch."
    check("TF_CONFIG" not in os.environ, rule, os.environ.get("TF_CONFIG"))
    tf.distribute.experimental_set_strategy(None)
    logical = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    available = [device.name.removeprefix("/device:") for device in logical]
    if (count := _number(devices, available)) > 1:
        tf.distribute.experimental_set_strategy(_strategy(tuple(available[:count])))


@functools.cache
def _strategy(devices):
    """Return the only strategy of these devices, as a second one would mix up the sums."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(list(devices))


def _use_torch(devices):
    import torch
    from torch import distributed

    if not distributed.is_initialized() and not _torchrun():
        rule = "`devices` must be 1 or 'all' without `torchrun --nproc-per-node DEVICES SCRIPT`."
        check(devices in (1, "all"), rule, devices)
        return
    if not distributed.is_initialized():
        gpus, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
        if gpus:  # Keras puts its tensors on the current GPU.
            torch.cuda.set_device(local)
        distributed.init_process_group("nccl" if gpus else "gloo")
        atexit.register(distributed.destroy_process_group)
    count = distributed.get_world_size()
    check(devices in ("all", count), f"`devices` must be {count}, one per process.", devices)


def _number(devices: Count, available: Sequence[str]) -> int:
    """Return the number of devices to use; a ValueError if there are fewer."""
    count = len(available) if devices == "all" else int(devices)
    rule = f"`devices` must be at most the {len(available)} of {keras.backend.backend()}."
    check(count <= len(available), rule, devices)
    return count


def _torchrun():
    """Return whether this is one of several processes of `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ


class ShardedWeights(keras.distribution.DataParallel):
    """`DataParallel` that splits each weight and its optimizer states over the devices (FSDP).

    This is the third stage of ZeRO (Rajbhandari et al., 2020): weights are gathered for each block,
    and again in the backward pass, while activations stay where their images are.
    """

    def get_variable_layout(self, variable):
        """Split the largest axis that is divisible by the devices; copy small variables."""
        count = self.device_mesh.devices.size
        axes: list[str | None] = [None] * len(variable.shape)
        fits = [i for i, size in enumerate(variable.shape) if size % count == 0]
        if fits and math.prod(variable.shape) >= MIN_SHARDED:
            axes[max(fits, key=lambda i: variable.shape[i])] = self.batch_dim_name
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def gather_weight(self, weight: Any) -> Any:
        """Return a weight that is complete on every device."""
        layout = keras.distribution.TensorLayout([None] * len(weight.shape), self.device_mesh)
        return keras.distribution.distribute_tensor(weight, layout)

    def by_image(self, x: Any) -> Any:
        """Return activations `(batch, ...)`, each on the device of its image."""
        return keras.distribution.distribute_tensor(x, self.get_data_layout(x.shape))
