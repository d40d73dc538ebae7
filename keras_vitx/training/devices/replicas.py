"""What training and evaluation need on several devices, beyond what the engines do.

- `share_of`: the images of a batch that this process computes (PyTorch; JAX on several
  machines).
- `Replicate`: DistributedDataParallel under PyTorch; gradients summed before they are clipped
  under TensorFlow; and on both, statistics of the whole batch in BatchNormalization, metrics
  over the whole batch, and random numbers that differ between replicas.

Under JAX, the compiled step computes the same function of the whole batch on any number of
devices, so nothing is left to do.
"""

import functools
from typing import Any

import keras
import numpy as np

from keras_vitx.data.batches import TrainingBatches
from keras_vitx.data.worker import share_of_batch
from keras_vitx.keras_internals import (
    moments_replaced_by,
    restore_moments,
    sublayers,
    without_reduction,
)
from keras_vitx.training.devices import Devices, check_batch, in_use
from keras_vitx.training.targets.wrapped import Wrapped

# Between the seeds of two replicas. Not small: a seed and a counter are added up.
APART = 0x5851F42D
SEED_STATE = "seed_generator_state"


def share_of(batches: Any, pad: bool = False) -> Any:
    """Return the batches of this process, of which each is a share of a whole batch.

    Args:
        batches: Whole batches, the same in every process: what `fit` of Keras takes.
        pad: Whether a batch that the devices don't divide is filled with copies of its first
            image of weight 0, for evaluation.

    Returns:
        A `keras.utils.PyDataset`; or `batches`, where no process needs a share.
    """
    here = in_use()
    # Mirrored strategies split batches on their own, of any size.
    if here.replicas == 1 or batches is None or keras.backend.backend() == "tensorflow":
        return batches
    if isinstance(batches, Wrapped) and batches.by_image:
        # A teacher is asked about the images of this process only.
        return batches.around(share_of(batches.batches, pad))
    return Share(batches, here, pad)


class Share(Wrapped):
    """The rows of each batch that one process computes; see `share_of`."""

    def __init__(self, batches: Any, here: Devices, pad: bool):
        super().__init__(batches)
        self.here, self.pad = here, pad

    def __getitem__(self, index: int) -> tuple:
        here, batches = self.here, self.batches
        # Under JAX, whose random numbers are those of the batch, its images keep their order.
        by_pairs = keras.backend.backend() == "torch"
        if by_pairs and isinstance(batches, TrainingBatches):
            check_batch(batches.batch_size, here)
            if batches.batch_size // here.shares % 2 == 0:  # Only these images are made.
                return batches.get(index, here.share, here.shares)
        batch = self.inside(index)
        images = len(keras.tree.flatten(batch[0])[0])
        missing = -images % here.replicas
        if self.pad and missing:
            batch = _padded(batch, images, missing)
            images += missing
        check_batch(images, here)
        size = images // here.shares
        rows = (
            share_of_batch(images, here.share, here.shares)
            if by_pairs
            else slice(here.share * size, (here.share + 1) * size)
        )
        return keras.tree.map_structure(lambda array: array[rows], batch)


def _padded(batch, images, missing):
    """Repeat the first image of a batch, with weight 0."""
    batch = batch if len(batch) > 2 else (*batch, np.ones(images, "float32"))
    *values, weights = batch
    repeated = keras.tree.map_structure(
        lambda array: np.concatenate([array, array[:1].repeat(missing, 0)]), tuple(values)
    )
    return *repeated, np.pad(weights, (0, missing))


class Replicate(keras.callbacks.Callback):
    """Make `fit` and `evaluate` of Keras compute the same on several devices as on one.

    Part of `kv.fit` and `kv.evaluate`. Without them:

    ```python
    kv.training.use_devices("all")
    model = kv.CaiT_XXS24(classes=10)
    model.compile("adamw", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(kv.training.share_of(batches), callbacks=[kv.training.Replicate()])
    ```

    Place it after callbacks that restore a state. The metrics must be sums or means over
    images, as Keras's are.
    """

    def __init__(self):
        super().__init__()
        self.engine: Any = None
        self.begun = False
        self.epoch = 0

    def on_train_begin(self, logs=None):
        self.engine, self.begun = _engine(self.model), False
        if self.engine is not None:
            self.engine.begin_training()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.engine is not None:
            if not self.begun:
                self.engine.spread_seeds()
                self.begun = True
            self.engine.begin_step(self.epoch, batch)

    def on_train_end(self, logs=None):
        if self.engine is not None:
            self.engine.end_training()
            self.engine = None

    def on_test_begin(self, logs=None):
        if (engine := _engine(self.model)) is not None:
            engine.begin_test()

    def on_test_end(self, logs=None):
        if (engine := _engine(self.model)) is not None:
            engine.end_test()


def _engine(model):
    here = in_use()
    if here.replicas == 1:
        return None
    engine = {"torch": _Torch, "tensorflow": _TensorFlow}.get(keras.backend.backend())
    return engine and engine(model, here)


class _Engine:
    """What a backend does at the begin and the end of training and evaluation."""

    def __init__(self, model: keras.Model, here: Devices):
        self.model, self.here = model, here

    def begin_training(self):
        for norm in self.norms:
            moments_replaced_by(norm, functools.partial(self.moments, norm))

    def end_training(self):
        for norm in self.norms:
            restore_moments(norm)

    def spread_seeds(self):
        """Let each replica draw its own random numbers; those of the chief don't change."""

    def begin_step(self, epoch: int, step: int):
        """Begin a step of an epoch."""

    def begin_test(self):
        """Begin an evaluation."""

    def end_test(self):
        """End an evaluation."""

    @property
    def norms(self):
        """The BatchNormalizations of the model."""
        layers = sublayers(self.model)
        return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]

    @property
    def seeds(self):
        """The states of the model's random number generators."""
        return [v for v in self.model.non_trainable_variables if v.name == SEED_STATE]

    def moments(self, norm, inputs, mask):
        """Return the mean and the variance of the whole batch, in place of this replica's."""
        raise NotImplementedError


def _apart(state, replica):
    """Return the state of a generator of the chief as that of another replica."""
    seed, counter = (int(number) for number in state)
    return [(seed + replica * APART) % 2**31, counter]


def _axes(norm, inputs):
    """Return the axes of the statistics of a BatchNormalization."""
    count = len(inputs.shape)
    return [axis for axis in range(count) if axis != norm.axis % count]


class _Torch(_Engine):
    """A process per device: DistributedDataParallel averages their gradients.

    Keras's own `train_step` runs, with a view of the model whose `__call__` is that of
    DistributedDataParallel.
    """

    def begin_training(self):
        from torch.nn.parallel import DistributedDataParallel

        super().begin_training()
        # It copies all variables from the chief, too. A static graph may have unused variables.
        self.parallel = DistributedDataParallel(self.model, static_graph=True)
        calls = {"__call__": lambda _, *args, **kwargs: self.parallel(*args, **kwargs)}
        view = object.__new__(type("Parallel", (type(self.model),), calls))
        object.__setattr__(view, "__dict__", vars(self.model))
        self.model.train_function = self._over_processes(view.train_step)

    def spread_seeds(self):
        import torch

        self.seed = torch.initial_seed()
        for seed in self.seeds:
            seed.assign(_apart(keras.ops.convert_to_numpy(seed.value), self.here.process))

    def begin_step(self, epoch, step):
        import torch

        # Keras's dropout without a seed draws from PyTorch's own generator. Only the chief's
        # is saved, so those of others are functions of the step.
        if self.here.process:
            numbers = np.random.SeedSequence((self.seed, epoch, step, self.here.process))
            torch.manual_seed(int(numbers.generate_state(1)[0]))

    def end_training(self):
        super().end_training()
        self.model.train_function = self.parallel = None

    def begin_test(self):
        import torch

        self.model.test_function = self._over_processes(torch.no_grad()(self.model.test_step))

    def end_test(self):
        self.model.test_function = None

    def _over_processes(self, step):
        """Return a function of Keras's steps whose metrics count the images of all processes."""
        import torch
        from torch import distributed

        metrics = self.model.metrics
        variables = [variable for metric in metrics for variable in metric.variables]

        def state():
            return torch.cat([variable.value.double().flatten() for variable in variables])

        def one_step(data):
            with torch.no_grad():
                before = state()
            step(data[0])
            with torch.no_grad():
                added = state() - before
                distributed.all_reduce(added)
                values = torch.split(before + added, [v.value.numel() for v in variables])
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value.reshape(variable.shape))
            return self.model.get_metrics_result()

        return one_step

    def moments(self, norm, inputs, mask):
        import torch

        # From the statistics per process, because a difference of sums of squares is inexact.
        variance, mean = torch.var_mean(inputs, _axes(norm, inputs), correction=0)
        own = torch.stack([mean, variance])
        none = torch.zeros_like(own)
        rows = [own if i == self.here.process else none for i in range(self.here.count)]
        means, variances = _sum_over_processes()(torch.stack(rows)).unbind(1)
        return means.mean(0), variances.mean(0) + means.var(0, correction=0)


@functools.cache
def _sum_over_processes():
    """Return a differentiable sum over processes; PyTorch has a deprecated one."""
    import torch
    from torch import distributed

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(context, own):
            total = own.clone()
            distributed.all_reduce(total)
            return total

        @staticmethod
        def backward(context, gradient):
            return Sum.forward(context, gradient)

    return Sum.apply


class _TensorFlow(_Engine):
    """A mirrored strategy: Keras sums the gradients of the replicas, but clips them before."""

    def begin_training(self):
        import tensorflow as tf

        super().begin_training()
        if self.here.processes > 1:
            self.model.train_function = self._over_workers(self.model.train_step)
        optimizer = self.model.optimizer
        if "apply" in vars(optimizer):
            return
        apply = optimizer.apply

        def apply_sums(gradients, trainable_variables=None):
            given = [gradient for gradient in gradients if gradient is not None]
            sums = iter(tf.distribute.get_replica_context().all_reduce("SUM", given))
            gradients = [None if gradient is None else next(sums) for gradient in gradients]
            return apply(gradients, trainable_variables)

        optimizer.apply = apply_sums
        # In mixed_float16, Keras wraps the optimizer.
        without_reduction(getattr(optimizer, "inner_optimizer", optimizer))

    def end_training(self):
        super().end_training()
        if self.here.processes > 1:
            self.model.train_function = None

    def begin_test(self):
        if self.here.processes > 1:
            self.model.test_function = self._over_workers(self.model.test_step)

    def end_test(self):
        if self.here.processes > 1:
            self.model.test_function = None

    def _over_workers(self, step):
        """Return a function of Keras's steps; Keras's own can't average the logs of workers."""
        import tensorflow as tf

        strategy = self.model.distribute_strategy

        @tf.function
        def one_step(batches):
            logs = strategy.run(step, args=(next(batches),))
            return {name: strategy.reduce("MEAN", log, axis=None) for name, log in logs.items()}

        return one_step

    def spread_seeds(self):
        strategy = self.model.distribute_strategy
        for seed in self.seeds:
            copies = strategy.experimental_local_results(seed.value)
            first = self.here.process * len(copies)
            for index, copy in enumerate(copies):
                copy.assign(_apart(copies[0].numpy(), first + index))

    def moments(self, norm, inputs, mask):
        import tensorflow as tf

        # Keras's synchronized moments are E(x²) - E(x)², of which rounding leaves little where
        # the variance is small, as that of attention maps is.
        mean_of_all = functools.partial(tf.distribute.get_replica_context().all_reduce, "MEAN")
        axes = _axes(norm, inputs)
        mean = mean_of_all(tf.reduce_mean(inputs, axes, keepdims=True))
        variance = mean_of_all(tf.reduce_mean(tf.square(inputs - mean), axes))
        return tf.squeeze(mean, axes), variance
