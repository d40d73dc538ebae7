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
    """Serialize an argument of a layer, which may itself hold layers."""
    if isinstance(value, (list, tuple)):
        return [serialize(item) for item in value]
    serialized = keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer):
        # Keras would build it while loading, and its parent again under a different path.
        serialized.pop("build_config", None)
    return serialized


@functools.cache
def arguments(cls: type[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the argument names of a layer's `__init__`, including those of its parents."""
    names: dict[str, None] = {}
    for parent in cls.__mro__[: cls.__mro__.index(keras.layers.Layer)]:
        if "__init__" in vars(parent):
            _, *parameters = inspect.signature(parent.__init__).parameters.values()
            names |= {one.name: None for one in parameters if one.kind is not one.VAR_KEYWORD}
    return tuple(names)


def check_one_of(name: str, value: Any, known: tuple) -> None:
    """Check an argument that chooses one of several forms."""
    if value not in known:
        raise ValueError(f"`{name}` must be one of {known}. Received: {value!r}.")


class InferenceForm(NamedTuple):
    """The arguments and weights of a layer that differ in an equal form for inference.

    `weights` has variables by names such as `"conv/bias"`; `dropped` names those, and the children,
    that the form lacks.
    """

    arguments: dict[str, Any]
    weights: dict[str, Any]
    dropped: tuple[str, ...]


class Layer(keras.layers.Layer):
    """A Keras layer whose config is derived from the signature of `__init__`.

    Every argument of `__init__`, and of the parents' where `**kwargs` passes them on, must be
    stored as an attribute of the same name. Nothing else is needed to save and load it, or layers
    inside it.

    Attributes:
        initialization: Name of the initializers of child `Dense` layers (`layers.initializers`).
        varying: Names of numeric arguments that may differ between blocks of one loop over depth.
        adapted: Changes made to child `Dense` layers after construction (`quantize`,
            `enable_lora`), by name and nested like the children.
    """

    initialization = "normal"
    varying: tuple[str, ...] = ()
    adapted: dict[str, dict[str, Any]] = {}

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal, unbuilt layer."""
        given = {name: getattr(self, name) for name in arguments(type(self))}
        config = super().get_config() | {name: serialize(value) for name, value in given.items()}
        # Layers passed as arguments record their changes in their own configs.
        passed = set(map(id, keras.tree.flatten(list(given.values()))))
        own = (child for child in children(self) if id(child) not in passed)
        adapted = {child.name: changes for child in own if (changes := _changes(child))}
        return {**config, "adapted": adapted} if adapted else config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Layer":
        """Make the layer that `config` describes."""
        given = {
            name: keras.saving.deserialize_keras_object(value) for name, value in config.items()
        }
        adapted = given.pop("adapted", {})
        layer = cls(**given)
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
        self, units: int, name: str, input_shape: tuple, use_bias: bool = True, **arguments: Any
    ) -> keras.layers.Dense:
        """Return a built child `Dense` with this layer's precision and initialization."""
        arguments = {
            **initializers(self.initialization, input_shape[-1]),
            # A child without a dtype policy would have the global one when a model is loaded.
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
            **arguments,
            **self.adapted.get(name, {}),
        }
        layer = keras.layers.Dense(units, use_bias=use_bias, name=name, **arguments)
        layer.build(input_shape)
        return layer


def build_all(layers: Sequence[keras.layers.Layer], shape: tuple) -> tuple:
    """Build layers, each for the output of the one before; return the last output's shape."""
    for layer in layers:
        layer.build(shape)
        shape = tuple(layer.compute_output_spec(keras.KerasTensor(shape)).shape)
    return shape


def _changes(child: keras.layers.Layer) -> dict[str, Any]:
    """Return the `Dense` arguments that redo later changes; for a layer of ours, by child."""
    if isinstance(child, Layer):
        return child.get_config().get("adapted", {})
    if not isinstance(child, keras.layers.Dense):
        return {}
    changes: dict[str, Any] = {}
    if child.lora_rank:
        changes = {"lora_rank": child.lora_rank, "lora_alpha": child.lora_alpha}
    if child.quantization_mode is not None:
        quantized = {"dtype": child.dtype_policy}
        # Keras has it from 3.13 on.
        if hasattr(child, "quantization_config"):
            quantized["quantization_config"] = child.quantization_config
        changes |= {
            name: keras.saving.serialize_keras_object(one) for name, one in quantized.items()
        }
    return changes
