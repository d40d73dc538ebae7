"""`Chain`, the model class of all families: an ordered list of layers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vitx.keras_internals import compile_arguments, with_added, with_public_optimizers
from keras_vitx.layers.base import register, serialize
from keras_vitx.layers.heads import SeveralHeads
from keras_vitx.models import depth, mix_token
from keras_vitx.models.resize import at_size
from keras_vitx.preprocessing import Preprocessing


class Tokens(NamedTuple):
    """Layout of the tokens `(batch, prefix tokens + patches, dim)` that a layer returns.

    Attributes:
        name: Name of the layer.
        grid: Rows and columns of the patches, which are the last tokens, in row-major order.
            None if no layer so far defines a grid.
        num_prefix_tokens: Number of leading tokens that are not patches (class and
            distillation tokens); None if `grid` is None.
        carries_maps: Whether the layer returns a pair of tokens and carried maps (the
            attention maps passed to the next block).
    """

    name: str
    grid: tuple[int, int] | None
    num_prefix_tokens: int | None
    carries_maps: bool


@register
class Chain(keras.Model):
    """A model made of a list of layers that run in order.

    It is a functional Keras model: `summary()`, `get_layer` and feature extraction with
    `keras.Model(m.input, m.get_layer("blocks_7").output)` work as usual. It is serialized
    as its list of layers.

    Input: images `(batch, height, width, channels)`. Output: the output of the last layer.
    If that layer combines several heads (`DistilledHead`, `DenseHead`), `fit` and
    `train_on_batch` train each of them; see `compute_loss`. In a custom training loop,
    `model(images, training=True, return_parts=True)` returns the outputs of the heads by
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
        scan: Whether training runs identical blocks as one loop where that is faster
            (under JAX). The results are the same.
        remat: Whether training keeps only the input of each layer and recomputes the
            rest in the backward pass, which saves memory at the cost of one more forward
            pass.
        input_tensor: A `keras.Input` to use instead of a new one.
        name: Name of the model.
        dtype: Dtype policy of the model; the layers have their own.
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
        # Each layer casts its own inputs and variables; the loop over depth needs the
        # variables in their storage dtype.
        self.autocast = False
        self.family = family
        self.preprocessing = preprocessing
        self.class_names = None if class_names is None else tuple(class_names)
        self.scan = scan
        self.remat = remat
        self._in_train_step = False

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Preprocessing of the images; an assigned dictionary is converted to a `Preprocessing`."""
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
        for step in self.steps:
            # Patch embeddings and token downsampling define the grid of their output.
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
        """Rows and columns of patches after the last block; None for a network without tokens."""
        layout = self.token_layout
        return layout[-1].grid if layout else None

    def at_size(self, size: tuple[int, int]) -> "Chain":
        """Return a copy for images of another `(height, width)`, with resampled positions.

        All other weights are the same. The copy is not compiled.

        Raises:
            ValueError: if the network does not fit that size, or has weights that depend on
                it (Mixer's).
        """
        return at_size(self, size)

    def call(self, inputs, training=None, mask=None, return_parts=None):
        images = ops.convert_to_tensor(keras.tree.flatten(inputs)[0], dtype=self.inputs[0].dtype)
        *body, head = self.steps
        in_parts = self._in_train_step if return_parts is None else return_parts
        in_parts = in_parts and training and isinstance(head, SeveralHeads)
        steps = body if in_parts else [*body, head]
        how = bool(training), self.scan, self.remat, self.compute_dtype
        box, losses = mix_token.box_of(self) if training else None, []
        if box is not None:
            embedding, steps = mix_token.at_embedding(steps)
            images, losses = depth.run(embedding, images, *how)
            images = mix_token.exchanged(images, box)
        x, added = depth.run(steps, images, *how)
        for loss in [*losses, *added]:
            # `add_loss` of a functional model raises.
            keras.layers.Layer.add_loss(self, loss)
        if not in_parts:
            return x
        parts = head(x, return_parts=True)
        if box is not None and "aux_head" in parts:
            parts["aux_head"] = mix_token.exchanged(parts["aux_head"], box)
        return parts

    def train_step(self, *args):
        """Run a step of `fit` or `train_on_batch`.

        In it, `call` returns one output per head, and MixToken exchanges patches if the labels
        have a box (`keras_vitx.training.MixToken`).
        """
        self._in_train_step = True
        try:
            # The batch is the last argument; under JAX, the state comes before it.
            with mix_token.mixing(self, args[-1]):
                return super().train_step(*args)
        finally:
            self._in_train_step = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the compiled loss; in training, the weighted sum of the losses of all heads.

        Args:
            x: Images (unused).
            y: Labels; or a dictionary of labels with `"head"`, the labels of the class. For a
                model with several heads (`DistilledHead`, `DenseHead`), the other names are
                those of its heads, see `SeveralHeads.weighted_loss`. For a model with one
                classifier, a loss such as `keras_vitx.training.PerHead` compares its
                predictions with each of the labels, in training.
            y_pred: Output of `call`.
            sample_weight: `(batch,)`, the weight of each image.
            training: Whether this is a training pass. In evaluation, only `"head"` counts.

        Raises:
            ValueError: if a dictionary of labels does not suit the heads or the loss, or the
                model was compiled with `loss_weights`.
        """
        y, box = mix_token.separate(y)
        several = isinstance(y_pred, dict) or (
            training and (isinstance(y, dict) or box is not None)
        )
        if not several or self.loss is None:
            y, sample_weight = self._of_class(y), self._of_class(sample_weight)
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        _check_no_weights(compile_arguments(self).get("loss_weights"))
        if box is None:
            total = self._compare(y, y_pred, sample_weight)
        else:
            total = mix_token.mixed_loss(self._compare, y, y_pred, sample_weight, box)
        # Regularization losses are added once, not per head.
        return with_added(self, total, self.losses)

    def _compare(self, y, y_pred, sample_weight):
        """Return the compiled loss of the outputs of all heads, or of one output and all labels."""
        loss = _as_object(self.loss)
        if isinstance(y_pred, dict):
            return self.steps[-1].weighted_loss(loss, y, y_pred, sample_weight)
        if isinstance(y, dict):
            _check_labels(y, loss)
        return loss(y, y_pred, self._of_class(sample_weight))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics, on the labels of the class and the output of its head."""
        y, box = mix_token.separate(y)
        y = self._of_class(y)
        if box is not None and mix_token.box_of(self) is not None:
            y = mix_token.main_labels(y, box)
        return super().compute_metrics(x, y, self._of_class(y_pred), self._of_class(sample_weight))

    def _of_class(self, values):
        head = self.steps[-1]
        if isinstance(head, SeveralHeads):
            return head.by_name(values)["head"]
        return values.get("head") if isinstance(values, dict) else values

    def get_compile_config(self) -> dict[str, Any]:
        """Return the compile config, in a form that every backend can read."""
        return _portable(super().get_compile_config())

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model from a config, written under any backend."""
        super().compile_from_config(_portable(config))

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal model with new weights."""
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
        """Make a model from its config."""
        with keras.saving.custom_object_scope(custom_objects or {}):
            return cls(
                **{
                    name: keras.saving.deserialize_keras_object(value)
                    for name, value in config.items()
                }
            )


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a compile config without its backend-specific settings.

    Keras stores the resolved `jit_compile`, which is true under JAX but not under PyTorch.
    """
    config = with_public_optimizers(config)
    return {**config, "jit_compile": "auto"} if "jit_compile" in config else config


def _check_labels(labels: dict[str, Any], loss: keras.losses.Loss) -> None:
    """Check that `loss` compares the predictions of one classifier with each of the labels."""
    losses = getattr(loss, "losses", ())
    if "head" not in labels or not set(labels) <= set(losses):
        raise ValueError(
            "A dictionary of labels for a model with one classifier must have 'head', and the "
            "loss must be a `keras_vitx.training.PerHead` with a loss for each of the labels. "
            f"Received: labels {sorted(labels)}, and {type(loss).__name__} with losses for "
            f"{sorted(losses)}."
        )


def _check_no_weights(weights: Any) -> None:
    """Raise a ValueError for `loss_weights`, which Keras applies to outputs, not to heads."""
    if weights is not None:
        raise ValueError(
            "`loss_weights` must be None where a model is trained on several predictions or labels. "
            'Give loss=keras_vitx.training.PerHead({"head": loss}, weights={...}). '
            f"Received: {weights!r}."
        )


def _as_object(loss: Any) -> keras.losses.Loss:
    """Return the compiled loss as an object that averages over a batch.

    Raises:
        ValueError: if there are several losses, as for a model with several outputs.
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
        # TensorFlow allows no scope that begins with an underscore, as the class's name does.
        super().__init__(name="mean")
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)
