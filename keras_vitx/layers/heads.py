"""Heads with several classifiers. They compute in float32 where others do in half precision."""

from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, at_least_float32, register


class MultiHead(Layer):
    """Several classifiers of one image.

    It returns the combined logits; with `by_head=True`, those of each classifier, by name, for the
    training loss. A subclass defines `combine(logits)`, `loss_weights`, and the `tokens` that each
    classifier reads, by its name in the checkpoints; the first is `"head"`, the class token's.
    """

    tokens: dict[str, int | slice] = {}
    loss_weights: dict[str, float] = {}

    def __init__(self, classes: int, initialization: str = "normal", **kwargs):
        super().__init__(**{**kwargs, "dtype": at_least_float32(kwargs.get("dtype"))})
        self.classes = classes
        self.initialization = initialization

    def build(self, input_shape):
        for name in self.tokens:
            setattr(self, name, self.dense(self.classes, name, (None, input_shape[-1])))

    def call(self, x, by_head=False):
        read = {name: x[:, tokens] for name, tokens in self.tokens.items()}
        logits = {name: self.run(getattr(self, name), part) for name, part in read.items()}
        return logits if by_head else self.combine(logits)


@register
class DistilledHead(MultiHead):
    r"""DeiT's head: one classifier of the class token and one of the distillation token.

    DeiT (Touvron et al., 2021), Section 3. The logits are $z_0 = x_0 W_0 + b_0$ (`head`) and
    $z_1 = x_1 W_1 + b_1$ (`head_dist`), combined $(z_0 + z_1) / 2$. The training
    loss is $\frac12 \mathrm{loss}(z_0, \text{label}) + \frac12 \mathrm{loss}(z_1,
    \text{teacher's label})$; without a teacher, both heads are trained on the label of the image.

    Input: `(batch, tokens, dim)`, the class and the distillation token first.
    Output: `(batch, classes)`; with `by_head=True`, a dictionary of two such tensors.

    Args:
        classes: Number of classes.
        initialization: Initial weights, as in `keras_vitx.layers.initializers`.
    """

    tokens = {"head": 0, "head_dist": 1}
    loss_weights = {"head": 0.5, "head_dist": 0.5}

    def combine(self, logits):
        return (logits["head"] + logits["head_dist"]) / 2


@register
class DenseHead(MultiHead):
    r"""Refined-ViT's dense head: one classifier of the class token and one of the patches.

    The logits are $z_0 = x_0 W + b$ (`head`) and $z_i = x_i W' + b'$ for each patch $i$
    (`aux_head`), combined $z_0 + \frac12 \max_i z_i$. The training loss is that
    of token labeling (Jiang et al., 2021), $\mathrm{loss}(z_0, \text{label}) + \frac12
    \mathrm{mean}_i \mathrm{loss}(z_i, \text{label}_i)$; without patch labels, every patch is
    trained on the label of the image.

    Input: `(batch, 1 + patches, dim)`, class token first. Output: `(batch, classes)`; with
    `by_head=True`, a dictionary of `head`, `(batch, classes)`, and `aux_head`,
    `(batch, patches, classes)`.

    Args:
        classes, initialization: As in `DistilledHead`.
    """

    tokens = {"head": 0, "aux_head": slice(1, None)}
    loss_weights = {"head": 1.0, "aux_head": 0.5}

    def combine(self, logits):
        return logits["head"] + ops.max(logits["aux_head"], axis=1) / 2
