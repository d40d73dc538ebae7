"""All private names of Keras that the package uses.

Keras may rename them in any release. `tests/test_keras_internals.py` has one contract
test per name, so that an incompatible Keras release fails there first.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
from keras.src.backend import AutocastScope
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.utils import naming


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


def asks_for_shapes() -> bool:
    """Return whether Keras runs a model only to learn the shapes of its outputs."""
    return in_symbolic_scope()


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
    """Private methods of Keras's AdamW, which call those of `training.AdamW`."""

    def moments_of(self, variable: keras.Variable) -> tuple[int, Any, Any]:
        """Return the index of a variable, or its copy in a replica, and its two moments."""
        index = self._get_variable_index(variable)
        return index, self._momentums[index], self._velocities[index]

    def decays(self, variable: keras.Variable) -> bool:
        """Return whether `exclude_from_weight_decay` has left a variable."""
        return self._use_weight_decay(variable)

    def averages_of(self, variables: Sequence[keras.Variable]) -> list[tuple[Any, Any]]:
        """Return variables and the moving averages that `use_ema` keeps of them."""
        pairs = zip(variables, self._model_variables_moving_average, strict=True)
        return [pair for pair in pairs if pair[1] is not None]

    def _clip_gradients(self, grads):
        return self.clip(grads, super()._clip_gradients)

    def _apply_weight_decay(self, variables):
        """Leave it to `update_step`."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() == "torch":
            self.update(grads, trainable_variables, learning_rate)
        else:
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update_model_variables_moving_average(self, trainable_variables):
        momentum = keras.ops.cast(self.iterations != 0, "float32") * self.ema_momentum
        self.move_averages(self.averages_of(trainable_variables), momentum)
