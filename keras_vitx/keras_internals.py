"""All private names of Keras that the package uses.

Keras may rename them in any release. `tests/test_keras_internals.py` has one contract
test per name, so that an incompatible Keras release fails there first.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return `layer` and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


def children(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers directly inside `layer`."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def kernel_of(dense: keras.layers.Dense) -> Any:
    """Return `dense.kernel` of a built layer that is not quantized.

    The property asks for every kind of quantization before it returns the variable.
    """
    return dense.kernel if dense.lora_enabled else dense._kernel


def remat_mode(layer: keras.layers.Layer) -> Any:
    """Return the rematerialization mode that `keras.RematScope` set on `layer`, or None."""
    return getattr(layer, "_remat_mode", None)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments given to `model.compile`, as objects; empty if it wasn't called."""
    return dict(model._compile_config.config) if model.compiled else {}


def without_autocast() -> contextlib.AbstractContextManager:
    """Return a context in which variables have their own dtype, also in half precision."""
    from keras.src.backend.common.variables import AutocastScope

    return AutocastScope(None)


def takes_training(layer: keras.layers.Layer) -> bool:
    """Return whether `layer.call` has an argument `training`."""
    return "training" in layer.call_signature_parameters


def takes_attention_mask(layer: keras.layers.Layer) -> bool:
    """Return whether `layer.call` has an argument `attention_mask`."""
    return "attention_mask" in layer.call_signature_parameters


def node_of(tensor: keras.KerasTensor) -> Any:
    """Return the node of the operation call that produced a symbolic tensor.

    Its attributes are `operation`, `arguments` (with `args` and `kwargs`), `input_tensors`
    and `outputs`.
    """
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def moments_replaced_by(norm: keras.layers.BatchNormalization, moments: Callable) -> None:
    """Let `moments(inputs, mask)` compute the mean and the variance in training.

    Not by the argument `synchronized`, which only TensorFlow has, and which a saved model
    would keep.
    """
    norm._moments = moments


def has_replaced_moments(norm: keras.layers.BatchNormalization) -> bool:
    """Return whether `moments_replaced_by` was called for `norm`."""
    return "_moments" in vars(norm)


def restore_moments(norm: keras.layers.BatchNormalization) -> None:
    """Undo `moments_replaced_by`."""
    vars(norm).pop("_moments", None)


def without_reduction(optimizer: keras.optimizers.Optimizer) -> None:
    """Under TensorFlow, let `optimizer` take gradients that are already summed over replicas."""
    optimizer._all_reduce_sum_gradients = list


def repair_several_workers() -> None:
    """Repair `fit` and `evaluate` of Keras under TensorFlow's `MultiWorkerMirroredStrategy`.

    Before the first step, Keras 3.15 averages a batch over the replicas, only to learn its
    shapes; on several workers, TensorFlow can't. One replica's part has the same shapes.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    def build(self, iterator=None, data_batch=None):
        strategy = self.distribute_strategy
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda part: strategy.experimental_local_results(part)[0], next(batches)
            )
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = build


def with_added(model: keras.Model, total: Any, losses: Sequence[Any]) -> Any:
    """Return a loss plus the losses that layers added, scaled as the mirrored strategies expect."""
    for loss in losses:
        total = total + ops.cast(model._aggregate_additional_loss(loss), total.dtype)
    return total


def with_public_optimizers(config: Any) -> Any:
    """Return a serialized config in which Keras's optimizers have their public names.

    Under PyTorch, Keras serializes backend-specific subclasses, which other backends lack.
    """
    if isinstance(config, (list, tuple)):
        return [with_public_optimizers(item) for item in config]
    if not isinstance(config, dict):
        return config
    config = {key: with_public_optimizers(value) for key, value in config.items()}
    if str(config.get("module")).startswith("keras.src.backend.torch.optimizers"):
        config.update(module="keras.optimizers", registered_name=None)
    return config


def replace_seed_generator(
    layer: keras.layers.Layer, name: str, generator: keras.random.SeedGenerator | None
) -> None:
    """Set an attribute of a layer that is built to another seed generator, or to None."""
    layer._tracker.unlock()
    layer._tracker.untrack(getattr(layer, name))
    setattr(layer, name, generator)
    layer._tracker.lock()


def moving_average(
    optimizer: keras.optimizers.Optimizer | None,
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Return pairs of a trained variable and its moving average; none if none is kept."""
    # In mixed_float16, Keras wraps the optimizer.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "use_ema", False) or not optimizer.built:
        return []
    pairs = zip(
        optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True
    )
    return [(variable, average) for variable, average in pairs if average is not None]


class ByRate:
    """A Keras optimizer with a factor of the learning rate for each variable.

    Variables of the same factor are updated together, by Keras's own code for the backend. When
    XLA compiles for a CPU, variables of the same shape share the code of their update.

    Attributes:
        rate_factors: One factor per variable that the optimizer was built with; None is 1
            for all.
        slots: Names of the attributes that list what is kept for each of these, such as its
            momentum: a variable or None.
    """

    rate_factors: tuple[float, ...] | None = None
    slots: tuple[str, ...] = ()
    _factor = 1.0
    _shared = None

    def apply(self, grads, trainable_variables=None):
        self._shared = _SharedCode() if _SharedCode.serves(grads) else None
        try:
            super().apply(grads, trainable_variables)
        finally:
            self._shared = None

    def _get_current_learning_rate(self):
        rate = super()._get_current_learning_rate()
        return rate if self._factor == 1 else rate * self._factor

    def _apply_weight_decay(self, variables):
        if self.weight_decay is None or self._shared is not None:
            return
        for factor, places in self._by_factor(variables):
            decayed = [variables[i] for i in places if self._use_weight_decay(variables[i])]
            if decayed:
                with self._at(factor):
                    super()._apply_weight_decay(decayed)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        for factor, places in self._by_factor(trainable_variables):
            with self._at(factor):
                super()._backend_update_step(
                    [grads[i] for i in places],
                    [trainable_variables[i] for i in places],
                    learning_rate if factor == 1 else learning_rate * factor,
                )

    def update_step(self, gradient, variable, learning_rate):
        if self._shared is None:
            super().update_step(gradient, variable, learning_rate)
            return
        place = self._get_variable_index(variable)
        kept = [getattr(self, name)[place] for name in self.slots if hasattr(self, name)]
        decays = self.weight_decay is not None and self._use_weight_decay(variable)
        average = self._model_variables_moving_average[place] if self._averages_here() else None
        self._shared(
            (decays and self._factor, average is not None),
            [value for value in (variable, *kept, average) if value is not None],
            functools.partial(self._update, variable, decays, average),
            [gradient, learning_rate],
            [value for value in self.variables if value.shape == ()],
        )

    def _update(self, variable, decays, average, gradient, learning_rate):
        if decays:
            super()._apply_weight_decay([variable])
        super().update_step(gradient, variable, learning_rate)
        if average is not None:
            momentum = ops.cast(self.iterations != 0, average.dtype) * self.ema_momentum
            average.assign(momentum * average + (1 - momentum) * variable)

    def _averages_here(self):
        # With accumulation, Keras decides after the update which weights enter the average.
        return self._shared is not None and self.use_ema and not self.gradient_accumulation_steps

    def _update_model_variables_moving_average(self, trainable_variables):
        if not self._averages_here():
            super()._update_model_variables_moving_average(trainable_variables)

    @contextlib.contextmanager
    def _at(self, factor):
        self._factor = factor
        try:
            yield
        finally:
            self._factor = 1.0

    def _by_factor(self, variables):
        """Return each factor and the places of its variables in the list."""
        if self.rate_factors is None:
            return [(1.0, range(len(variables)))]
        places: dict[float, list[int]] = {}
        for place, variable in enumerate(variables):
            factor = self.rate_factors[self._get_variable_index(variable)]
            places.setdefault(factor, []).append(place)
        return list(places.items())


class _SharedCode:
    """Calls of functions that update variables; XLA compiles one for all variables of a shape.

    Variable by variable, the update was almost half of what XLA compiled for a deep model.
    """

    def __init__(self):
        self._compiled = {}

    @staticmethod
    def serves(gradients: Sequence[Any]) -> bool:
        """Return whether JAX is tracing `gradients` for one CPU."""
        if keras.backend.backend() != "jax" or keras.distribution.distribution() is not None:
            return False
        import jax

        return jax.default_backend() == "cpu" and any(
            isinstance(gradient, jax.core.Tracer) for gradient in gradients
        )

    def __call__(
        self,
        key: tuple,
        updated: Sequence[keras.Variable],
        function: Callable[..., Any],
        inputs: Sequence[Any],
        read: Sequence[keras.Variable],
    ) -> None:
        """Call `function(*inputs)`, or the function of its key that was called first.

        Args:
            key: Identifies functions that differ only in the variables that they update.
            updated: Variables that `function` reads and updates, in the same order for all
                functions of a key.
            function: Updates variables.
            inputs: Its arguments.
            read: Other variables that it reads.
        """
        import jax
        from jax.experimental.xla_metadata import set_xla_metadata

        variables = [*updated, *read]
        key = (*key, *((variable.shape, variable.dtype) for variable in updated))
        if key not in self._compiled:

            def pure(values, inputs):
                mapping = list(zip(variables, values, strict=True))
                with keras.StatelessScope(state_mapping=mapping) as scope:
                    function(*inputs)
                    return [scope.get_current_value(variable) for variable in updated]

            self._compiled[key] = jax.jit(pure)
        # Inlined, each call would be compiled by itself.
        with set_xla_metadata(inlineable="false"):
            values = self._compiled[key](
                [variable.value for variable in variables],
                [ops.convert_to_tensor(tensor) for tensor in inputs],
            )
        for variable, value in zip(updated, values, strict=True):
            variable.assign(value)


# Under PyTorch, Keras makes an optimizer of another class, which updates all variables at
# once; a subclass of the public class would lose it.
_AdamW = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


class AdamWByRate(ByRate, _AdamW):
    """Keras's AdamW with a factor of the learning rate for each variable.

    Under PyTorch on a CPU, the update is PyTorch's own in one pass over the variables; Keras's
    takes ten.
    """

    slots = ("_momentums", "_velocities", "_velocity_hats")

    def _parallel_update_step(self, grads, variables, learning_rate):
        # Only PyTorch's class has this method.
        from torch.optim.adamw import adamw

        values = [variable.value for variable in variables]
        if self.amsgrad or any(value.device.type != "cpu" for value in values):
            super()._parallel_update_step(grads, variables, learning_rate)
            return
        places = [self._get_variable_index(variable) for variable in variables]
        moments = ([kept[i].value for i in places] for kept in (self._momentums, self._velocities))
        done = keras.ops.cast(self.iterations, "float32")
        # Keras adds epsilon before the correction of the squares, PyTorch after it.
        correction = (1 - self.beta_2 ** (int(done) + 1)) ** 0.5
        adamw(
            values,
            list(grads),
            *moments,
            max_exp_avg_sqs=[],
            state_steps=list(done.repeat(len(values)).unbind()),
            fused=True,
            amsgrad=False,
            beta1=self.beta_1,
            beta2=self.beta_2,
            lr=float(learning_rate),
            weight_decay=0.0,
            eps=self.epsilon / correction,
            maximize=False,
        )


class MuonByRate(ByRate, keras.optimizers.Muon):
    """Keras's Muon for chosen variables, with a factor of the learning rate for each variable.

    Attributes:
        matrices: Places of the variables that Muon updates, among those that the optimizer
            was built with; AdamW updates the others. None leaves the choice to Keras.
    """

    slots = ("momentums", "adam_velocities")
    matrices: tuple[int, ...] | None = None

    def _should_use_adamw(self, variable):
        if self.matrices is None:
            return super()._should_use_adamw(variable)
        return self._get_variable_index(variable) not in self.matrices


def build_training(model: keras.Model, batch: Any) -> None:
    """Create the variables of a compiled model's optimizer, loss and metrics, as `fit` does.

    Args:
        model: A compiled model.
        batch: A batch of arrays, (inputs, targets) or (inputs, targets, weights).
    """
    model._symbolic_build(data_batch=batch)


def global_seed_generator() -> keras.random.SeedGenerator:
    """Return the generator from which `keras.random` draws without a seed."""
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator()
