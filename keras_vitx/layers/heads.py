"""Heads with several classifiers. They compute in float32 in every precision."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register


class SeveralHeads(Layer):
    r"""Several classifiers of one image, combined into one prediction.

    The layer is a plain function of the tokens, in training too: it returns the prediction
    $\phi(z)$, with $z$ the combined logits. With `return_parts=True` it returns the outputs
    of the individual classifiers instead, $\phi$ of the logits of each, by name; the
    training loss compares these with the labels. A subclass lists its classifiers and
    defines `parts` and `prediction`.

    Attributes:
        names: Names of the classifiers, as in the checkpoints. The first one, `"head"`,
            classifies the class token.
        loss_weights: Weight of each classifier's loss in the training loss.
    """

    names: tuple[str, ...] = ()
    loss_weights: dict[str, float] = {}

    def __init__(self, classes: int, activation: str | Callable | None = None, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.classes = classes
        self.activation = activation
        self.act = keras.activations.get(activation)

    def build(self, input_shape):
        for name in self.names:
            head = self.dense(self.classes, name)
            head.build((None, input_shape[-1]))
            setattr(self, name, head)

    def parts(self, x: Any) -> dict[str, Any]:
        """Return the logits of each classifier, by name."""
        raise NotImplementedError

    def prediction(self, parts: dict[str, Any]) -> Any:
        """Combine the logits of the parts to those of the prediction, `(batch, classes)`."""
        raise NotImplementedError

    def call(self, x, return_parts=False):
        parts = self.parts(x)
        if return_parts:
            return {name: self.act(part) for name, part in parts.items()}
        return self.act(self.prediction(parts))

    def weighted_loss(
        self,
        loss: keras.losses.Loss,
        labels: Any,
        parts: dict[str, Any],
        sample_weight: Any = None,
    ) -> Any:
        r"""Return the training loss, $\sum_i w_i \, \mathrm{loss}_i(y_i, \hat y_i)$ over the parts.

        Args:
            loss: The loss of every part. Its attributes `losses` and `weights`, if any, are
                dictionaries with the loss and the weight of individual parts
                (`keras_vitx.training.PerHead`).
            labels: The labels of the images, used for all parts; or a dictionary with
                `"head"` and labels of other parts. A missing part uses those of `"head"`.
            parts: The outputs of the classifiers, by name.
            sample_weight: Weight per image, `(batch,)`; or a dictionary of such weights, as
                for labels.

        Raises:
            ValueError: if a dictionary lacks `"head"` or names a part that does not exist.
        """
        weights = {**self.loss_weights, **getattr(loss, "weights", {})}
        losses = getattr(loss, "losses", {})
        labels, sample_weight = self.by_name(labels), self.by_name(sample_weight)
        total = 0.0
        for name, part in parts.items():
            label = labels[name] if name in labels else _for_every_patch(labels["head"], part)
            each = sample_weight.get(name, sample_weight["head"])
            if each is not None and len(each.shape) == 1:
                each = _for_every_patch(each, part)
            total = total + weights[name] * losses.get(name, loss)(label, part, each)
        return total

    def by_name(self, values: Any) -> dict[str, Any]:
        """Return labels or sample weights as a dictionary by the names of the classifiers.

        Raises:
            ValueError: if a dictionary lacks `"head"` or names a part that does not exist.
        """
        if not isinstance(values, dict):
            return {"head": values}
        if "head" not in values or not set(values) <= set(self.names):
            raise ValueError(
                "A dictionary of labels or sample weights must have 'head', and no names but "
                f"{', '.join(map(repr, self.names))}. Received: {sorted(values)}."
            )
        return values


@register
class DistilledHead(SeveralHeads):
    r"""DeiT's head: one classifier of the class token and one of the distillation token.

    DeiT (Touvron et al., 2021), Section 3. The parts are $z_0 = x_0 W_0 + b_0$ (`head`) and
    $z_1 = x_1 W_1 + b_1$ (`head_dist`); the prediction is $y = \phi((z_0 + z_1) / 2)$. The
    training loss is $\frac12 \mathrm{loss}(z_0, \text{label}) + \frac12
    \mathrm{loss}(z_1, \text{teacher's label})$; without a teacher, both parts are trained
    on the label of the image.

    Input: `(batch, tokens, dim)`, the class and the distillation token first.
    Output: `(batch, classes)`; with `return_parts=True`, a dictionary of two such tensors.

    Args:
        classes: Number of classes.
        activation: $\phi$; None gives logits.
    """

    names = ("head", "head_dist")
    loss_weights = {"head": 0.5, "head_dist": 0.5}

    def parts(self, x):
        return {"head": self.head(x[:, 0]), "head_dist": self.head_dist(x[:, 1])}

    def prediction(self, parts):
        return (parts["head"] + parts["head_dist"]) / 2


@register
class DenseHead(SeveralHeads):
    r"""Refined-ViT's dense head: one classifier of the class token and one of the patches.

    The parts are $z_0 = x_0 W + b$ (`head`) and $z_i = x_i W' + b'$ for each patch $i$
    (`aux_head`); the prediction is $y = \phi(z_0 + \frac12 \max_i z_i)$. The training loss
    is that of token labeling (Jiang et al., 2021), $\mathrm{loss}(z_0, \text{label}) +
    \frac12 \mathrm{mean}_i \mathrm{loss}(z_i, \text{label}_i)$; without patch labels, every
    patch is trained on the label of the image.

    Input: `(batch, 1 + patches, dim)`, class token first. Output: `(batch, classes)`;
    with `return_parts=True`, a dictionary of `head`, `(batch, classes)`, and `aux_head`,
    `(batch, patches, classes)`.

    Args:
        classes: Number of classes.
        activation: $\phi$; None gives logits.
    """

    names = ("head", "aux_head")
    loss_weights = {"head": 1.0, "aux_head": 0.5}

    def parts(self, x):
        return {"head": self.head(x[:, 0]), "aux_head": self.aux_head(x[:, 1:])}

    def prediction(self, parts):
        return parts["head"] + ops.max(parts["aux_head"], axis=1) / 2


def _for_every_patch(values, part):
    """Repeat `(batch, ...)` to `(batch, patches, ...)` if `part` has one output per patch."""
    if len(part.shape) < 3:
        return values
    return ops.repeat(ops.expand_dims(values, 1), part.shape[1], axis=1)
