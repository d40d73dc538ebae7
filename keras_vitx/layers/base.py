"""`Layer`, the base class of all layers of the package."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.keras_internals import children, sublayers, track
from keras_vitx.layers import ops
from keras_vitx.layers.initializers import initializers
from keras_vitx.preprocessing import Preprocessing


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


def to_python(value: Any, max_ndim: int = 0) -> Any:
    """Convert NumPy's numbers to Python's, which Keras asks for, in lists and dictionaries, too.

    An array of at most `max_ndim` dimensions becomes a number or a list.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim <= max_ndim:
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(to_python(item, max_ndim) for item in value)
    if type(value) is dict:
        return {key: to_python(item, max_ndim) for key, item in value.items()}
    return value


@functools.cache
def arguments(cls: type[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the argument names of a layer's `__init__`, including those of its parents."""
    names: dict[str, None] = {}
    for parent in cls.__mro__[: cls.__mro__.index(keras.layers.Layer)]:
        if "__init__" in vars(parent):
            _, *parameters = inspect.signature(parent.__init__).parameters.values()
            names |= {one.name: None for one in parameters if one.kind is not one.VAR_KEYWORD}
    return tuple(names)


def at_least_float32(dtype: Any = None) -> str:
    """Return float32, or float64 where the policy computes in it: for what half precision loses.

    `dtype` is the policy of the other layers; None is the global one.
    """
    is_double = keras.dtype_policies.get(dtype).compute_dtype == "float64"
    return "float64" if is_double else "float32"


class LayerType(type):
    """The type of the classes of layers: their arguments are Python's numbers, not NumPy's."""

    def __call__(cls, *args, **kwargs):
        return super().__call__(*to_python(args), **to_python(kwargs))

    @property
    def __signature__(cls) -> inspect.Signature:
        # Otherwise `help` and editors show that of `__call__`.
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        return inspect.Signature(parameters)


class Layer(keras.layers.Layer, metaclass=LayerType):
    """A Keras layer whose config is derived from the signature of `__init__`.

    Every argument of `__init__`, and of the parents' where `**kwargs` passes them on, must be
    stored as an attribute of the same name. Nothing else is needed to save and load it, or layers
    inside it.

    Attributes:
        initialization: Name of the initializers of child `Dense` layers (`layers.initializers`).
        varying: Names of numeric arguments that may differ between blocks of one loop over depth.
        adapted: Arguments of Keras's layers inside that changed after they were made (a `rate`,
            `quantize`, `enable_lora`), by name and nested like the children.
        made: Pairs of their names and the arguments with which they were made, without those.
        preprocessing: What the images that it takes are, in the first layer of a model.
        frozen: What `frozen_layers` recorded of the layer that this one was made from.
        told_grid: What `tell_grid` told the layers inside: rows, columns and prefix tokens.
    """

    initialization = "normal"
    varying: tuple[str, ...] = ()
    adapted: dict[str, dict[str, Any]] = {}
    made: tuple[tuple[str, dict[str, Any]], ...] = ()
    preprocessing: Preprocessing | None = None
    frozen: dict[str, bool] = {}
    told_grid: tuple[int, ...] = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = _freezing(cls.build)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal, unbuilt layer."""
        given = {name: getattr(self, name) for name in arguments(type(self))}
        config = super().get_config() | {name: serialize(value) for name, value in given.items()}
        if frozen := frozen_layers(self) if self.built else self.frozen:
            config["frozen"] = frozen
        if self.preprocessing is not None:
            config["preprocessing"] = self.preprocessing.to_dict()
        if self.told_grid:
            config["told_grid"] = list(self.told_grid)
        # Layers passed as arguments record their changes in their own configs.
        passed = set(map(id, keras.tree.flatten(list(given.values()))))
        own = (child for child in children(self) if id(child) not in passed)
        adapted = {child.name: changes for child in own if (changes := self._changes(child))}
        return {**config, "adapted": adapted} if adapted else config

    def _changes(self, child: keras.layers.Layer) -> dict[str, Any]:
        """Return the arguments that redo later changes; for a layer of ours, by child."""
        if isinstance(child, Layer):
            return child.get_config().get("adapted", {})
        before = dict(self.made).get(child.name, _arguments_of(child))
        return {
            name: value
            for name, value in _arguments_of(child).items()
            if name not in before or before[name] != value
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Layer":
        """Make the layer that `config` describes."""
        given = {
            name: keras.saving.deserialize_keras_object(value) for name, value in config.items()
        }
        adapted, frozen = given.pop("adapted", {}), given.pop("frozen", {})
        preprocessing, told_grid = given.pop("preprocessing", None), given.pop("told_grid", ())
        layer = cls(**given)
        if told_grid:
            tell_grid(layer, *told_grid)
        if preprocessing is not None:
            layer.preprocessing = Preprocessing.of(preprocessing)
        layer.frozen = frozen
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
            **arguments,
            **self.adapted.get(name, {}),
        }
        layer = keras.layers.Dense(units, use_bias=use_bias, name=name, **arguments)
        layer.build(input_shape)
        return layer


def tell_grid(layer: keras.layers.Layer, rows: int, columns: int, num_prefix_tokens: int) -> None:
    """Call `set_grid` of every layer in `layer` that has it, which its config then tells, too."""
    for one in sublayers(layer):
        if hasattr(one, "set_grid"):
            one.set_grid((rows, columns), num_prefix_tokens)
            layer.told_grid = (rows, columns, num_prefix_tokens)


def frozen_layers(layer: keras.layers.Layer) -> dict[str, bool]:
    """Return the layers inside that are frozen, or trained, unlike the layer that they are in.

    The result has `trainable` by path, such as `"attn/qkv"`, outer layers first.
    """
    inner = _inner_layers(layer)
    return {
        path: one.trainable
        for path, (one, owner) in inner.items()
        if one.trainable != owner and one.weights
    }


def freeze_layers(layer: keras.layers.Layer, trainable: bool, frozen: dict[str, bool]) -> None:
    """Freeze or train a built layer, and the layers inside it as `frozen_layers` recorded."""
    if not trainable:
        # Each, as a frozen layer of TensorFlow's does not pass on to those inside what it has.
        for one in sublayers(layer):
            one.trainable = False
    inner = _inner_layers(layer)
    for path, value in frozen.items():
        if path in inner:
            inner[path][0].trainable = value


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


def _arguments_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return the arguments of a layer of Keras that count once it is built; dtype if quantized."""
    if isinstance(layer, keras.Model) or not type(layer).__module__.startswith("keras."):
        return {}
    names = {*arguments(type(layer)), *(["dtype"] if layer.quantization_mode else [])}
    names -= {name for name in names if name.endswith("_initializer")}
    return {name: value for name, value in layer.get_config().items() if name in names}


def _freezing(build: Callable[..., None]) -> Callable[..., None]:
    """Let `build` change and freeze the layers that it makes as they were when it was saved."""

    @functools.wraps(build)
    def build_and_freeze(self, *args, **kwargs):
        build(self, *args, **kwargs)
        track(self)
        made = []
        for child in children(self):
            changes = self.adapted.get(child.name, {})
            if changes and not isinstance(child, (Layer, keras.layers.Dense)):
                twin = type(child).from_config({**child.get_config(), **changes})
                for name in changes:
                    setattr(child, name, getattr(twin, name))
            given = _arguments_of(child).items()
            made.append((child.name, {name: value for name, value in given if name not in changes}))
        self.made = tuple(made)
        freeze_layers(self, self.trainable, self.frozen)

    return build_and_freeze


def check_layers(argument: str, layers: Any) -> list[keras.layers.Layer]:
    """Return an argument that is a list of layers, as a list."""
    is_list = isinstance(layers, (list, tuple))
    if not is_list or not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError(f"`{argument}` must be a list of layers. Received: {layers!r}.")
    return list(layers)


def is_own(layer: keras.layers.Layer) -> bool:
    """Return whether a layer's class is one of this package."""
    return type(layer).__module__.partition(".")[0] == __name__.partition(".")[0]


def build_all(
    layers: Sequence[keras.layers.Layer],
    shape: tuple,
    argument: str = "layers",
    free_axis: int | None = 1,
) -> tuple:
    """Build layers, each for the output of the one before; return the last output's shape.

    Raises a ValueError, which names `argument` and the layer, if a user's layer fails, or any layer
    changes the shape, but for the size of `free_axis`.
    """
    for layer in layers:
        received = f"Received: {type(layer).__name__} {layer.name!r}, which"
        try:
            layer.build(shape)
            run = layer if is_own(layer) else _Traced(layer)
            found = tuple(run.compute_output_spec(keras.KerasTensor(shape)).shape)
        except Exception as error:
            if is_own(layer):
                raise
            # Keras hides a layer's error behind ones about `call` and `compute_output_spec`.
            while error.__suppress_context__ and error.__context__ and not error.__cause__:
                error = error.__context__
            raise ValueError(
                f"`{argument}` must run on inputs of shape {shape}. "
                f"{received} raised {type(error).__name__}: {error}."
            ) from error
        kept = list(shape)
        if free_axis is not None and len(found) == len(kept):
            kept[free_axis] = found[free_axis]
        if found != tuple(kept):
            but = "" if free_axis is None else f", but for axis {free_axis}"
            raise ValueError(
                f"`{argument}` must keep the shape of the input{but}. "
                f"{received} returns {found} for {shape}."
            )
        shape = found
    return shape


class _Traced(keras.Operation):
    """A call of a layer, whose output shape is traced, whatever the layer states."""

    def __init__(self, layer: keras.layers.Layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        y = self.layer(x)
        if not hasattr(y, "shape"):
            raise TypeError(f"`call` must return a tensor, not {type(y).__name__}")
        return y
