"""The embedding of texts: tokens, positions and segments."""

import keras
from keras import ops

from keras_vitx.layers.base import Layer, register


@register
class TextEmbedding(Layer):
    r"""The sum of the embeddings of tokens, positions and segments, normalized and projected.

    $$x_t = W\,\mathrm{LayerNorm}(E_{\text{id}_t} + P_t + S_{\text{segment}_t}) + b$$
    BERT (Devlin et al., 2019), with the factorization $W$ of ALBERT and ELECTRA where
    `embedding_dim` is not `dim`; else $x_t$ is the norm itself.

    Input: a pair of token ids and segments, integers `(batch, tokens)`.
    Output: `(batch, tokens, dim)`.

    Args:
        vocabulary: Number of token ids.
        dim: Width of the output.
        embedding_dim: Width of $E$, $P$ and $S$.
        positions: Largest number of tokens.
        segments: Number of segments: 2 for pairs of texts.
        dropout: Dropout rate of the normalized sum.
        epsilon: Epsilon of the norm.

    Raises:
        ValueError: at build and at the call, if there are more tokens than `positions`.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        embedding_dim: int,
        positions: int = 512,
        segments: int = 2,
        dropout: float = 0.0,
        epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary = vocabulary
        self.dim = dim
        self.embedding_dim = embedding_dim
        self.positions = positions
        self.segments = segments
        self.dropout = dropout
        self.epsilon = epsilon
        dtype = self.dtype_policy
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon, dtype=dtype, name="norm")
        self.drop = keras.layers.Dropout(dropout, dtype=dtype)

    def build(self, input_shape):
        start = keras.initializers.TruncatedNormal(stddev=0.02)
        width = self.embedding_dim
        self.tokens = self.add_weight(
            name="tokens", shape=(self.vocabulary, width), initializer=start.clone()
        )
        self.places = self.add_weight(
            name="positions", shape=(self.positions, width), initializer=start.clone()
        )
        self.kinds = self.add_weight(
            name="segments", shape=(self.segments, width), initializer=start.clone()
        )
        self.norm.build((None, None, width))
        self.proj = None
        if self.embedding_dim != self.dim:
            self.proj = self.dense(self.dim, "proj")
            self.proj.build((None, None, width))

    def compute_output_spec(self, x, training=False):
        check_length(x[0].shape[1], self.positions)
        return keras.KerasTensor((*x[0].shape, self.dim), dtype=self.compute_dtype)

    def call(self, x, training=False):
        ids, segments = x
        check_length(ids.shape[1], self.positions)
        y = ops.take(self.tokens, ids, axis=0) + ops.take(self.kinds, segments, axis=0)
        y = ops.cast(y + self.places[: ops.shape(ids)[1]], self.compute_dtype)
        y = self.run_in_training(self.drop, self.run(self.norm, y), training and self.dropout)
        return y if self.proj is None else self.run(self.proj, y)


def check_length(tokens: int | None, positions: int) -> None:
    """Check that texts are not longer than the positions.

    Raises:
        ValueError: if they are.
    """
    if tokens is not None and tokens > positions:
        raise ValueError(
            f"Texts must have at most {positions} tokens, the positions of the network. "
            f"Received: {tokens} tokens. Encode them with `length={positions}`."
        )
