"""Training and evaluation on several devices, beyond what the backends do.

Under JAX, the compiled step computes the same function of the whole batch on any number of devices,
so only `shard_of` is needed, on several machines. PyTorch also needs gradients and
metrics over all processes; PyTorch and TensorFlow need different random numbers in each replica.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vitx.data.augmentation.mixing import shard_of_batch
from keras_vitx.data.loading import ImageBatches
from keras_vitx.keras_internals import sublayers
from keras_vitx.training.batches import Batches, UserBatches
from keras_vitx.training.devices import Devices, check_batch, copies_of, in_use
from keras_vitx.training.optimizer import averages_of

# Between the seeds of two replicas. Large, because seed and counter are added.
SEED_DISTANCE = 0x5851F42D
SEED_STATE = "seed_generator_state"
# What a batch is copied as; Keras converts other types.
COPIED = ("uint8", "int32", "int64", "float32", "bool")


def shard_of(batches: Batches, pad: bool = False) -> Batches:
    """Return the batches of this process, each a shard of a whole batch.

    With `pad`, for evaluation, a batch that the devices don't divide is padded with copies of its
    first image of weight 0.
    """
    devices, backend = in_use(), keras.backend.backend()
    # Mirrored strategies split batches of any size themselves.
    if devices.replicas == 1 or backend == "tensorflow":
        return batches
    is_training = isinstance(batches, ImageBatches) and batches.loader.seed is not None
    pairs = 2 * devices.processes
    if backend == "torch" and is_training and batches.loader.batch_size % pairs == 0:
        # Only these images are loaded.
        return batches.replace(shard=(devices.process, devices.processes))
    return batches.map(lambda index, batch: rows_of(batch, devices, pad))


def rows_of(batch: tuple, devices: Devices, pad: bool = False) -> tuple:
    """Return the rows of a batch that one process computes; see `shard_of`."""
    images = len(keras.tree.flatten(batch[0])[0])
    missing = -images % devices.replicas
    if pad and missing:
        *values, weights = batch if len(batch) > 2 else (*batch, np.ones(images, "float32"))
        rows = [*range(images), *[0] * missing]
        values = keras.tree.map_structure(lambda array: array[rows], tuple(values))
        batch, images = (*values, np.pad(weights, (0, missing))), images + missing
    check_batch(images, devices)
    size = images // devices.processes
    # Under JAX, images keep their order, as random numbers are those of the whole batch.
    rows: Any = slice(devices.process * size, (devices.process + 1) * size)
    if keras.backend.backend() == "torch":
        rows = shard_of_batch(images, devices.process, devices.processes)
    return keras.tree.map_structure(lambda array: array[rows], batch)


def stream_of(batches: Batches, epochs: range, steps: int) -> Any:
    """Return the training batches of epochs of so many steps, as `model.fit` reads them."""
    batches = copy_to_gpu(batches)
    of_epoch = {"steps": steps} if isinstance(batches, UserBatches) else {}

    def read():
        stream = batches.stream(epochs.start * steps, **of_epoch)
        # Keras looks at the first batch even if no epoch is left.
        yield from itertools.islice(stream, max(len(epochs), 1) * steps)

    return begin(read)


def pass_of(batches: Batches) -> Any:
    """Return batches that are read once, as `model.evaluate` reads them."""
    return begin(functools.partial(iter, copy_to_gpu(batches)))


def begin(read: Callable[[], Iterator[tuple]]) -> Any:
    """Return `read()`, or, for replicas of TensorFlow, a `tf.data.Dataset` that calls it.

    Keras would lose the batch that it reads there before it begins.
    """
    if not _runs("tensorflow"):
        return read()
    import tensorflow as tf

    first = next(read())
    spec = keras.tree.map_structure(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), first)
    return tf.data.Dataset.from_generator(read, output_signature=spec).prefetch(tf.data.AUTOTUNE)


def copy_to_gpu(batches: Batches) -> Batches:
    """Return batches that are copied to the GPU (PyTorch) without the host waiting, as in Keras."""
    if keras.backend.backend() != "torch":
        return batches
    import torch

    if not torch.cuda.is_available():
        return batches
    return batches.map(lambda index, batch: keras.tree.map_structure(copy_array, batch))


def copy_array(value: Any) -> Any:
    """Return a copy of an array on the current GPU."""
    import torch

    if not isinstance(value, np.ndarray) or value.dtype not in COPIED:
        return value
    return torch.from_numpy(value).pin_memory().to("cuda", non_blocking=True)


@contextlib.contextmanager
def mean_gradients(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Let an optimizer, a user's too, take the means of gradients over processes (PyTorch)."""
    with contextlib.ExitStack() as stack:
        if _runs("torch"):
            apply = optimizer.apply
            optimizer.apply = lambda gradients, *rest: apply(_all_reduce(gradients, True), *rest)
            stack.callback(delattr, optimizer, "apply")
        yield


class Replicate(keras.callbacks.Callback):
    """Make Keras's `fit` and `evaluate` compute the same on several devices as on one.

    It must be the first callback, so that others see the metrics of all images, which must be sums
    or means over images, as Keras's are. Under TensorFlow and PyTorch, BatchNormalization uses the
    images of each replica, and its moving statistics are averaged after each epoch.
    """

    def __init__(self):
        super().__init__()
        self.epoch, self.seed = 0, None
        self.async_safe = not _runs("torch")  # Else Keras would wait for each step.

    def on_train_begin(self, logs=None):
        self.seed = None
        if _runs("torch"):
            from torch import distributed

            for variable in self.model.variables:  # Those of the chief.
                distributed.broadcast(variable.value.detach(), 0)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.seed is None:  # Callbacks have restored the states of a training.
            self.seed = make_seeds_differ(self.model)
        process = in_use().process
        if _runs("torch") and process:
            import torch

            # Dropout without a seed uses PyTorch's global generator. Only that of the chief is
            # saved, so those of other processes are functions of the step.
            numbers = np.random.SeedSequence((self.seed, self.epoch, batch, process))
            torch.manual_seed(int(numbers.generate_state(1)[0]))
        self.on_test_batch_begin(batch)

    def on_epoch_end(self, epoch, logs=None):
        average_statistics(self.model)

    def on_test_begin(self, logs=None):
        average_statistics(self.model)

    def on_test_batch_begin(self, batch, logs=None):
        if _runs("torch") and in_use().process:  # The chief has the sums so far.
            for metric in self.model.metrics:
                metric.reset_state()

    def on_test_batch_end(self, batch, logs=None):
        if _runs("torch"):
            variables = [v for metric in self.model.metrics for v in metric.variables]
            _all_reduce([variable.value.detach() for variable in variables])
            results = self.model.get_metrics_result()
            logs.update(keras.tree.map_structure(keras.ops.convert_to_numpy, results))

    on_train_batch_end = on_test_batch_end


def make_seeds_differ(model: keras.Model) -> int:
    """Make the random numbers of each replica different but the chief's; return PyTorch's seed."""
    for seed in model.non_trainable_variables if _runs("torch", "tensorflow") else ():
        if seed.name == SEED_STATE:
            copies = copies_of(seed)
            start, counter = (int(n) for n in keras.ops.convert_to_numpy(copies[0]))
            for index, copy in enumerate(copies, in_use().process):
                copy.assign([(start + index * SEED_DISTANCE) % 2**31, counter])
    if not _runs("torch"):
        return 0
    import torch

    return torch.initial_seed()


def average_statistics(model: keras.Model) -> None:
    """Replace the moving statistics of all replicas by their mean."""
    if not _runs("torch", "tensorflow"):
        return
    norms = [x for x in sublayers(model) if isinstance(x, keras.layers.BatchNormalization)]
    variables = [v for norm in norms for v in (norm.moving_mean, norm.moving_variance)]
    variables += averages_of(model)
    if _runs("torch"):
        _all_reduce([variable.value.detach() for variable in variables], mean=True)
        return
    for variable in variables:
        copies = copies_of(variable)
        mean = np.mean([copy.numpy() for copy in copies], 0)
        for copy in copies:
            copy.assign(mean)


def _runs(*backends):
    """Return whether the backend is one of these and has several replicas."""
    return keras.backend.backend() in backends and in_use().replicas > 1


def _all_reduce(tensors, mean=False):
    """Return tensors, replaced by their sums or means over all processes (PyTorch)."""
    import torch
    from torch import distributed

    if tensors:
        total = torch.cat([tensor.flatten() for tensor in tensors])  # In one message.
        distributed.all_reduce(total)
        parts = torch.split(total / in_use().count if mean else total, [t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
    return tensors
