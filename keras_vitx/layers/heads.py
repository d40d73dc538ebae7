"""Classifiers that read more than one token. They run in float32 in every precision."""

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register


class SeveralHeads(Layer):
    """Several classifiers, and what becomes of their logits.

    Attributes:
        names: Names of the classifiers, which are the checkpoints'.
    """

    names: tuple[str, ...] = ()

    def __init__(self, classes: int, activation: str | None = None, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.classes = classes
        self.activation = activation
        self.act = keras.activations.get(activation)

    def build(self, input_shape):
        for name in self.names:
            head = self.dense(self.classes, name)
            head.build((None, input_shape[-1]))
            setattr(self, name, head)


@register
class DistilledHead(SeveralHeads):
    r"""One classifier a class token, averaged: DeiT's, with a distillation token.

    $y = \phi((x_0 W_1 + b_1 + x_1 W_2 + b_2) / 2)$, in training too.

    Input: `(batch, tokens, dim)`, the class and the distillation token first.
    Output: `(batch, classes)`.

    Args:
        classes: Number of classes.
        activation: $\phi$; None gives logits.
    """

    names = ("head", "head_dist")

    def call(self, x):
        return self.act((self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2)


@register
class DenseHead(SeveralHeads):
    r"""A classifier of the class token and one of every patch: Refined-ViT's dense head.

    At inference $y = \phi(x_0 W + b + \frac12 \max_i(x_i W' + b'))$, the maximum over
    patches; in training $y = \phi(x_0 W + b)$, as in the public code, whose training
    gives the classifier of patches labels of its own.

    Input: `(batch, 1 + patches, dim)`, the class token first. Output:
    `(batch, classes)`.

    Args:
        classes: Number of classes.
        activation: $\phi$; None gives logits.
    """

    names = ("head", "aux_head")

    def call(self, x, training=False):
        logits = self.head(x[:, 0])
        if not training:
            logits = logits + ops.max(self.aux_head(x[:, 1:]), axis=1) / 2
        return self.act(logits)
