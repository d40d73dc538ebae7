"""The token-wise part of a block."""

import keras

from keras_vitx.layers.base import Layer, register


@register
class MLP(Layer):
    r"""Two Dense layers on each token: $y = \phi(x W_1 + b_1) W_2 + b_2$.

    Input and output: `(..., dim)`; the hidden width is `int(mlp_ratio * dim)`.

    Args:
        mlp_ratio: Hidden width over `dim`.
        activation: $\phi$, a name that `keras.activations` knows. `"gelu"` is the
            exact form, with the error function, as the papers' code has it.
        dropout: Rate at which hidden units and outputs are dropped in training.
    """

    def __init__(
        self, mlp_ratio: float = 4.0, activation: str = "gelu", dropout: float = 0.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.mlp_ratio = mlp_ratio
        self.activation = activation
        self.dropout = dropout
        self.act = keras.activations.get(activation)
        self.drop = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        dim = input_shape[-1]
        hidden = int(dim * self.mlp_ratio)
        self.fc1 = self.dense(hidden, "fc1")
        self.fc2 = self.dense(dim, "fc2")
        self.fc1.build(input_shape)
        self.fc2.build((*input_shape[:-1], hidden))

    def call(self, x, training=False):
        x = self.drop(self.act(self.fc1(x)), training=training)
        return self.drop(self.fc2(x), training=training)
