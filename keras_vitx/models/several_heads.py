"""The training step of a `Chain`: several heads, several labels, and MixToken.

In a step of `fit`, the model returns the logits of every classifier by name, each compared with its
labels; otherwise, one prediction. MixToken's box comes with the labels
(`keras_vitx.training.MixToken`), so that a step is a function of its batch alone.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vitx.classifier import kind_of
from keras_vitx.layers import ops as layer_ops
from keras_vitx.layers.heads import SeveralHeads
from keras_vitx.losses import FunctionLoss, PerHead, as_loss

BOX = "mix_token"
"""Name of the box among the labels: bool `(batch, rows * columns)`, the same for all images."""


class TrainsHeads:
    """The part of a model with `steps` that trains several heads; `Chain` inherits it."""

    _step: contextlib.ExitStack | None = None

    @property
    def in_step(self) -> bool:
        """Whether this is a step of `fit` or `train_on_batch`."""
        return self._step is not None

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, *args, **kwargs):
        """Compile as Keras does; losses and their weights may be dictionaries (`PerHead`).

        Their names are those of the heads, or of the labels: `loss={"head": ..., "head_dist":
        ...}, loss_weights={"head": 0.5, "head_dist": 0.5}`.

        Raises:
            ValueError: if `loss_weights` is not a dictionary, or `loss` has none for `"head"`.
        """
        if loss_weights is not None and not isinstance(loss_weights, Mapping):
            raise ValueError(
                "`loss_weights` must be None or a dictionary by the names of the losses, as in "
                f"`PerHead`. Received: {loss_weights!r}."
            )
        if isinstance(loss, Mapping) or loss_weights is not None:
            losses = loss if isinstance(loss, Mapping) else {"head": loss}
            loss = PerHead({name: as_loss(each) for name, each in losses.items()}, loss_weights)
        super().compile(optimizer, loss, None, *args, **kwargs)

    def train_step(self, *args):
        """Run a step of `fit` or `train_on_batch`, in which `call` returns logits by head."""
        # The batch is the last argument; under JAX, the state comes before it.
        *state, batch = args
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if isinstance(y, dict) and BOX in y:
            x = {self.inputs[0].name: keras.tree.flatten(x)[0], BOX: y[BOX]}
        with contextlib.ExitStack() as step:
            step.callback(setattr, self, "_step", None)
            self._step = step
            return super().train_step(*state, (x, y, sample_weight))

    def logits_in_step(self, inputs: Any) -> dict[str, Any]:
        """Return the logits of each head by name; `inputs` may include MixToken's box."""
        images, box = _images_and_box(inputs)
        x, (*body, head) = self.as_images(images), self.steps
        if box is not None:
            embedding = next((i for i, one in enumerate(body) if hasattr(one, "new_grid")), None)
            if embedding is None:
                raise ValueError("MixToken exchanges patches: the model has no patch embedding.")
            x = exchange(self.run(body[: embedding + 1], x, True), box)
            body = body[embedding + 1 :]
        x = self.run(body, x, True)
        name, activation = _activation_of(head)
        if name is not None:
            setattr(head, name, keras.activations.linear)
        try:
            if isinstance(head, SeveralHeads):
                return head(x, return_parts=True)
            return {"head": self.run([head], x, True)}
        finally:
            if name is not None:
                setattr(head, name, activation)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        r"""Return the compiled loss; in training, the weighted sum of the losses of all heads.

        With MixToken, and $s$ the area of the box, the loss of an output is
        $(1 - s)\, \mathrm{loss}(y, \hat y) + s\, \mathrm{loss}(y', \hat y)$ with $y'$ the labels in
        reverse order, which for a cross entropy is the loss of the mixed label.

        Labels and sample weights, `(batch,)`, may be dictionaries with `"head"`, the only one that
        counts in evaluation. Other names are those of the model's heads, a missing one of which
        takes the labels of `"head"`; for a model with one classifier, those of the losses
        (`PerHead`). Others raise a ValueError.
        """
        head, box = self.steps[-1], _images_and_box(x)[1]
        labels, weights = self._by_name(y), self._by_name(sample_weight)
        outputs, loss, of_logits = y_pred, self.loss, None
        if not isinstance(y_pred, dict):
            outputs = {"head": y_pred}
        elif self.in_step:
            # For the rest of the step: the loss, the metrics and the optimizer.
            self._step.enter_context(layer_ops.numbers_on_device())
            activation = keras.activations.get(_activation_of(head)[1])
            # Near 0 and 1, probabilities in float32 lose what their logits tell.
            of_logits = _of_logits(loss, kind_of(activation))
            if of_logits is None:
                outputs = {name: activation(output) for name, output in y_pred.items()}
        is_plain = len(outputs) == 1 and box is None and (len(labels) == 1 or not training)
        if loss is None or (is_plain and of_logits is None):
            return super().compute_loss(
                x, labels["head"], outputs["head"], weights["head"], training
            )
        loss = of_logits or loss
        loss = loss if isinstance(loss, PerHead) else PerHead({"head": as_loss(loss)})
        if len(outputs) == 1:
            if not set(labels) <= set(loss.losses):
                raise ValueError(
                    "`y` must have no names but those of the losses for a model with one "
                    "classifier: compile it with a dictionary of losses, or a "
                    f"`keras_vitx.losses.PerHead`. Received: labels {sorted(labels)}, and "
                    f"losses for {sorted(loss.losses)}."
                )
            outputs = dict.fromkeys(labels, outputs["head"])
        factors = {**getattr(head, "loss_weights", {}), **loss.weights}
        total = 0.0
        for name, output in outputs.items():
            compare = loss.losses.get(name, loss.losses["head"])
            label, weight = (
                values[name] if name in values else _for_every_patch(values["head"], output)
                for values in (labels, weights)
            )
            if weight is not None and len(weight.shape) == 1:
                weight = _for_every_patch(weight, output)
            if box is None:
                value = compare(label, output, weight)
            elif name == "aux_head":
                # The patches keep the labels of their own images.
                value = compare(label, exchange(output, box), weight)
            else:
                share = _share(box)
                value = compare(label, output, _times(weight, 1 - share))
                value += compare(ops.flip(label, 0), output, _times(weight, share))
            total = total + factors.get(name, 1.0) * value
        for added in self.losses:
            # A loss scales by the number of replicas, as mirrored strategies expect.
            total = total + FunctionLoss(_second)(added, ops.sum(added))
        return total

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics of `"head"`; with MixToken, by the labels of the larger part."""
        label, box = self._by_name(y)["head"], _images_and_box(x)[1]
        if box is not None:
            own = ops.expand_dims(_share(box) <= 0.5, list(range(1, len(label.shape))))
            label = ops.where(own, label, ops.flip(label, 0))
        if isinstance(y_pred, dict):
            y_pred = y_pred["head"]
            if self.in_step:
                y_pred = keras.activations.get(_activation_of(self.steps[-1])[1])(y_pred)
        return super().compute_metrics(x, label, y_pred, self._by_name(sample_weight)["head"])

    def _by_name(self, values: Any) -> dict[str, Any]:
        """Return labels or sample weights by name, without the box."""
        if not isinstance(values, dict):
            return {"head": values}
        values = {name: value for name, value in values.items() if name != BOX}
        names = getattr(self.steps[-1], "names", None)
        if "head" not in values or (names and not set(values) <= set(names)):
            raise ValueError(
                "A dictionary of labels or sample weights must have 'head', and no names but "
                f"{', '.join(map(repr, names or ['those of the losses']))}. "
                f"Received: {sorted(values)}."
            )
        return values


def exchange(patches: Any, box: Any) -> Any:
    """Exchange the patches in the box, `(batch, patches)`, with those of the reversed batch."""
    return ops.where(ops.cast(box, "bool")[..., None], ops.flip(patches, axis=0), patches)


def _of_logits(loss: Any, activation: str | None) -> keras.losses.Loss | None:
    """Return a loss of probabilities as the same one of logits, or None."""
    if isinstance(loss, PerHead):
        losses = {name: _of_logits(each, activation) for name, each in loss.losses.items()}
        return None if None in losses.values() else PerHead(losses, loss.weights)
    if getattr(loss, "activation", None) != activation or loss.from_logits:
        return None
    return type(loss).from_config({**loss.get_config(), "from_logits": True})


def _activation_of(head: keras.layers.Layer) -> tuple[str | None, Any]:
    """Return the attribute of a head that is its softmax or sigmoid, and this; or None, linear."""
    for name in ("act", "activation"):
        activation = getattr(head, name, None)
        if kind_of(activation) in ("softmax", "sigmoid"):
            return name, activation
    return None, keras.activations.linear


def _images_and_box(inputs: Any) -> tuple[Any, Any]:
    """Return the images of the inputs of a model, and MixToken's box or None."""
    if not isinstance(inputs, dict):
        return inputs, None
    return next(value for name, value in inputs.items() if name != BOX), inputs.get(BOX)


def _share(box):
    """Return the fraction of the area in the box, `(batch,)`."""
    return ops.mean(ops.cast(box, "float32"), axis=-1)


def _times(weight, share):
    """Multiply weights per image, or per patch, by a share per image."""
    if weight is None:
        return share
    share = ops.expand_dims(share, list(range(1, len(weight.shape))))
    return ops.cast(weight, share.dtype) * share


def _for_every_patch(values, output):
    """Repeat `(batch, ...)` to `(batch, patches, ...)` if there is one output per patch."""
    if values is None or len(output.shape) < 3:
        return values
    return ops.repeat(ops.expand_dims(values, 1), output.shape[1], axis=1)


def _second(first, second):
    return second
