"""`Chain`, the model class of all families: an ordered list of layers."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import keras
from keras import ops

from keras_vitx.backend import restore_variables
from keras_vitx.checks import Remat, check, check_argument
from keras_vitx.files import atomic_write
from keras_vitx.keras_internals import sublayers
from keras_vitx.layers.base import (
    at_least_float32,
    forget_programs,
    quantized_layers,
    register,
    serialize,
)
from keras_vitx.layers.beit import RelativePositionBias
from keras_vitx.layers.block import Block
from keras_vitx.layers.cait import ClassBlock
from keras_vitx.layers.heads import MultiHead
from keras_vitx.layers.preprocessing import ImagePreprocessing
from keras_vitx.layers.recording import Tensor
from keras_vitx.layers.tokens import PositionEmbedding
from keras_vitx.models import depth
from keras_vitx.models.arguments import drop_path_rates, to_python
from keras_vitx.models.multi_head import MultiHeadTraining
from keras_vitx.outputs import ACTIVATIONS
from keras_vitx.positions import Grid
from keras_vitx.preprocessing import Preprocessing
from keras_vitx.weights.convert import resampled
from keras_vitx.weights.names import weights_of


class Tokens(NamedTuple):
    """Layout of the tokens `(batch, prefix tokens + patches, dim)` that a layer returns.

    `grid` has the rows and columns of the patches, the last tokens, in row-major order; it and the
    number of prefix tokens are None before a layer defines a grid. A layer that `emits_maps`
    returns a pair of tokens and the attention maps for the next block.
    """

    name: str
    grid: Grid | None
    num_prefix_tokens: int | None
    emits_maps: bool


def _restore_after(method: Callable) -> Callable:
    """Return a method after which, even after an error, the variables are those of the model."""

    @functools.wraps(method)
    def run_method(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        finally:
            restore_variables(self)

    return run_method


class ImageModel(keras.Model):
    """A functional model of images that is made again from the arguments in its config.

    The arguments after `outputs` are those of `Chain`.
    """

    head_loaded = False  # Whether a file has set the weights of the head.
    compiles_blocks = False  # Whether each kind of block is a graph of PyTorch's.

    def __init__(
        self,
        inputs: Tensor,
        outputs: Tensor | list[Tensor],
        family: str | None = None,
        preprocessing: Preprocessing | dict[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        remat: Remat = False,
        size: str | None = None,
        arguments: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        # No other arguments: Keras would ignore them.
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        if dtype is not None:
            self.dtype_policy = dtype
        # Each layer casts its own inputs and variables.
        self.autocast = False
        self.family = family
        self._preprocessing = None
        if preprocessing is not None:
            self.preprocessing = preprocessing
        self.class_names = class_names
        self.remat = remat
        self.size = size
        # Text, as Keras would read names of classes in a dictionary of the config.
        self.arguments = arguments

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Preprocessing of the images; an assigned dictionary is converted to a `Preprocessing`.

        A model that begins with `ImagePreprocessing` takes pixels, and what is assigned is that of
        the network behind it: the layer takes over `mean` and `std`.
        """
        prepares = _prepares(self)
        return prepares.preprocessing if prepares else self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | dict[str, Any] | None):
        self._preprocessing = None if value is None else Preprocessing.of(value)
        if prepares := _prepares(self):
            prepares.preprocessing = self._preprocessing
            forget_programs(self)

    @property
    def network_preprocessing(self) -> Preprocessing | None:
        """Preprocessing of the images behind an `ImagePreprocessing` with which the model begins."""
        prepares = _prepares(self)
        return prepares.preprocessing_of_outputs if prepares else self._preprocessing

    @property
    def remat(self) -> Remat:
        """What training recomputes, as in `Chain`; it may be assigned."""
        return self._remat

    @remat.setter
    def remat(self, value: Remat):
        self._remat = check_argument("remat", value, Remat)
        forget_programs(self)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, in the order of the outputs; any sequence may be assigned."""
        return self._class_names

    @class_names.setter
    def class_names(self, value: Sequence[str] | None):
        is_list = not isinstance(value, (str, Mapping))
        check(is_list, "`class_names` must be a list of names, in the order of the outputs.", value)
        self._class_names = None if value is None else tuple(to_python(list(value)))

    @_restore_after
    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As Keras's `predict`; warns if pixels come where normalized images are expected."""
        if getattr(x, "dtype", None) == "uint8" and self.preprocessing and not _prepares(self):
            text = "`x` should be normalized, as by `kv.preprocess_input`. Received: uint8."
            warnings.warn(text, stacklevel=2)
        return super().predict(x, *args, **kwargs)

    def as_images(self, inputs: Tensor) -> Any:
        """Return the inputs of the model as one tensor of their dtype."""
        return ops.convert_to_tensor(keras.tree.flatten(inputs)[0], dtype=self.inputs[0].dtype)

    def run(self, layers: Sequence[keras.layers.Layer], x: Tensor, training: bool | None) -> Any:
        """Run layers of the model on images or on the output of the layer before."""
        about = bool(training), self.remat, self.compute_dtype, self.compiles_blocks
        x, losses = depth.run(layers, x, *about)
        for loss in losses:
            # `add_loss` of a functional model raises.
            keras.layers.Layer.add_loss(self, loss)
        return x

    evaluate = _restore_after(keras.Model.evaluate)

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """Save the model as Keras does; a `.keras` file is written beside `filepath`, then renamed.

        A kill, a full disk or a load meanwhile meets the old file or the new one, whole. A
        ValueError refuses the legacy format, which can't be read.
        """
        path = str(filepath)
        rule = "`filepath` must end in .keras; `save_weights` writes .weights.h5."
        check(not path.endswith((".h5", ".hdf5")), rule, path)
        is_local = path.endswith(".keras") and "hf://" not in path and zipped is not False
        if not is_local or (not overwrite and Path(path).exists()):
            return super().save(filepath, overwrite, zipped, **kwargs)
        with atomic_write(path) as temporary:
            super().save(temporary, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal model with new weights."""
        images, preprocessing = self.inputs[0], self.network_preprocessing
        optional = {"size": self.size, "arguments": self.arguments}
        return {name: value for name, value in optional.items() if value is not None} | {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "input_shape": images.shape[1:],
            "images": {
                "name": images.name,
                "batch_size": images.shape[0],
                "dtype": keras.backend.standardize_dtype(images.dtype),
            },
            "family": self.family,
            "preprocessing": preprocessing and preprocessing.to_dict(),
            "class_names": self.class_names and list(self.class_names),
            "remat": self.remat,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None):
        """Make a model from its config."""
        arguments = {
            name: keras.saving.deserialize_keras_object(value, custom_objects)
            for name, value in config.items()
        }
        trainable = arguments.pop("trainable", True)
        arguments.pop("scan", None)  # Of files written before blocks were calls.
        model = cls(**arguments)
        # The layers say what is frozen in them, also in a model that is frozen as a whole.
        flags = [(layer, layer.trainable) for layer in sublayers(model)[1:]]
        model.trainable = trainable
        for layer, is_trained in flags:
            layer.trainable = is_trained
        return model


@register
class Chain(MultiHeadTraining, ImageModel):
    """A model made of a list of layers that run in order.

    It is a functional Keras model: `summary()`, `get_layer` and feature extraction with
    `keras.Model(m.input, m.get_layer("blocks_7").output)` work as usual. It is serialized
    as its list of layers.

    Input: images `(batch, height, width, channels)`. Output: the output of the last layer.
    If that layer combines several heads (`DistilledHead`, `DenseHead`), `fit` and
    `train_on_batch` train each of them; see `compute_loss`. In a custom training loop,
    `model(images, training=True, by_head=True)` returns the logits of the heads by
    name. Inside another model, the combined prediction is trained.

    As always in Keras, the argument `training` switches dropout, stochastic depth and
    batch normalization. PyTorch's `model.train()` and `model.eval()` have no effect: call
    `model(images, training=True)` in a custom training loop.

    Args:
        layers: The layers, unbuilt and with distinct names.
        input_shape: Image shape, `(height, width, channels)`.
        family: Name of the family that listed the layers.
        preprocessing: Preprocessing of the images: a `Preprocessing`, or a dictionary of
            its attributes.
        class_names: Names of the classes, in the order of the outputs.
        remat: What training recomputes in the backward pass, to save memory: nothing (under JAX on
            a CPU `"products"`, where that is faster); `"products"`, all but products with weights
            and the outputs of attention (under JAX, elsewhere as True); True, all but the inputs of
            layers, at the cost of one more forward pass.
        size: Name of the constructor that made the model, which a weights file states.
        arguments: The arguments of the constructor, as JSON.
        images: Arguments of the `keras.Input`, such as `name`, `batch_size` and `dtype`.
        input_tensor: A `keras.Input` to use instead of a new one.
        dtype: Dtype policy of the model; the layers have their own.
        name: Name of the model.
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        input_shape: tuple[int, int, int],
        family: str | None = None,
        preprocessing: Preprocessing | dict[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        remat: Remat = False,
        size: str | None = None,
        arguments: str | None = None,
        images: dict[str, Any] | None = None,
        input_tensor: Tensor | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        repeated = [layer.name for index, layer in enumerate(layers) if layer in layers[:index]]
        if repeated:
            raise ValueError(f"`layers` must be distinct. Received: {repeated[0]!r} twice.")
        if input_tensor is None:
            precision = at_least_float32(layers[0].dtype_policy) if layers else None
            defaults = {"name": "images", "dtype": precision}
            input_tensor = keras.Input(input_shape, **defaults | (images or {}))
        x = input_tensor
        for layer in layers:
            x = layer(x)
        about = (family, preprocessing, class_names, remat, size, arguments, dtype, name)
        super().__init__(input_tensor, x, *about)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The list of layers, without the input layer."""
        return [x for x in self.operations if not isinstance(x, keras.layers.InputLayer)]

    @property
    def token_layout(self) -> list[Tokens]:
        """The token layout after each layer that returns tokens.

        Both the number of prefix tokens (CaiT, ConViT) and the grid (PiT) may change from
        layer to layer. A custom head on the patches of a model with `include_top=False`:

        ```python
        *_, last = model.token_layout
        patches = model.output[:, last.num_prefix_tokens :]
        features = keras.layers.Reshape((*last.grid, patches.shape[-1]))(patches)
        ```
        """
        layout, grid = [], None
        for step in self.layers:
            grid = grid_after(step, grid)
            outputs = keras.tree.flatten(step.output)
            if len(outputs[0].shape) != 3:
                continue
            count = outputs[0].shape[1]
            prefix = None if None in (grid, count) else count - grid[0] * grid[1]
            layout.append(Tokens(step.name, grid, prefix, len(outputs) > 1))
        return layout

    @property
    def grid(self) -> Grid | None:
        """Rows and columns of patches after the last block; None for a network without tokens."""
        layout = self.token_layout
        return layout[-1].grid if layout else None

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in order, class blocks included."""
        return [layer for layer in self.layers if isinstance(layer, Block)]

    def set_drop_path(self, rate: float, schedule: str = "linear") -> None:
        """Set the rate of stochastic depth of the blocks, in place.

        `"linear"` rises from 0 in the first block, `"constant"` is the same in all. Class blocks
        have none (CaiT). A model around this one that has run must be compiled again.
        """
        check_argument("rate", rate, Annotated[float, "[0, 1)"])
        check_argument("schedule", schedule, Literal["linear", "constant"])
        blocks = [block for block in self.blocks if not isinstance(block, ClassBlock)]
        rates = drop_path_rates(rate, len(blocks), schedule)
        for block, rate in zip(blocks, rates, strict=True):
            block.drop_path = rate
        forget_programs(self)

    def at_size(self, size: tuple[int, int], antialias: bool = True) -> "Chain":
        """Return a copy for images of another `(height, width)`, with resampled positions.

        Positions are resampled bicubically as in timm, or with `antialias=False` as in DeiT's code,
        which fine-tuned CaiT. All other weights are the same. The copy is not compiled.

        Raises:
            ValueError: if the network does not fit that size, or has weights that depend on
                it (Mixer's).
        """
        resized = self._at_size(size)
        changed = _of_other_shape(self, resized)
        if not changed and tuple(size) != self.input_shape[1:3]:
            # Weights for as many patches in another grid fit, and yet depend on it.
            changed = _of_other_shape(self, self._at_size((2 * size[0], size[1])))
        for old, new in zip(weights_of(self), weights_of(resized), strict=True):
            (before, path, layer), (after, _, its_layer) = old, new
            values = ops.convert_to_numpy(before)
            if before.path in changed:
                follows = isinstance(layer, (PositionEmbedding, RelativePositionBias))
                rule = f"`size` must be {self.input_shape[1:3]}: the weight {path!r} depends on it."
                check(follows, rule, tuple(size))
                values = resampled(its_layer, values, tuple(layer.grid), antialias)
            after.assign(values)
        return resized

    def _at_size(self, size: tuple[int, int]) -> "Chain":
        """Return a new model of the same layers for images of another `(height, width)`."""
        shape = (*map(int, size), self.input_shape[-1])
        config = self.get_config()
        prepares = _prepares(self)
        x = keras.Input(shape, dtype=self.inputs[0].dtype)
        grid = None
        for index, layer in enumerate(config["layers"]):
            if self.layers[index] is prepares and prepares.size == self.input_shape[1:3]:
                layer["config"]["size"] = shape[:2]
            config["layers"][index] = _with_grid(layer, grid)
            layer = keras.saving.deserialize_keras_object(config["layers"][index])
            x = layer(x)
            grid = grid_after(layer, grid)
        return self.from_config({**config, "input_shape": shape})

    @property
    def logit_layers(self) -> list[keras.layers.Layer]:
        """The layers without the last one, if that is the activation of the classifier."""
        *body, last = self.layers
        return body if isinstance(last, ACTIVATIONS) else self.layers

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the classifiers of a head that combines several; empty for another."""
        head = self.logit_layers[-1]
        return tuple(head.tokens) if isinstance(head, MultiHead) else ()

    def get_compile_config(self) -> dict[str, Any]:
        """Return the compile config, in a form that every backend can read."""
        return _portable(super().get_compile_config())

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model from a config that `get_compile_config` wrote under any backend."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        # Not before `compile`: the values of its variables are loaded next.
        self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal model with new weights."""
        quantized_layers(self)  # Refuses LoRA on a quantized head, a layer of Keras.
        return {**super().get_config(), "layers": serialize(self.layers)}


def _prepares(model: ImageModel) -> ImagePreprocessing | None:
    """Return the `ImagePreprocessing` with which a model begins, if any."""
    first = model.operations[1:2]
    return first[0] if first and isinstance(first[0], ImagePreprocessing) else None


def grid_after(layer: keras.layers.Layer, grid: Grid | None) -> Grid | None:
    """Return the rows and columns of the patches that `layer` returns, given those before it."""
    return getattr(layer, "new_grid", getattr(layer, "grid", grid))


def _of_other_shape(model: Chain, other: Chain) -> set[str]:
    """Return the paths of the weights that have another shape in a model of the same layers."""
    pairs = zip(model.weights, other.weights, strict=True)
    return {variable.path for variable, resized in pairs if variable.shape != resized.shape}


def _with_grid(config: object, grid: Grid | None) -> Any:
    """Return a serialized layer with another grid, wherever it has one."""
    if isinstance(config, (list, tuple)):
        return [_with_grid(part, grid) for part in config]
    if not isinstance(config, dict):
        return config
    changed = {key: _with_grid(value, grid) for key, value in config.items()}
    return {**changed, "grid": grid} if config.get("grid") else changed


def _portable(config: object) -> Any:
    """Return a compile config, or a part of it, without its backend-specific settings.

    Those are `jit_compile`, which Keras stores resolved, and PyTorch's own optimizer classes.
    """
    if isinstance(config, (list, tuple)):
        return [_portable(item) for item in config]
    if not isinstance(config, dict):
        return config
    config = {key: _portable(value) for key, value in config.items()}
    if "jit_compile" in config:
        config["jit_compile"] = "auto"
    module = str(config.get("module"))
    if module.startswith("keras.") and ".torch.optimizers" in module:
        config.update(module="keras.optimizers", registered_name=None)
    return config
