"""`Layer`, the base class of all layers of the package."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import keras

from keras_vitx.keras_internals import AfterBuild, children, sublayers
from keras_vitx.layers import ops
from keras_vitx.layers.initializers import initializers
from keras_vitx.layers.recording import Tensor


def register(cls: type) -> type:
    """Class decorator: make `cls` loadable from a saved file as `keras_vitx>Name`."""
    return keras.saving.register_keras_serializable(package="keras_vitx")(cls)


def serialize(value: object) -> Any:
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
            names |= {p.name: None for p in parameters if p.kind is not p.VAR_KEYWORD}
    return tuple(names)


def at_least_float32(dtype: str | keras.DTypePolicy | None = None) -> str:
    """Return the dtype for what half precision would lose: float32, or float64 of such a policy."""
    is_double = keras.dtype_policies.get(dtype).compute_dtype == "float64"
    return "float64" if is_double else "float32"


class Layer(AfterBuild, keras.layers.Layer):
    """A Keras layer whose config is derived from the signature of `__init__`.

    Every argument of `__init__`, and of the parents' where `**kwargs` passes them on, must be
    stored as an attribute of the same name. Nothing else is needed to save and load it, or layers
    inside it. What is frozen inside it stays frozen in a copy.

    Attributes:
        initialization: Name of the initializers of child `Dense` layers (`layers.initializers`).
        varying: Names of numeric arguments that may differ between blocks of one graph (PyTorch).
        frozen: The result of `frozen_layers` for the layer that this one is a copy of.
        quantized: That of `quantized_layers`.
    """

    initialization = "normal"
    varying: tuple[str, ...] = ()
    frozen: dict[str, bool] = {}
    quantized: dict[str, Any] = {}

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal, unbuilt layer."""
        given = {name: serialize(getattr(self, name)) for name in arguments(type(self))}
        frozen = frozen_layers(self) if self.built else self.frozen
        quantized = quantized_layers(self) if self.built else self.quantized
        optional = {"frozen": frozen, "quantized": serialize(quantized)}
        return super().get_config() | given | {name: x for name, x in optional.items() if x}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Layer":
        """Make the layer that `config` describes."""
        given = keras.saving.deserialize_keras_object(config)
        frozen, quantized = given.pop("frozen", {}), given.pop("quantized", {})
        layer = cls(**given)
        layer.frozen, layer.quantized = frozen, quantized
        return layer

    def after_build(self) -> None:
        # Keras freezes what a layer has when it is frozen, not what it builds later: in a model,
        # even its own MultiHeadAttention(trainable=False) is trained. Nor does a config tell that
        # inner layers are quantized (keras-team/keras#21378).
        if not self.trainable:
            # Each, as a frozen layer of TensorFlow's does not pass on to those inside what it has.
            for layer in sublayers(self):
                layer.trainable = False
        for path, (layer, _) in _inner_layers(self).items():
            if path in self.frozen:
                layer.trainable = self.frozen[path]
            if path in self.quantized and layer.quantization_mode is None:
                how = self.quantized[path]
                layer.quantize(**{"mode" if isinstance(how, str) else "config": how})

    def run(
        self, layer: keras.layers.Layer, x: Tensor, training: bool | None = None, **arguments: Any
    ) -> Any:
        """Run a child layer on `x`, with `training` if it takes that, and what is not None."""
        arguments = {name: value for name, value in arguments.items() if value is not None}
        return ops.call(layer, x, training, self.compute_dtype, **arguments)

    def run_all(
        self, layers: Sequence[keras.layers.Layer], x: Tensor, training: bool | None = None
    ) -> Any:
        """Run child layers on `x`, one after another."""
        for layer in layers:
            x = self.run(layer, x, training)
        return x

    def dense(
        self, units: int, name: str, input_shape: tuple, use_bias: bool = True, **arguments: Any
    ) -> keras.layers.Dense:
        """Return a built child `Dense` with this layer's precision and initialization."""
        # A child without a dtype policy would have the global one when a model is loaded.
        form = {"use_bias": use_bias, "name": name, "dtype": self.dtype_policy}
        arguments = initializers(self.initialization, input_shape[-1]) | arguments
        layer = keras.layers.Dense(units, **form, **arguments)
        layer.build(input_shape)
        return layer


def frozen_layers(layer: keras.layers.Layer) -> dict[str, bool]:
    """Return the layers inside that are frozen, or trained, unlike the layer that they are in.

    The result has `trainable` by path, such as `"attn/qkv"`, outer layers first.
    """
    return {
        path: child.trainable
        for path, (child, owner) in _inner_layers(layer).items()
        if child.trainable != owner and child.weights
    }


def quantized_layers(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return the configs, or modes as `"float8"`, of the quantized layers inside, by path.

    Raises:
        ValueError: if one has an update of low rank, with which Keras would round its kernel again.
    """
    inner = _inner_layers(layer).items()
    quantized = {path: child for path, (child, _) in inner if child.quantization_mode}
    adapted = [path for path, child in quantized.items() if getattr(child, "lora_enabled", False)]
    if adapted:
        raise ValueError(
            "A quantized model must have no LoRA when it is saved or copied: its kernels would be "
            "rounded again. Add LoRA before `quantize`, `keras_vitx.fuse`, then quantize; or save "
            f"`lora_kernel_a` and `lora_kernel_b` by themselves. Received: LoRA in {adapted}."
        )
    return {
        path: getattr(child, "quantization_config", None) or child.quantization_mode
        for path, child in quantized.items()
    }


def _inner_layers(layer: keras.layers.Layer) -> dict[str, tuple[keras.layers.Layer, bool]]:
    """Return all layers inside by path, each with whether the layer that it is in is trained."""
    inner: dict[str, tuple[keras.layers.Layer, bool]] = {}
    outer, seen = [("", layer)], {id(layer)}
    for prefix, owner in outer:
        for child in children(owner):
            path = prefix + child.name
            while path in inner:
                path += "+"  # Two layers of one name.
            if id(child) not in seen:
                seen.add(id(child))
                inner[path] = child, owner.trainable
                outer.append((f"{path}/", child))
    return inner


def build_all(layers: Sequence[keras.layers.Layer], shape: tuple) -> tuple:
    """Build layers, each for the output of the one before; return the last output's shape."""
    for layer in layers:
        layer.build(shape)
        shape = tuple(layer.compute_output_spec(keras.KerasTensor(shape)).shape)
    return shape


def classes_in(model: keras.Model) -> dict[str, type]:
    """Return the classes of the layers of a model by registered name, as `custom_objects`."""
    name_of = keras.saving.get_registered_name
    return {name_of(type(layer)): type(layer) for layer in sublayers(model)}


def forget_programs(model: keras.Model) -> None:
    """Make a model, and models inside it, trace their programs anew, for a setting that changed."""
    for part in sublayers(model):
        if isinstance(part, keras.Model):
            part.train_function = part.test_function = part.predict_function = None


def optimizer_of(model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the optimizer of a compiled model, that inside Keras's scaling of the loss."""
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return model.optimizer.inner_optimizer if scaled else model.optimizer
