"""`Layer`, the base class of all layers of the package."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from keras_vitx.keras_internals import children
from keras_vitx.layers import ops
from keras_vitx.layers.initializers import initializers


def register(cls: type) -> type:
    """Class decorator: make `cls` loadable from a saved file as `keras_vitx>Name`."""
    return keras.saving.register_keras_serializable(package="keras_vitx")(cls)


def serialize(value: Any) -> Any:
    """Serialize `value`, an argument of a layer, which may itself hold layers.

    A nested layer is serialized without its build config: otherwise Keras would build
    it while loading, and its parent would build it again under a different path.
    """
    if isinstance(value, (list, tuple)):
        return [serialize(item) for item in value]
    serialized = keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer):
        serialized.pop("build_config", None)
    return serialized


@functools.cache
def arguments(cls: type[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the argument names of a layer's `__init__`, including those of its parents."""
    names: dict[str, None] = {}
    for parent in cls.__mro__:
        if parent is keras.layers.Layer:
            break
        if "__init__" not in vars(parent):
            continue
        for name, parameter in inspect.signature(parent.__init__).parameters.items():
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                names[name] = None
    return tuple(names)


class InferenceForm(NamedTuple):
    """An equal form of a layer for inference, with fewer operations.

    A layer that has one defines `inference_form(self)`; `keras_vitx.fuse` asks for it.

    Attributes:
        arguments: The arguments of the layer that differ.
        weights: New values of its variables, by their names inside the layer, such as
            `"conv/bias"`.
        dropped: Names of its variables, or of its children, that the new form lacks.
    """

    arguments: dict[str, Any]
    weights: dict[str, Any]
    dropped: tuple[str, ...]


class Layer(keras.layers.Layer):
    """A Keras layer whose config is derived from the signature of `__init__`.

    Every argument of `__init__` (and of the parents' where `**kwargs` passes
    them on) must be stored as an attribute of the same name. `get_config` and
    `from_config` need nothing else, including for nested layers.

    Attributes:
        initialization: Name of the initializers of child `Dense` layers, as in
            `layers.initializers`.
        varying: Names of numeric arguments that may differ between blocks that
            run as one loop over depth.
        adapted: Changes made to child `Dense` layers after construction (`quantize`,
            `enable_lora`), by name and nested like the children; set while the layer is
            restored from a config.
    """

    initialization = "normal"
    varying: tuple[str, ...] = ()
    adapted: dict[str, dict[str, Any]] = {}

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal, unbuilt layer."""
        config = super().get_config()
        config.update({name: serialize(getattr(self, name)) for name in arguments(type(self))})
        # Layers passed as arguments record their changes in their own configs.
        given = keras.tree.flatten([getattr(self, name) for name in arguments(type(self))])
        own = [child for child in children(self) if not any(child is one for one in given)]
        adapted = {child.name: changes for child in own if (changes := _changes(child))}
        return {**config, "adapted": adapted} if adapted else config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Layer":
        """Make the layer that `config` describes."""
        arguments = {
            name: keras.saving.deserialize_keras_object(value) for name, value in config.items()
        }
        adapted = arguments.pop("adapted", {})
        layer = cls(**arguments)
        layer.adapted = adapted
        for child in children(layer):
            if isinstance(child, Layer) and child.name in adapted:
                child.adapted = adapted[child.name]
        return layer

    def run(
        self, layer: keras.layers.Layer, x: Any, training: bool | None = None, **arguments: Any
    ) -> Any:
        """Run a child layer on `x`, passing `training` on if the child accepts it."""
        return ops.call(layer, x, training, self.compute_dtype, **arguments)

    def run_all(
        self, layers: Sequence[keras.layers.Layer], x: Any, training: bool | None = None
    ) -> Any:
        """Run child layers on `x`, one after another."""
        for layer in layers:
            x = self.run(layer, x, training)
        return x

    def run_in_training(self, layer: keras.layers.Layer, x: Any, training: Any) -> Any:
        """Run a dropout or stochastic depth, which is the identity outside training."""
        return self.run(layer, x, training) if training else x

    def dense(
        self,
        units: int,
        name: str,
        use_bias: bool = True,
        *,
        fan_in: int,
        **arguments: Any,
    ) -> keras.layers.Dense:
        """Return a child `Dense` with this layer's precision and initialization.

        The dtype policy is passed explicitly because a child would otherwise use the
        global one when a saved model is loaded.

        Args:
            units: Width of the output.
            name: Name of the child.
            use_bias: Whether it has a bias.
            fan_in: Width of the input.
            **arguments: Further arguments of `Dense`.
        """
        arguments = {
            **initializers(self.initialization, fan_in),
            "dtype": self.dtype_policy,
            **arguments,
            **self.adapted.get(name, {}),
        }
        return keras.layers.Dense(
            units,
            use_bias=use_bias,
            trainable=self.trainable,
            name=name,
            **arguments,
        )


def _changes(child: keras.layers.Layer) -> dict[str, Any]:
    """Return the `Dense` arguments that reproduce changes made after construction.

    For a layer of the package, return those of its children, by name.
    """
    if isinstance(child, Layer):
        return child.get_config().get("adapted", {})
    if not isinstance(child, keras.layers.Dense):
        return {}
    changes: dict[str, Any] = {}
    if child.lora_rank:
        changes.update(lora_rank=child.lora_rank, lora_alpha=child.lora_alpha)
    if child.quantization_mode is not None:
        changes["dtype"] = keras.saving.serialize_keras_object(child.dtype_policy)
        changes["quantization_config"] = keras.saving.serialize_keras_object(
            child.quantization_config
        )
    return changes
