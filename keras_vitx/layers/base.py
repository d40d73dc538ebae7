"""The layer that all layers of the package are made from."""

import functools
import inspect
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import keras

from keras_vitx.keras_internals import children, takes_training
from keras_vitx.layers.fast import is_compiled_by_jax, runs_straight
from keras_vitx.layers.initializers import truncated_normal


def register(cls: type) -> type:
    """Class decorator: make `cls` loadable from a saved file as `keras_vitx>Name`."""
    return keras.saving.register_keras_serializable(package="keras_vitx")(cls)


def serialize(value: Any) -> Any:
    """Serialize `value`, an argument of a layer, layers among them.

    A nested layer is written unbuilt: Keras would build it while reading the
    file, and its parent would then build it a second time under another path.
    """
    if isinstance(value, (list, tuple)):
        return [serialize(item) for item in value]
    serialized = keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer):
        serialized.pop("build_config", None)
    return serialized


@functools.cache
def arguments(cls: type[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the names of the arguments of a layer's `__init__` and of its parents'."""
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


inside_chain: ContextVar[bool] = ContextVar("inside_chain", default=False)
"""Whether a `Chain` is running its layers, as one loop over depth where that pays."""


def suggest_loop(x: Any) -> None:
    """Log once that blocks trained outside of a `Chain` miss the loop over depth.

    Args:
        x: The tokens that a block is given in training.
    """
    if is_compiled_by_jax(x) and not inside_chain.get():
        _suggest_loop()


@functools.cache
def _suggest_loop() -> None:
    logging.getLogger("keras_vitx").warning(
        "Under JAX, blocks trained one after the other compile and run several times slower than "
        "the loop over depth of a Chain: train `keras_vitx.as_chain(model)` instead, which has "
        "the same layers and weights."
    )


class Layer(keras.layers.Layer):
    """A Keras layer whose config is read back from its `__init__`.

    Every argument of `__init__` (and of the parents' where `**kwargs` hands
    them on) is kept as an attribute of the same name; `get_config` and
    `from_config` need nothing more, nested layers included.

    Attributes:
        varying: Names of numeric arguments in which blocks may differ and still
            run as one loop over depth.
        adapted: What was done to child Denses after they were made (`quantize`,
            `enable_lora`), by name, children's children included, while the layer is
            read from a config.
    """

    varying: tuple[str, ...] = ()
    adapted: dict[str, dict[str, Any]] = {}

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make an equal, unbuilt layer."""
        config = super().get_config()
        config.update({name: serialize(getattr(self, name)) for name in arguments(type(self))})
        # Layers that are arguments say for themselves how they were changed.
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
        """Run a child layer on `x`; `training` reaches it if it takes it."""
        straight = runs_straight(layer, x, self.compute_dtype)
        if takes_training(layer):
            arguments["training"] = training
            # Otherwise Keras asks the parents whether they train.
            straight = straight and training is not None
        return (layer.call if straight else layer)(x, **arguments)

    def run_all(
        self, layers: Sequence[keras.layers.Layer], x: Any, training: bool | None = None
    ) -> Any:
        """Run child layers in order on `x`."""
        for layer in layers:
            x = self.run(layer, x, training)
        return x

    def run_in_training(self, layer: keras.layers.Layer, x: Any, training: Any) -> Any:
        """Run a child that does something in training only, such as a dropout.

        Elsewhere it isn't called at all: in a small network, run eagerly, the calls of such
        layers cost as much time as some that compute.
        """
        return self.run(layer, x, True) if training else x

    def dense(
        self,
        units: int,
        name: str,
        use_bias: bool = True,
        kernel_initializer: keras.initializers.Initializer | None = None,
    ) -> keras.layers.Dense:
        """Make a child `Dense` in this layer's precision, started as the papers do.

        The precision is handed on because a child would take the global one
        when a saved model is read.
        """
        arguments = {"dtype": self.dtype_policy, **self.adapted.get(name, {})}
        return keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer or truncated_normal(),
            trainable=self.trainable,
            name=name,
            **arguments,
        )


def _changes(child: keras.layers.Layer) -> dict[str, Any]:
    """Return the arguments with which a Dense is made as it was changed later.

    Of a layer of the package, that of each child, by name.
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
