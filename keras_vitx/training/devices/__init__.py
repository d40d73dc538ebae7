"""Several devices and machines: the choice of the devices of a run.

JAX and TensorFlow have one process per machine, PyTorch one per device:

| backend | engine | processes are started by |
|---|---|---|
| JAX | `keras.distribution` | the user, one per machine |
| TensorFlow | `tf.distribute.MirroredStrategy` | one machine only |
| PyTorch | `DistributedDataParallel` | `torchrun`, one per device |

Everywhere, `batch_size` counts the images of all devices, so that a recipe means the same on any
number of them.
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

from keras_vitx.training.devices.layout import ShardedWeights, layout_for

Count = int | Literal["all"]


@dataclass(frozen=True)
class Devices:
    """The devices in use: `count` in all processes, and `replicas` copies of the model.

    Each of the `processes` reads a part of every batch. Process 0 is the chief, which writes the
    files.
    """

    count: int = 1
    replicas: int = 1
    processes: int = 1
    process: int = 0


def use_devices(devices: Count, model_parallel: int = 1, shard_weights: bool = False) -> Devices:
    """Use several devices from now on; call it before the model is made.

    ```python
    kv.training.use_devices(8)
    model = kv.CaiT_S24(classes=10)
    kv.fit(model, "photos", "finetune", batch_size=256)  # 32 images per device
    ```

    Args:
        devices: Number of devices, in all processes; `"all"` for all there are; 1 to return to one
            device.
        model_parallel: Number of devices between which each copy of the model is split (JAX only):
            the projections to queries, keys and values and the first Dense of each MLP by columns,
            the projections after them by rows. It divides `devices`.
        shard_weights: Whether every device keeps a part of each weight and its optimizer states,
            and gathers the weights of a block when it computes the block (JAX only).

    Raises:
        ValueError: if there are not that many devices, or PyTorch was started as a single process.
    """
    backend = keras.backend.backend()
    if devices != "all" and not (isinstance(devices, (int, np.integer)) and devices >= 1):
        raise ValueError(f"`devices` must be 'all' or at least 1. Received: {devices!r}.")
    if model_parallel != 1 and backend != "jax":
        raise ValueError(
            f"`model_parallel` must be 1 under {backend}: only JAX splits a model between "
            f"devices. Received: {model_parallel}."
        )
    if shard_weights and (backend != "jax" or model_parallel != 1):
        raise ValueError(
            "`shard_weights` must be False unless JAX runs with model_parallel=1. Received: "
            f"shard_weights=True under {backend}, with model_parallel={model_parallel}."
        )
    if backend == "jax":
        _use_jax(devices, model_parallel, shard_weights)
    elif backend == "tensorflow":
        _use_tensorflow(devices)
    else:
        _use_torch(devices)
    return in_use()


def in_use() -> Devices:
    """Return the devices in use, however they were chosen."""
    backend = keras.backend.backend()
    if backend == "jax" and (found := keras.distribution.distribution()) is not None:
        import jax

        count, processes = found.device_mesh.devices.size, found.num_processes
        return Devices(count, found.num_model_replicas, processes, jax.process_index())
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
    """Return a context for saving in one process: JAX makes variables in all processes together."""
    current = keras.distribution.distribution()
    if in_use().processes > 1:
        keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(current)


def all_reduce_max(number: int) -> int:
    """Return the highest of the numbers that the processes give; waits for all of them."""
    if in_use().processes == 1:
        return number
    if keras.backend.backend() == "jax":
        from jax.experimental import multihost_utils

        return int(multihost_utils.process_allgather(np.array(number)).max())
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    found = torch.tensor(number, device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return int(found)


def copies_of(variable: keras.Variable) -> list[Any]:
    """Return the copies of a variable in this process: one per replica under TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return [variable]
    import tensorflow as tf

    return list(tf.distribute.get_strategy().experimental_local_results(variable.value))


def check_devices(devices: Count | None, model: keras.Model) -> Devices:
    """Check the number of devices in use, and that the model fits on them; return them.

    Under PyTorch, processes started by `torchrun` are connected here if they aren't yet.
    """
    backend = keras.backend.backend()
    if backend == "torch" and in_use().count == 1 and _torchrun():
        use_devices("all" if devices is None else devices)
    here = made_for = in_use().count
    if devices not in (None, "all", here):
        torchrun = ", in processes started by torchrun" if backend == "torch" else ""
        raise ValueError(
            f"`devices` must be the number in use, {here}. Received: {devices}. Call "
            f"`keras_vitx.training.use_devices({devices})` before the model is made{torchrun}."
        )
    if backend == "jax" and model.variables:
        made_for = len(model.variables[0].value.sharding.device_set)
    elif backend == "tensorflow":
        made_for = model.distribute_strategy.num_replicas_in_sync
    if made_for != here:
        raise ValueError(
            f"`model` must be made after the devices are chosen: it was made for {made_for}, "
            f"{here} are in use."
        )
    sharded = isinstance(keras.distribution.distribution(), ShardedWeights)
    check_limits(model, here if sharded else 1)
    return in_use()


def check_batch(images: int, here: Devices) -> None:
    """Raise a ValueError unless a batch can be split evenly between the replicas."""
    if images % here.replicas:
        raise ValueError(
            f"`batch_size` must be divisible by the number of devices that share a batch, "
            f"{here.replicas}. Received: a batch of {images} images."
        )


def check_limits(model: keras.Model, shares: int = 1) -> None:
    """Raise a ValueError if training needs arithmetic or memory that a device lacks.

    Weights, gradients and optimizer states are split between `shares` devices.
    """
    name, memory, lacking = device_of(keras.backend.backend())
    precision = model.compute_dtype
    if precision in lacking:
        fit = [one for one in ("mixed_bfloat16", "mixed_float16") if one[6:] not in lacking]
        raise ValueError(
            f"`precision` must be one of {', '.join(map(repr, [*fit, 'float32']))} on {name}, "
            f"which has no {precision}. Received: a model of precision {precision!r}."
        )
    # A trainable weight, its gradient, and the two moments of AdamW.
    needed = 4 * _bytes_of(model.trainable_variables) + _bytes_of(model.non_trainable_variables)
    if memory is not None and needed / shares > memory:
        raise ValueError(
            f"`model` must fit in the {memory / 1e9:.1f} GB of {name}. Received: weights, "
            f"gradients and optimizer states of {needed / shares / 1e9:.1f} GB per device. Under "
            "JAX, `keras_vitx.training.use_devices(..., shard_weights=True)` splits them."
        )


def device_of(backend: str) -> tuple[str, int | None, tuple[str, ...]]:
    """Return the name of the device, its bytes of memory (None: unknown), and lacking dtypes."""
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            return "the CPU", None, ()
        lacks = () if torch.cuda.is_bf16_supported(including_emulation=False) else ("bfloat16",)
        return torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1], lacks
    if backend == "jax":
        import jax

        device = jax.local_devices()[0]
        limits: dict[str, Any] = device.memory_stats() or {}
        lacks = ("float16",) if device.platform == "tpu" else ()
        return device.device_kind, limits.get("bytes_limit"), lacks
    return "the device", None, ()


def _bytes_of(variables):
    sizes = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
    dtype_of = keras.backend.standardize_dtype
    return sum(math.prod(v.shape) * sizes.get(dtype_of(v.dtype), 4) for v in variables)


def _use_jax(devices, model_parallel, shard_weights):
    import jax

    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ and not jax.distributed.is_initialized():
        keras.distribution.initialize()
    found = keras.distribution.list_devices()
    count = _available(devices, found)
    # `share_of` splits batches between processes, whatever their source.
    shards = {"auto_shard_dataset": False}
    if count % model_parallel or not 1 <= model_parallel <= count:
        raise ValueError(
            f"`model_parallel` must divide the number of devices, {count}. "
            f"Received: {model_parallel}."
        )
    if count == 1:
        keras.distribution.set_distribution(None)
        return
    if model_parallel == 1:
        engine = ShardedWeights if shard_weights else keras.distribution.DataParallel
        distribution = engine(devices=found[:count], **shards)
    else:
        shape = (count // model_parallel, model_parallel)
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), found[:count])
        distribution = layout_for(mesh, **shards)
    processes = distribution.num_processes
    if processes > 1 and (count != len(found) or (count // processes) % model_parallel):
        raise ValueError(
            f"With several processes, `devices` must be all {len(found)}, and `model_parallel` "
            f"must divide those of a process. Received: {devices} and {model_parallel}."
        )
    keras.distribution.set_distribution(distribution)


def _use_tensorflow(devices):
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        raise ValueError(
            "`TF_CONFIG` must be unset: under TensorFlow, the devices are those of one machine. "
            "Use JAX or PyTorch on several."
        )
    tf.distribute.experimental_set_strategy(None)
    kinds = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    found = [device.name.removeprefix("/device:") for device in next(filter(None, kinds))]
    if (count := _available(devices, found)) > 1:
        tf.distribute.experimental_set_strategy(_mirrored(tuple(found[:count])))


@functools.cache
def _mirrored(devices):
    """Return one strategy per set of devices: two would mix up each other's sums."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(list(devices))


def _use_torch(devices):
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        if not _torchrun():
            if devices not in (1, "all"):
                raise ValueError(
                    "`devices` above 1 needs one process per device under PyTorch: start the "
                    f"script by `torchrun --nproc-per-node {devices} SCRIPT`. "
                    f"Received: {devices}, in a single process."
                )
            return
        gpus, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
        if gpus:
            if local >= gpus:
                raise ValueError(
                    f"torchrun started process {local + 1} on a machine with {gpus} GPUs. "
                    f"Give `--nproc-per-node {gpus}`."
                )
            # Keras puts its tensors on the current GPU.
            torch.cuda.set_device(local)
        distributed.init_process_group("nccl" if gpus else "gloo")
        atexit.register(distributed.destroy_process_group)
    count = distributed.get_world_size()
    if devices not in ("all", count):
        raise ValueError(
            f"`devices` must be the number of processes, {count}. Received: {devices}."
        )


def _available(devices: Count, found: Sequence[str]) -> int:
    """Return the number of devices to use, or raise if there are fewer."""
    count = len(found) if devices == "all" else int(devices)
    if count > len(found):
        some = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        raise ValueError(
            f"`devices` must be at most {len(found)}, as {keras.backend.backend()} has {some}. "
            f"Received: {devices}."
        )
    return count


def _torchrun():
    """Return whether `torchrun` started several processes, of which this is one."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ
