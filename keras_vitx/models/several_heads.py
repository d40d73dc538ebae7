"""Training on several outputs or several labels, and MixToken.

A model whose head has several classifiers (`DistilledHead`, `DenseHead`) returns one prediction.
In the steps of `fit`, it returns the outputs of all classifiers by name, and each is compared
with its labels. The prediction of one classifier may be compared with several labels, too.

MixToken (Jiang et al., 2021) exchanges the patches in a box with those of the batch in reverse
order, after the patch embedding. The class is that of both images, by the share of the area;
every patch keeps the label of its own image: its output is exchanged back before the loss.
Unlike CutMix, no patch sees pixels of two images. The batches choose the box, and pass it with
the labels (`keras_vitx.training.MixToken`), so that a step is a function of its batch alone, and
inference and saved files are as without it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from keras import ops

from keras_vitx.classifier import kind_of
from keras_vitx.layers import ops as layer_ops
from keras_vitx.layers.heads import SeveralHeads
from keras_vitx.losses import FunctionLoss, PerHead, as_loss

BOX = "mix_token"
"""Name of the box among the labels: bool `(batch, rows * columns)`, the same for all images."""

Layers = list[keras.layers.Layer]


class TrainsHeads:
    """The part of a model with `steps` that trains several heads; `Chain` inherits it."""

    _after_forward = None

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

    def call_heads(self, inputs: Any, return_parts: bool | None) -> Any:
        """Run the layers in training; return the outputs of several heads by name.

        Args:
            inputs: Images; or a dictionary of them, as `train_step` makes it.
            return_parts: Whether there is an output per head; None means in a dictionary only.
        """
        images, box = _unpack(inputs)
        x, (*body, head) = self.as_images(images), self.steps
        if box is not None:
            embedding = next((i for i, one in enumerate(body) if hasattr(one, "new_grid")), None)
            if embedding is None:
                raise ValueError("MixToken exchanges patches: the model has no patch embedding.")
            x = exchange(self.run(body[: embedding + 1], x, True), box)
            body = body[embedding + 1 :]
        if return_parts is None:
            return_parts = isinstance(inputs, dict)
        x = self.run(body, x, True)
        with _without_activation(head) if self._takes_logits() else contextlib.nullcontext():
            if return_parts and isinstance(head, SeveralHeads):
                return head(x, return_parts=True)
            output = self.run([head], x, True)
        return {"head": output} if self._takes_logits() else output

    def train_step(self, *args):
        """Run a step of `fit` or `train_on_batch`.

        In it, the images come in a dictionary, with the box of MixToken if there is one; `call`
        then returns one output per head: logits, if the loss has a form for them.
        """
        # The batch is the last argument; under JAX, the state comes before it.
        *state, batch = args
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        box = {BOX: y[BOX]} if isinstance(y, dict) and BOX in y else {}
        if box or isinstance(self.steps[-1], SeveralHeads) or self._loss_of_logits():
            x = {self.inputs[0].name: keras.tree.flatten(x)[0], **box}
        with contextlib.ExitStack() as self._after_forward:
            try:
                return super().train_step(*state, (x, y, sample_weight))
            finally:
                self._after_forward = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        r"""Return the compiled loss; in training, the weighted sum of the losses of all heads.

        With MixToken, and $s$ the area of the box, the loss of an output is $(1 - s)\,
        \mathrm{loss}(y, \hat y) + s\, \mathrm{loss}(y', \hat y)$ with $y'$ the labels in
        reverse order, which for a cross entropy is the loss of the mixed label.

        Args:
            x: The inputs, of which only MixToken's box is used.
            y: Labels; or a dictionary of labels with `"head"`, the labels of the class. For a
                model with several heads (`DistilledHead`, `DenseHead`), the other names are
                those of its heads; a missing one is trained on the labels of `"head"`. For a
                model with one classifier, they are those of the losses (`PerHead`).
            y_pred: Output of `call`.
            sample_weight: `(batch,)`, the weight of each image; or a dictionary, as for labels.
            training: Whether this is a training pass. In evaluation, only `"head"` counts.

        Raises:
            ValueError: if a dictionary of labels does not suit the heads or the loss.
        """
        if self._after_forward is not None:
            # For the rest of the step: the loss, the metrics and the optimizer.
            self._after_forward.enter_context(layer_ops.numbers_on_device())
        labels, weights = self._by_name(y), self._by_name(sample_weight)
        box = _unpack(x)[1]
        several = isinstance(y_pred, dict) or (training and (len(labels) > 1 or box is not None))
        if not several or self.loss is None:
            return super().compute_loss(x, labels["head"], y_pred, weights["head"], training)
        loss = self._loss_of_logits() if self._takes_logits() else self.loss
        loss = loss if isinstance(loss, PerHead) else PerHead({"head": as_loss(loss)})
        if isinstance(y_pred, dict) and not isinstance(self.steps[-1], SeveralHeads):
            y_pred = y_pred["head"]
        outputs = y_pred
        if not isinstance(y_pred, dict):
            if not set(labels) <= set(loss.losses):
                raise ValueError(
                    "`y` must have no names but those of the losses for a model with one "
                    "classifier: compile it with a dictionary of losses, or a "
                    f"`keras_vitx.losses.PerHead`. Received: labels {sorted(labels)}, and "
                    f"losses for {sorted(loss.losses)}."
                )
            outputs = dict.fromkeys(labels, y_pred)
        elif box is not None and "aux_head" in y_pred:
            outputs = {**y_pred, "aux_head": exchange(y_pred["aux_head"], box)}
        factors = {**getattr(self.steps[-1], "loss_weights", {}), **loss.weights}
        total = 0.0
        for name, output in outputs.items():
            compare = loss.losses.get(name, loss.losses["head"])
            label, weight = (
                values[name] if name in values else _for_every_patch(values["head"], output)
                for values in (labels, weights)
            )
            if weight is not None and len(weight.shape) == 1:
                weight = _for_every_patch(weight, output)
            # The patches keep the labels of their own images.
            if box is None or name == "aux_head":
                value = compare(label, output, weight)
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
        """Update the metrics, on the labels of the class and the output of its head.

        With MixToken, the labels are those of the images that cover the larger part.
        """
        label, box = self._by_name(y)["head"], _unpack(x)[1]
        if box is not None:
            own = ops.expand_dims(_share(box) <= 0.5, list(range(1, len(label.shape))))
            label = ops.where(own, label, ops.flip(label, 0))
        output = y_pred
        if isinstance(y_pred, dict):
            output = y_pred["head"]
            if self._loss_of_logits():
                output = getattr(self.steps[-1], _activation_of(self.steps[-1]))(output)
        return super().compute_metrics(x, label, output, self._by_name(sample_weight)["head"])

    def _loss_of_logits(self) -> keras.losses.Loss | None:
        """Return the compiled loss as one of logits, or None if the head or the loss has none.

        Near 0 and 1, probabilities in float32 lose what their logits tell.
        """
        name = _activation_of(self.steps[-1])
        return name and _of_logits(self.loss, kind_of(getattr(self.steps[-1], name)))

    def _takes_logits(self) -> bool:
        """Return whether this is a step of `fit` whose loss takes logits."""
        return self._after_forward is not None and self._loss_of_logits() is not None

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
    """Exchange the patches in the box with those of the batch in reverse order.

    Args:
        patches: `(batch, rows * columns, dim)`.
        box: `(batch, rows * columns)`.
    """
    return ops.where(ops.cast(box, "bool")[..., None], ops.flip(patches, axis=0), patches)


def _of_logits(loss: Any, activation: str | None) -> keras.losses.Loss | None:
    """Return a loss of probabilities as the same one of logits, or None."""
    if isinstance(loss, PerHead):
        losses = {name: _of_logits(each, activation) for name, each in loss.losses.items()}
        return None if None in losses.values() else PerHead(losses, loss.weights)
    if activation is None or getattr(loss, "activation", None) != activation or loss.from_logits:
        return None
    return type(loss).from_config({**loss.get_config(), "from_logits": True})


def _activation_of(head: keras.layers.Layer) -> str | None:
    """Return the name of the attribute of a head that is its activation."""
    return next((name for name in ("act", "activation") if hasattr(head, name)), None)


@contextlib.contextmanager
def _without_activation(head: keras.layers.Layer) -> Iterator[None]:
    name = _activation_of(head)
    activation = getattr(head, name)
    setattr(head, name, keras.activations.linear)
    try:
        yield
    finally:
        setattr(head, name, activation)


def _unpack(inputs: Any) -> tuple[Any, Any]:
    """Return the images of the inputs of a model, and MixToken's box or None."""
    if not isinstance(inputs, dict):
        return keras.tree.flatten(inputs)[0], None
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
