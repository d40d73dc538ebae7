"""All private names of Keras that the package uses.

Keras may rename them in any release. `tests/test_keras_internals.py` has one contract
test per name, so that an incompatible Keras release fails there first.
"""

import contextlib
from typing import Any

import keras
from keras.src.backend import AutocastScope
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.utils import naming

if keras.backend.backend() == "torch":
    import torch


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return `layer` and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


def children(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers directly inside `layer`."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


class AfterBuild:
    """A layer that calls `after_build` at the end of `build`.

    Checkpoints of TensorFlow find all layers inside it: Keras leaves out those in lists.
    """

    def _post_build(self):
        super()._post_build()
        if keras.backend.backend() == "tensorflow":
            for index, child in enumerate(children(self)):
                self._track_trackable(child, f"layers_{index}", overwrite=True)
        self.after_build()


def automatic_name(layer: keras.layers.Layer) -> str:
    """Return the name that Keras gives to layers of its class, before it numbers them."""
    return naming.to_snake_case(type(layer).__name__)


def nodes(model: keras.Model) -> list[Any] | None:
    """Return Keras's records of the calls in a functional model, in order; None for any other.

    Each has the `operation`, its `arguments`, `input_tensors` and `outputs`.
    """
    by_depth = getattr(model, "_nodes_by_depth", None)
    return by_depth and [node for n in sorted(by_depth, reverse=True) for node in by_depth[n]]


def remat_mode(layer: keras.layers.Layer) -> Any:
    """Return the rematerialization mode that `keras.RematScope` set on `layer`, or None."""
    return getattr(layer, "_remat_mode", None)


def logits_of(probabilities: Any) -> Any:
    """Return the logits that Keras keeps with a softmax or sigmoid, or None (always under JAX)."""
    return getattr(probabilities, "_keras_logits", None)


def autocast(dtype: str | None) -> contextlib.AbstractContextManager:
    """Return a context in which variables are read in `dtype`, or, if None, as they are stored."""
    return AutocastScope(dtype)


def tensor_of(variable: keras.Variable) -> Any:
    """Return `variable.value` under PyTorch, perhaps not cast, in a tenth of its time."""
    return variable.value if in_stateless_scope() else variable._value


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments given to `model.compile`, as objects; empty if it wasn't called."""
    return dict(model._compile_config.config) if model.compiled else {}


def replace_seed_generator(
    layer: keras.layers.Layer, name: str, generator: keras.random.SeedGenerator | None
) -> None:
    """Set an attribute of a layer that is built to another seed generator, or to None."""
    layer._tracker.unlock()
    layer._tracker.untrack(getattr(layer, name))
    setattr(layer, name, generator)
    layer._tracker.lock()


class GlobalClipping:
    """A Keras optimizer that clips the gradients of all replicas together.

    Under TensorFlow, Keras clips them by replica, before the sum. Under PyTorch, its clipping and
    its moving average launch thirteen kernels per variable; here, few serve all.
    """

    def _clip_gradients(self, grads):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            replica = tf.distribute.get_replica_context()
            count = replica.num_replicas_in_sync if replica else 1
            if count > 1 and (self.clipnorm or self.global_clipnorm or self.clipvalue):
                sums = replica.all_reduce("SUM", list(grads))
                return [one / count for one in super()._clip_gradients(sums)]
        if keras.backend.backend() != "torch" or self.clipnorm or not self.global_clipnorm:
            return super()._clip_gradients(grads)
        norm, grads = self.global_clipnorm, list(grads)
        total = torch.nn.utils.get_total_norm(grads)
        # As in Keras, a norm that is not finite makes all gradients NaN.
        factor = norm / total.clamp(min=norm) + (total - total)
        return torch._foreach_mul(grads, factor)

    def _apply_weight_decay(self, variables):
        # Under PyTorch, Keras raises where none decays, as if only biases are trained.
        if any(map(self._use_weight_decay, variables)):
            super()._apply_weight_decay(variables)

    def _update_model_variables_moving_average(self, trainable_variables):
        if keras.backend.backend() != "torch" or not self.use_ema:
            return super()._update_model_variables_moving_average(trainable_variables)
        both = zip(self._model_variables_moving_average, trainable_variables, strict=True)
        averages, values = zip(*((a.value, v.value) for a, v in both if a is not None), strict=True)
        momentum = keras.ops.cast(self.iterations != 0, "float32") * self.ema_momentum
        with torch.no_grad():
            torch._foreach_mul_(averages, momentum)
            torch._foreach_add_(averages, torch._foreach_mul(values, 1 - momentum))


class RatePerVariable(GlobalClipping):
    """A Keras optimizer of which `factor_and_decay` gives the factor and decay of a variable.

    Under PyTorch, the variables of one factor are updated together if Keras's optimizer can.
    """

    def decays(self, variable: keras.Variable) -> bool:
        """Return whether `exclude_from_weight_decay` has left a variable."""
        return self._use_weight_decay(variable)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if not hasattr(self, "_parallel_update_step"):
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        groups = {}
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            factor, decay = self.factor_and_decay(id(variable), (1, 0))
            groups.setdefault(factor, []).append((gradient, variable, decay))
        for factor, group in groups.items():
            gradients, variables, decays = map(list, zip(*group, strict=True))
            rate = learning_rate * factor
            if decayed := [v.value for v, decay in zip(variables, decays, strict=True) if decay]:
                with torch.no_grad():
                    torch._foreach_mul_(decayed, 1 - rate * max(decays))
            super()._backend_update_step(gradients, variables, rate)


def functions_of_adam() -> tuple[Any, Any]:
    """Return PyTorch's function by which Keras's Adam adds epsilon, and its form for tensors."""
    return torch._foreach_add, torch.ops.aten._foreach_add.Tensor
