"""Claims of the papers that are theorems: each is computed both ways, and the difference printed.

    KERAS_BACKEND=torch python benchmarks/exact_claims.py

Nothing is trained. A claim holds if the two sides differ by rounding; float32 has about 1e-7.
"""

import keras
import numpy as np
from keras import ops

from keras_vitx import layers
from keras_vitx.analysis import measures

RANDOM = np.random.default_rng(0)
BATCH, TOKENS, HEADS, DIM = 2, 17, 4, 32


def tokens(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape or (BATCH, TOKENS, DIM)).astype("float32")


def softmax_maps() -> np.ndarray:
    logits = np.exp(tokens(BATCH, HEADS, TOKENS, TOKENS))
    return logits / logits.sum(-1, keepdims=True)


def difference(first, second) -> float:
    """Return the largest difference, relative to the largest value."""
    first, second = map(ops.convert_to_numpy, (first, second))
    return float(np.abs(first - second).max() / np.abs(second).max())


def randomize(layer: keras.layers.Layer) -> None:
    for variable in layer.weights:
        variable.assign(0.5 * tokens(*variable.shape))


def local_then_global() -> float:
    """Values are summed over neighboring keys, then aggregated; rows of neighbors are added."""
    maps, values = softmax_maps(), tokens(BATCH, HEADS, TOKENS, DIM)
    layer = layers.LocalMapConvolution(3)
    refined = layer(maps)
    kernel = ops.convert_to_numpy(layer.kernel)[:, 0]
    padded = np.pad(values, ((0, 0), (0, 0), (1, 1), (0, 0)))
    rows = np.pad(maps, ((0, 0), (0, 0), (1, 1), (0, 0)))
    total = 0
    for a in range(3):
        # The value of a key, seen through the kernel: that of its neighbors, weighted.
        local = sum(
            kernel[:, a, b, None, None] * padded[:, :, 2 - b : 2 - b + TOKENS] for b in range(3)
        )
        total = total + rows[:, :, a : a + TOKENS] @ local
    return difference(ops.matmul(refined, values), total)


def broadcasting_before_the_last_layer() -> float:
    """Nothing between the activation and the end of an MLP is nonlinear."""
    x = tokens()
    middle = layers.MLP(4.0, on_hidden=[layers.ContextBroadcasting()])
    end = layers.MLP(4.0, on_output=[layers.ContextBroadcasting()])
    middle(x), end(x)
    randomize(end)
    for one, other in zip(middle.weights, end.weights, strict=True):
        one.assign(other)
    return difference(middle(x), end(x))


def scales_fold() -> float:
    """A scale per channel after a linear layer is one of its columns and of its bias."""
    x, dense = tokens(), keras.layers.Dense(DIM)
    scale = layers.LayerScale(0.1)
    scale(dense(x))
    randomize(dense), randomize(scale)
    kernel, bias, factor = map(ops.convert_to_numpy, (dense.kernel, dense.bias, scale.weights[0]))
    return difference(scale(dense(x)), x @ (kernel * factor) + bias * factor)


def identity_re_attention() -> float:
    """With an identity for its matrix, re-attention leaves the maps."""
    maps, layer = softmax_maps(), layers.ReAttention(normalize=False)
    layer(maps)
    kernel, bias = layer.reatten_matrix.weights
    kernel.assign(np.eye(HEADS).reshape(kernel.shape))
    bias.assign(np.zeros(HEADS))
    return difference(layer(maps), maps)


def steepest_when_uniform() -> float:
    """The nuclear norm of the softmax's Jacobian is 1 - 1/T at uniform rows, and nowhere more."""
    uniform = np.full((TOKENS, TOKENS), 1 / TOKENS)
    largest = 1 - 1 / TOKENS
    assert np.max(measures.steepness(softmax_maps())) < largest
    return difference(measures.steepness(uniform), largest)


CLAIMS = (
    ("Convolving maps aggregates locally, then globally", "Refiner, 3.3", local_then_global),
    (
        "Context Broadcasting in the middle of an MLP equals that at its end",
        "Context Broadcasting, B.5",
        broadcasting_before_the_last_layer,
    ),
    ("LayerScale folds into the layer before it", "CaiT, 2", scales_fold),
    ("Re-attention with the identity is attention", "DeepViT, 4.2", identity_re_attention),
    (
        "The softmax is steepest at uniform attention",
        "Context Broadcasting, 2.1",
        steepest_when_uniform,
    ),
)


def additional_layers() -> tuple[float, float]:
    """Return parameters and operations of an attention minus an MLP of ratio 2.5, in millions.

    The width is 384 (ViT_S); an operation is a multiply-add, or an entry of a softmax.
    """
    heads, count, dim = 6, 197, 384
    attention, mlp = layers.Attention(heads), layers.MLP(2.5)
    for layer in (attention, mlp):
        layer.build((None, count, dim))
    parameters = attention.count_params() - mlp.count_params()
    operations = count * 4 * dim**2 + count**2 * (2 * dim + heads) - count * 5 * dim**2
    return parameters / 1e6, operations / 1e6


def rows() -> list[str]:
    """Return a table of the claims and the relative differences of their two sides."""
    lines = ["| claim | where | difference |", "|---|---|---|"]
    lines += [f"| {name} | {where} | {claim():.1e} |" for name, where, claim in CLAIMS]
    parameters, operations = additional_layers()
    return [
        *lines,
        "\nContext Broadcasting, footnote of Figure 2: an additional attention has 0.15 M",
        "parameters fewer and 0.99 M FLOPs more than an additional MLP. For width 384 and an MLP",
        f"of ratio 2.5, the differences are {parameters:+.3f} M and {operations:+.3f} M.",
    ]


if __name__ == "__main__":
    print("\n".join(rows()))
