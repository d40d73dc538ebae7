"""Heads with several classifiers. They compute in float32 where others do in half precision."""

from collections.abc import Callable

import keras

from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, at_least_float32, register


class MultiHead(Layer):
    r"""Several classifiers of one image, combined into one prediction.

    It returns the prediction $\phi(z)$, with $z$ the combined logits, in training, too; with
    `by_head=True`, $\phi$ of the logits of each classifier, by name, for the training loss. A
    subclass defines `logits_by_head(x)`; `prediction(logits)`, which combines them; `loss_weights`;
    and `names`, as in the checkpoints, of which the first is `"head"`, the class token's.
    """

    names: tuple[str, ...] = ()
    loss_weights: dict[str, float] = {}

    def __init__(
        self,
        classes: int,
        activation: str | Callable | None = None,
        initialization: str = "normal",
        **kwargs,
    ):
        super().__init__(**{**kwargs, "dtype": at_least_float32(kwargs.get("dtype"))})
        self.classes = classes
        self.activation = activation
        self.initialization = initialization

    def build(self, input_shape):
        for name in self.names:
            setattr(self, name, self.dense(self.classes, name, (None, input_shape[-1])))

    def call(self, x, by_head=False):
        logits, activation = self.logits_by_head(x), keras.activations.get(self.activation)
        if by_head:
            return {name: activation(each) for name, each in logits.items()}
        return activation(self.prediction(logits))


@register
class DistilledHead(MultiHead):
    r"""DeiT's head: one classifier of the class token and one of the distillation token.

    DeiT (Touvron et al., 2021), Section 3. The logits are $z_0 = x_0 W_0 + b_0$ (`head`) and
    $z_1 = x_1 W_1 + b_1$ (`head_dist`); the prediction is $y = \phi((z_0 + z_1) / 2)$. The training
    loss is $\frac12 \mathrm{loss}(z_0, \text{label}) + \frac12 \mathrm{loss}(z_1,
    \text{teacher's label})$; without a teacher, both heads are trained on the label of the image.

    Input: `(batch, tokens, dim)`, the class and the distillation token first.
    Output: `(batch, classes)`; with `by_head=True`, a dictionary of two such tensors.

    Args:
        classes: Number of classes.
        activation: $\phi$; None gives logits.
        initialization: Initial weights, as in `keras_vitx.layers.initializers`.
    """

    names = ("head", "head_dist")
    loss_weights = {"head": 0.5, "head_dist": 0.5}

    def logits_by_head(self, x):
        return {
            "head": self.run(self.head, x[:, 0]),
            "head_dist": self.run(self.head_dist, x[:, 1]),
        }

    def prediction(self, logits):
        return (logits["head"] + logits["head_dist"]) / 2


@register
class DenseHead(MultiHead):
    r"""Refined-ViT's dense head: one classifier of the class token and one of the patches.

    The logits are $z_0 = x_0 W + b$ (`head`) and $z_i = x_i W' + b'$ for each patch $i$
    (`aux_head`); the prediction is $y = \phi(z_0 + \frac12 \max_i z_i)$. The training loss is that
    of token labeling (Jiang et al., 2021), $\mathrm{loss}(z_0, \text{label}) + \frac12
    \mathrm{mean}_i \mathrm{loss}(z_i, \text{label}_i)$; without patch labels, every patch is
    trained on the label of the image.

    Input: `(batch, 1 + patches, dim)`, class token first. Output: `(batch, classes)`; with
    `by_head=True`, a dictionary of `head`, `(batch, classes)`, and `aux_head`,
    `(batch, patches, classes)`.

    Args:
        classes, activation, initialization: As in `DistilledHead`.
    """

    names = ("head", "aux_head")
    loss_weights = {"head": 1.0, "aux_head": 0.5}

    def logits_by_head(self, x):
        return {"head": self.run(self.head, x[:, 0]), "aux_head": self.run(self.aux_head, x[:, 1:])}

    def prediction(self, logits):
        return logits["head"] + ops.max(logits["aux_head"], axis=1) / 2
