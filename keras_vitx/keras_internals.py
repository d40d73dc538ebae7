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
    from torch.optim.adamw import adamw


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


class AdamHooks:
    """Hooks of Keras's AdamW and Muon, whose `update_step` decays; few kernels under PyTorch."""

    def moments_of(self, variable):
        """Return the index of a variable, or its copy in a replica, and its moments or None."""
        index = self._get_variable_index(variable)
        if isinstance(self, keras.optimizers.Adam):
            return index, self._momentums[index], self._velocities[index]
        return index, self.momentums[index], self.adam_velocities[index]

    def decays(self, variable: keras.Variable) -> bool:
        """Return whether `exclude_from_weight_decay` has left a variable."""
        return self._use_weight_decay(variable)

    def averages_of(self, trainable_variables):
        """Return variables and the moving averages that `use_ema` keeps of them."""
        pairs = zip(trainable_variables, self._model_variables_moving_average, strict=True)
        return [pair for pair in pairs if pair[1] is not None]

    def _clip_gradients(self, grads):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # Keras clips the gradients of each replica, before their sum.
            replica = tf.distribute.get_replica_context()
            count = replica.num_replicas_in_sync if replica else 1
            if count > 1 and (self.clipnorm or self.global_clipnorm or self.clipvalue):
                sums = replica.all_reduce("SUM", list(grads))
                return [gradient / count for gradient in super()._clip_gradients(sums)]
        if keras.backend.backend() != "torch" or not self.global_clipnorm:
            return super()._clip_gradients(grads)
        norm, total = self.global_clipnorm, torch.nn.utils.get_total_norm(list(grads))
        # As in Keras, a norm that is not finite makes all gradients NaN.
        return torch._foreach_mul(list(grads), norm / total.clamp(min=norm) + (total - total))

    def _apply_weight_decay(self, variables):
        """Leave it to `update_step`."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() != "torch":
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        groups = {}
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            (index, mean, square), value = self.moments_of(variable), variable.value
            if square is None or value.dtype is not torch.float32 or not value.is_contiguous():
                self.update_step(gradient, variable, learning_rate)
                continue
            state = value, gradient.contiguous(), mean.value, square.value
            groups.setdefault(self.factors_and_decays[index], []).append(state)
        options = {"fused": True, "amsgrad": False, "maximize": False, "eps": self.epsilon}
        options |= zip(("beta1", "beta2"), self.betas, strict=True)
        for (factor, decay), group in groups.items():
            rate = keras.ops.cast(learning_rate, "float32") * factor
            # It increments the numbers of steps.
            steps = list(keras.ops.cast(self.iterations, "float32").repeat(len(group)))
            with torch.no_grad():
                states = map(list, zip(*group, strict=True))
                adamw(*states, [], steps, lr=rate, weight_decay=decay, **options)

    def _update_model_variables_moving_average(self, trainable_variables):
        momentum = keras.ops.cast(self.iterations != 0, "float32") * self.ema_momentum
        pairs = self.averages_of(trainable_variables)
        if keras.backend.backend() != "torch":
            return self.move_averages(pairs, momentum)
        values, averages = ([each.value for each in some] for some in zip(*pairs, strict=True))
        with torch.no_grad():
            torch._foreach_mul_(averages, momentum)
            torch._foreach_add_(averages, torch._foreach_mul(values, 1 - momentum))
