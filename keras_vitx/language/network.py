"""BERT, with any attention of the package."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vitx.language.embedding import TextEmbedding, check_length
from keras_vitx.layers import MLP, Attention, PostNormBlock
from keras_vitx.layers.initializers import truncated_normal


def BERT(
    dim: int,
    depth: int,
    num_heads: int,
    mlp_ratio: float = 4.0,
    embedding_dim: int | None = None,
    vocabulary: int = 30522,
    positions: int = 512,
    dropout: float = 0.1,
    attention: Callable[[int], keras.layers.Layer] | None = None,
    length: int | None = None,
    name: str = "bert",
) -> keras.Model:
    r"""The encoder of BERT (Devlin et al., 2019): post-norm blocks over embedded tokens.

    With another `embedding_dim` than `dim`, it is the encoder of ELECTRA, whose small size is
    the BERT-small of Refiner, Section 4.5. Padding is masked as a key and as a query, which
    keeps it out of convolutions over maps, too.

    Input: a dictionary, as of `encode`: `"ids"` and `"segments"`, integers
    `(batch, tokens)`, and `"mask"`, the same shape, 1 where there is a token and 0 for padding.
    Output: `(batch, tokens, dim)`.

    Args:
        dim: Width of a token.
        depth: Number of blocks.
        num_heads: Number of heads.
        mlp_ratio: Ratio of the hidden width of the MLP to `dim`.
        embedding_dim: Width of the embeddings; None is `dim`, without a projection.
        vocabulary: Number of token ids.
        positions: Largest number of tokens.
        dropout: Dropout rate of the embeddings, of the maps and of both branches.
        attention: A function from the index of a block to its attention; None is `Attention`.
            `lambda index: RefinedAttention(4)` is the refiner of Section 4.5.
        length: Number of tokens of all inputs, for an attention that depends on it
            (`PositionalAttention(num_heads, grid=(1, length))`); None is any.
        name: Name of the model.

    Raises:
        ValueError: if `num_heads` does not divide `dim`, if `length` is above `positions`, or
            if the attention needs carried maps.
    """

    def plain(index):
        return Attention(num_heads, dropout=dropout, proj_dropout=dropout)

    check_length(length, positions)
    inputs = {
        part: keras.Input((length,), dtype="int32", name=part)
        for part in ("ids", "segments", "mask")
    }
    x = TextEmbedding(
        vocabulary, dim, embedding_dim or dim, positions, dropout=dropout, name="embedding"
    )((inputs["ids"], inputs["segments"]))
    real = ops.cast(inputs["mask"], "bool")
    pairs = ops.logical_and(ops.expand_dims(real, 1), ops.expand_dims(real, 2))
    for index in range(depth):
        chosen = (attention or plain)(index)
        if getattr(chosen, "reads_maps", False):
            raise ValueError(
                "`attention` must not need carried maps. "
                f"Received: {type(chosen).__name__} for block {index}."
            )
        mlp = MLP(mlp_ratio, on_output=[keras.layers.Dropout(dropout, name="drop")])
        block = PostNormBlock(chosen, mlp, epsilon=1e-12, name=f"blocks_{index}")
        x = block(x, attention_mask=pairs)
    return keras.Model(inputs, x, name=name)


def BERT_Small(**arguments: Any) -> keras.Model:
    """BERT-small of Refiner, Section 4.5, Table 6: 12 blocks, 256 wide, 13.5 M parameters.

    4 heads, an MLP of 1,024, embeddings of 128. Refiner adds to the 13.5 M 288 weights per block.

    Args:
        **arguments: Arguments of `BERT`, such as `attention=lambda index: RefinedAttention(4)`.
    """
    sizes = {"dim": 256, "depth": 12, "num_heads": 4, "embedding_dim": 128, "name": "bert_small"}
    return BERT(**{**sizes, **arguments})


def classifier(network: keras.Model, classes: int, dropout: float = 0.1) -> keras.Model:
    r"""Add the head of a task on whole texts to an encoder: $W_2\,\mathrm{GELU}(W_1 x_0)$.

    $x_0$ is the first token, `[CLS]`; both layers have biases, as in ELECTRA.

    Args:
        network: A model of `BERT`; its weights are shared, not copied.
        classes: Number of classes; 1 for a regression such as STS-B.
        dropout: Dropout rate before each layer.

    Returns:
        A model from the inputs of `network` to logits, or a value, `(batch, classes)`, in float32.
    """
    x = network.output[:, 0]
    for units, activation, name in ((x.shape[-1], "gelu", "pool"), (classes, None, "logits")):
        x = keras.layers.Dropout(dropout, name=f"{name}_drop")(x)
        x = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=truncated_normal(),
            dtype="float32" if name == "logits" else None,
            name=name,
        )(x)
    return keras.Model(network.input, x, name=f"{network.name}_classifier")


def check_batch(network: keras.Model, batch: dict[str, Any]) -> None:
    """Check encoded texts against the embedding of a network.

    Raises:
        ValueError: if texts are longer than the positions, an id is not in the vocabulary, or
            the network is none of `BERT`.
    """
    layers = getattr(network, "layers", ())
    embedding = next((layer for layer in layers if isinstance(layer, TextEmbedding)), None)
    if embedding is None:
        name = getattr(network, "name", network)
        raise ValueError(f"`network` must be a model of `language.BERT`. Received: {name!r}.")
    ids = batch["ids"]
    check_length(ids.shape[1], embedding.positions)
    if ids.size and not 0 <= ids.min() <= ids.max() < embedding.vocabulary:
        raise ValueError(
            f"Token ids must be below {embedding.vocabulary}, the vocabulary of the network. "
            f"Received: ids from {ids.min()} to {ids.max()}. Is it another tokenizer's network?"
        )
