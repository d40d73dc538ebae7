"""The MLP of a block, and the MLP across tokens that replaces attention in Mixer."""

from collections.abc import Sequence
from functools import partial

import keras

from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, build_all, register


def quick_gelu(x):
    r"""Return $x \sigma(1.702 x)$, OpenAI's GELU (CLIP)."""
    return x * ops.sigmoid(1.702 * x)


GELUS = {
    "gelu": ops.gelu,
    "gelu_tanh": partial(keras.activations.gelu, approximate=True),
    "quick_gelu": quick_gelu,
}


@register
class MLP(Layer):
    r"""Two Dense layers on each token: $y = \phi(x W_1 + b_1) W_2 + b_2$.

    Input and output: `(batch, tokens, dim)`.

    Args:
        mlp_ratio: Ratio of the hidden width, at least 1, to `dim`; the product is rounded down.
        activation: $\phi$, a name known to `keras.activations`. `"gelu"` is the exact form with the
            error function, as in the papers' code; `"gelu_tanh"` (SigLIP 2) and
            `"quick_gelu"` (CLIP) approximate it.
        dropout: Dropout rate of hidden units and outputs in training.
        on_input: Layers over tokens, run first.
        on_hidden: Layers over the hidden tokens, run after the activation.
        on_output: Layers over tokens, run last.
        hidden: Hidden width, in place of `mlp_ratio`.
        initialization: Initial weights, as in `keras_vitx.layers.initializers`.
        gated: Whether $\phi(x W_1 + b_1)$ is multiplied by another $x W_v + b_v$ (SwiGLU, Shazeer,
            2020, arXiv 2002.05202); `fc1` holds both.
        use_bias: Whether there are $b_1$, $b_2$ and $b_v$.
    """

    def __init__(
        self,
        mlp_ratio: float = 4.0,
        activation: str = "gelu",
        dropout: float = 0.0,
        on_input: Sequence[keras.layers.Layer] = (),
        on_hidden: Sequence[keras.layers.Layer] = (),
        on_output: Sequence[keras.layers.Layer] = (),
        hidden: int | None = None,
        initialization: str = "normal",
        gated: bool = False,
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_ratio = mlp_ratio
        self.hidden = hidden
        self.activation = activation
        self.gated = gated
        self.dropout = dropout
        self.on_input = list(on_input)
        self.on_output = list(on_output)
        self.on_hidden = list(on_hidden)
        self.initialization = initialization
        self.use_bias = use_bias
        self.act = GELUS.get(activation) or keras.activations.get(activation)
        self.drop = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, input_shape):
        dim = input_shape[-1]
        hidden = int(dim * self.mlp_ratio) if self.hidden is None else self.hidden
        inner = (*input_shape[:-1], hidden)
        units, act = (2 * hidden, None) if self.gated else (hidden, self.act)
        self.fc1 = self.dense(units, "fc1", input_shape, self.use_bias, activation=act)
        self.fc2 = self.dense(dim, "fc2", inner, self.use_bias)
        build_all(self.on_input, input_shape)
        build_all(self.on_hidden, inner)
        build_all(self.on_output, input_shape)

    def call(self, x, training=False):
        x = self.run_all(self.on_input, x, training)
        x = self.run(self.fc1, x, training)
        if self.gated:
            gate, x = ops.split(x, 2, axis=-1)
            x = self.act(gate) * x
        x = self.run_all([self.drop, *self.on_hidden, self.fc2, self.drop], x, training)
        return self.run_all(self.on_output, x, training)


@register
class TokenMixing(Layer):
    """An MLP across the tokens, the same for all channels: MLP-Mixer (Tolstikhin et al., 2021).

    Input and output: `(batch, tokens, dim)` with a fixed number of tokens.

    Args:
        hidden: Hidden width.
        dropout, initialization: As in `MLP`.
    """

    def __init__(self, hidden: int, dropout: float = 0.0, initialization: str = "normal", **kwargs):
        super().__init__(**kwargs)
        self.hidden = hidden
        self.dropout = dropout
        self.initialization = initialization
        form = {"dropout": dropout, "initialization": initialization, "dtype": self.dtype_policy}
        self.mlp = MLP(hidden=hidden, **form, name="mlp")

    def build(self, input_shape):
        batch, tokens, dim = input_shape
        self.mlp.build((batch, dim, tokens))

    def call(self, x, training=False):
        y = self.run(self.mlp, ops.transpose(x, (0, 2, 1)), training)
        return ops.transpose(y, (0, 2, 1))
