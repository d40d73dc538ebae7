"""The one model class: an ordered list of layers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vitx.keras_internals import with_public_optimizers
from keras_vitx.layers.base import register, serialize
from keras_vitx.layers.heads import SeveralHeads
from keras_vitx.models import depth
from keras_vitx.preprocessing import Preprocessing


class Tokens(NamedTuple):
    """The tokens that a layer of a `Chain` returns, `(batch, prefix tokens + patches, dim)`.

    Attributes:
        name: Name of the layer.
        grid: Rows and columns of the patches, which are the last tokens, row by row. None
            before a layer that knows them.
        num_prefix_tokens: Leading tokens that are no patches (class and distillation
            tokens); None where the grid is.
        carries_maps: Whether the layer returns a pair: the tokens, and attention maps
            for the next block.
    """

    name: str
    grid: tuple[int, int] | None
    num_prefix_tokens: int | None
    carries_maps: bool


@register
class Chain(keras.Model):
    """A network that is a list of layers, run in order.

    It is a functional Keras model (`summary()`, `get_layer`, and features cut out with
    `keras.Model(m.input, m.get_layer("blocks_7").output)` work), saved as its list of
    layers.

    Input: images `(batch, height, width, channels)`. Output: that of the last layer. Where
    that joins several heads (`DistilledHead`, `DenseHead`), `fit` and `train_on_batch` train
    each of them, see `compute_loss`. A training loop of your own gets the outputs of the
    heads by name from `model(images, training=True, return_parts=True)`. Inside another
    model it is the prediction that is trained.

    As everywhere in Keras, the argument `training` switches dropout, stochastic depth and
    normalization by batch. PyTorch's `model.train()` and `model.eval()` have no effect:
    write `model(images, training=True)` in a training loop of your own.

    Args:
        layers: The layers, unbuilt and with distinct names.
        input_shape: `(height, width, channels)` of an image.
        family: Name of the family function that made the list.
        preprocessing: How images are prepared: a `Preprocessing`, or a dictionary of
            its attributes.
        class_names: Names of the classes, in the order of the outputs.
        scan: Whether training runs equal blocks as one loop where that pays
            (under JAX). The results are the same.
        remat: Whether training keeps only the input of each layer and computes
            the rest again in the backward pass: less memory, one more forward pass.
        input_tensor: A `keras.Input` to use instead of a new one.
        name: Name of the model.
        dtype: Precision of the model; the layers have their own.
    """

    def __init__(
        self,
        layers: Sequence[keras.layers.Layer],
        input_shape: tuple[int, int, int],
        family: str | None = None,
        preprocessing: Preprocessing | dict[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        scan: bool = True,
        remat: bool = False,
        input_tensor: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **kwargs,
    ):
        images = keras.Input(input_shape, name="images") if input_tensor is None else input_tensor
        x = images
        for layer in layers:
            x = layer(x)
        super().__init__(inputs=images, outputs=x, name=name, **kwargs)
        if dtype is not None:
            self.dtype_policy = dtype
        # The layers cast for themselves; the loop over depth has to see the
        # variables as they are stored.
        self.autocast = False
        self.family = family
        self.preprocessing = preprocessing
        self.class_names = None if class_names is None else tuple(class_names)
        self.scan = scan
        self.remat = remat
        self._in_train_step = False

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How images are prepared; a dictionary that is assigned becomes a `Preprocessing`."""
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | dict[str, Any] | None):
        self._preprocessing = None if value is None else Preprocessing.of(value)

    @property
    def steps(self) -> list[keras.layers.Layer]:
        """The list of layers."""
        return [layer for layer in self.layers if not isinstance(layer, keras.layers.InputLayer)]

    @property
    def token_layout(self) -> list[Tokens]:
        """What the tokens after each layer are, for the layers that return tokens.

        The number of leading tokens may change from layer to layer (CaiT, ConViT), and so
        may the grid (PiT). A head on the patches of `include_top=False`:

        ```python
        *_, last = model.token_layout
        patches = model.output[:, last.num_prefix_tokens :]
        features = keras.layers.Reshape((*last.grid, patches.shape[-1]))(patches)
        ```
        """
        layout, grid = [], None
        for step in self.steps:
            # What makes patches, or fewer of them, has the grid that it gives.
            grid = getattr(step, "new_grid", getattr(step, "grid", grid))
            outputs = keras.tree.flatten(step.output)
            if len(outputs[0].shape) != 3:
                continue
            count = outputs[0].shape[1]
            prefix = None if None in (grid, count) else count - grid[0] * grid[1]
            layout.append(Tokens(step.name, grid, prefix, len(outputs) > 1))
        return layout

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of patches after the last block; None in a network without tokens."""
        layout = self.token_layout
        return layout[-1].grid if layout else None

    def call(self, inputs, training=None, mask=None, return_parts=None):
        images = ops.convert_to_tensor(keras.tree.flatten(inputs)[0], dtype=self.inputs[0].dtype)
        *body, head = self.steps
        in_parts = self._in_train_step if return_parts is None else return_parts
        in_parts = in_parts and training and isinstance(head, SeveralHeads)
        steps = body if in_parts else [*body, head]
        x, losses = depth.run(steps, images, bool(training), self.scan, self.remat)
        for loss in losses:
            # A functional model's own `add_loss` raises.
            keras.layers.Layer.add_loss(self, loss)
        return head(x, return_parts=True) if in_parts else x

    def train_step(self, *args, **kwargs):
        """Run one step of `fit` or `train_on_batch`, in which `call` returns parts."""
        self._in_train_step = True
        try:
            return super().train_step(*args, **kwargs)
        finally:
            self._in_train_step = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the loss as compiled; in training, of each of several heads.

        Args:
            x: Images; they have no effect.
            y: Labels; for a model with several heads (`DistilledHead`, `DenseHead`) also a
                dictionary of them, see `SeveralHeads.weighted_loss`.
            y_pred: What `call` returned.
            sample_weight: `(batch,)`, the weight of each image.
            training: Whether this is a training pass; it has no effect.
        """
        head = self.steps[-1]
        several = isinstance(head, SeveralHeads)
        if not (several and isinstance(y_pred, dict) and self.loss is not None):
            y, sample_weight = self._of_class(y), self._of_class(sample_weight)
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        total = head.weighted_loss(_as_object(self.loss), y, y_pred, sample_weight)
        # Regularization, once, however many heads there are.
        for added in self.losses:
            total = total + ops.sum(ops.cast(added, total.dtype))
        return total

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics; in training, of several heads they see that of the class token."""
        values = (self._of_class(value) for value in (y, y_pred, sample_weight))
        return super().compute_metrics(x, *values)

    def _of_class(self, values):
        head = self.steps[-1]
        return head.by_name(values)["head"] if isinstance(head, SeveralHeads) else values

    def get_compile_config(self) -> dict[str, Any]:
        """Return how the model was compiled, in a form that every backend reads."""
        return _portable(super().get_compile_config())

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model as `config` says, which any backend may have written."""
        super().compile_from_config(_portable(config))

    def get_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to make an equal model with new weights."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "layers": serialize(self.steps),
            "input_shape": self.input_shape[1:],
            "family": self.family,
            "preprocessing": self.preprocessing and self.preprocessing.to_dict(),
            "class_names": self.class_names and list(self.class_names),
            "scan": self.scan,
            "remat": self.remat,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> "Chain":
        """Make the model that `config` describes."""
        with keras.saving.custom_object_scope(custom_objects or {}):
            return cls(
                **{
                    name: keras.saving.deserialize_keras_object(value)
                    for name, value in config.items()
                }
            )


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a compile config without what holds for one backend only.

    Keras writes whether it compiled, which it does under JAX but not under PyTorch.
    """
    config = with_public_optimizers(config)
    return {**config, "jit_compile": "auto"} if "jit_compile" in config else config


def _as_object(loss: Any) -> keras.losses.Loss:
    """Return the compiled loss as an object that averages over a batch.

    Raises:
        ValueError: when there are several, as for a model with several outputs.
    """
    losses = keras.tree.flatten(loss)
    if len(losses) != 1:
        raise ValueError(
            "`loss` must be one loss: each head of the model takes it. For a loss per head, give "
            f"`keras_vitx.training.PerHead`. Received: {loss!r}."
        )
    loss = keras.losses.get(losses[0])
    return loss if isinstance(loss, keras.losses.Loss) else _Mean(loss)


class _Mean(keras.losses.Loss):
    """The mean of a loss function over a batch, weighted by sample."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)
