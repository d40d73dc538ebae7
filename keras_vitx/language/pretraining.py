"""Pre-training by masked tokens, on a text file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vitx.language.network import check_batch
from keras_vitx.language.optimizer import adamw
from keras_vitx.language.tokens import check_room
from keras_vitx.layers.base import register
from keras_vitx.layers.initializers import truncated_normal


@register
class MaskedLanguageModel(keras.Model):
    r"""Predicts masked tokens: $\mathrm{LayerNorm}(\mathrm{GELU}(W x_p + b))\,E^\top + c$.

    $p$ are the masked positions and $E$ the token embeddings of the network, as in BERT. The
    weights of `network` are shared: train this model, then use `network`.

    Input: a dictionary, that of the network with `"positions"`, integers `(batch, masked)`.
    Output: logits `(batch, masked, vocabulary)`, in float32.

    Args:
        network: A model of `BERT`.
    """

    def __init__(self, network: keras.Model, **kwargs):
        super().__init__(**kwargs)
        self.network = network
        self.embedding = network.get_layer("embedding")
        self.transform = keras.layers.Dense(
            self.embedding.embedding_dim,
            "gelu",
            kernel_initializer=truncated_normal(),
            name="transform",
        )
        self.norm = keras.layers.LayerNormalization(epsilon=1e-12, name="norm")
        self.transform.build(network.output.shape)
        self.norm.build((None, None, self.embedding.embedding_dim))
        self.bias = self.add_weight(
            name="bias", shape=(self.embedding.vocabulary,), initializer="zeros"
        )
        self.built = True

    def call(self, inputs, training=False):
        inputs = dict(inputs)
        positions = inputs.pop("positions")
        x = self.network(inputs, training=training)
        x = ops.take_along_axis(x, ops.expand_dims(positions, -1), axis=1)
        x = ops.cast(self.norm(self.transform(x)), "float32")
        table = ops.transpose(ops.cast(self.embedding.tokens, "float32"))
        return ops.matmul(x, table) + self.bias

    def get_config(self):
        network = keras.saving.serialize_keras_object(self.network)
        return {**super().get_config(), "network": network}

    @classmethod
    def from_config(cls, config):
        return cls(
            **{**config, "network": keras.saving.deserialize_keras_object(config["network"])}
        )


def read_text(path: str | Path, tokenizer: Any, length: int = 128) -> np.ndarray:
    """Read a text file as rows of token ids, each with as many whole lines as fit.

    A blank line ends a document; a row holds lines of one document. Longer lines are divided.

    Args:
        path: A text file in UTF-8.
        tokenizer: Of `train_tokenizer` or `load_tokenizer`.
        length: Number of tokens per row, with `[CLS]` and `[SEP]`.

    Returns:
        int32 `(rows, length)`, padded with `[PAD]`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it has no text, or `length` has no room for a token.
    """
    check_room(length)
    with open(path, encoding="utf-8") as file:
        rows = list(_packed(file, tokenizer, length - 2))
    if not rows:
        raise ValueError(f"The file must have text. Received: {path}, without any.")
    start, end, padding = map(tokenizer.token_to_id, ("[CLS]", "[SEP]", "[PAD]"))
    ids = np.full((len(rows), length), padding, "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens) + 2] = [start, *tokens, end]
    return ids


def _packed(lines: Iterable[str], tokenizer, room):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    row: list[int] = []
    for line in lines:
        tokens = tokenizer.encode(line, add_special_tokens=False).ids
        if row and (not tokens or len(row) + len(tokens) > room):
            yield row
            row = []
        row = row + tokens
        while len(row) > room:
            yield row[:room]
            row = row[room:]
    if row:
        yield row


class MaskedTexts(keras.utils.PyDataset):
    """Batches for `MaskedLanguageModel`, with new masks in each epoch.

    Of the tokens of each row but `[CLS]`, `[SEP]` and `[PAD]`, a share is chosen, at least one:
    80 % of these are replaced by `[MASK]`, 10 % by a random token and 10 % are kept (BERT,
    Section 3.1). A batch is the inputs, the chosen tokens `(batch, masked)`, and their weights,
    0 where a row has fewer than others may have.

    Args:
        ids: Rows of `read_text`.
        tokenizer: The tokenizer that made them.
        batch_size: Rows per batch; the last, smaller batch is left out.
        share: Share of the tokens that are chosen.
        seed: Seed of the masks and of the order of the rows.
        **kwargs: Arguments of `keras.utils.PyDataset`.

    Raises:
        ValueError: if `share` is not between 0 and 1, or there are fewer rows than in a batch.
    """

    def __init__(
        self,
        ids: np.ndarray,
        tokenizer: Any,
        batch_size: int = 128,
        share: float = 0.15,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not 0 < share < 1:
            raise ValueError(f"`share` must be between 0 and 1. Received: share={share}.")
        if len(ids) < batch_size:
            raise ValueError(
                "`batch_size` must be at most the number of rows. "
                f"Received: batch_size={batch_size}, {len(ids)} rows."
            )
        self.ids, self.batch_size, self.share, self.seed = ids, batch_size, share, seed
        tokens = map(tokenizer.token_to_id, ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
        self.padding, *self.frame, self.hidden = tokens
        self.vocabulary = tokenizer.get_vocab_size()
        self.masked = max(1, round(share * ids.shape[1]))
        self.epoch = 0
        self.order = self._shuffled()

    def __len__(self):
        return len(self.ids) // self.batch_size

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        random = np.random.default_rng((self.seed, self.epoch, index))
        return self.mask(self.ids[rows], random)

    def on_epoch_end(self):
        self.epoch += 1
        self.order = self._shuffled()

    def _shuffled(self):
        return np.random.default_rng((self.seed, self.epoch)).permutation(len(self.ids))

    def mask(self, ids: np.ndarray, random: np.random.Generator) -> tuple[dict, Any, Any]:
        """Return the inputs, labels and weights of the rows `ids`."""
        free = ~np.isin(ids, [self.padding, *self.frame])
        counts = np.maximum(1, np.round(self.share * free.sum(1))).astype(int)
        counts = np.minimum(counts, np.minimum(self.masked, free.sum(1)))
        # The free tokens of each row in random order, before the others.
        order = np.argsort(np.where(free, random.random(ids.shape), 2.0), axis=1)
        positions = order[:, : self.masked].astype("int32")
        weights = (np.arange(self.masked) < counts[:, None]).astype("float32")
        labels = np.take_along_axis(ids, positions, axis=1)
        drawn = random.random(positions.shape)
        replaced = np.where(drawn < 0.8, self.hidden, labels)
        others = random.integers(0, self.vocabulary, positions.shape)
        replaced = np.where(drawn >= 0.9, others, replaced)
        replaced = np.where(weights > 0, replaced, labels)
        seen = ids.copy()
        np.put_along_axis(seen, positions, replaced.astype("int32"), axis=1)
        inputs = {
            "ids": seen,
            "segments": np.zeros_like(ids),
            "mask": (ids != self.padding).astype("int32"),
            "positions": positions,
        }
        return inputs, labels, weights


def pretrain(
    network: keras.Model,
    tokenizer: Any,
    path: str | Path,
    length: int = 128,
    epochs: int = 1,
    batch_size: int = 128,
    learning_rate: float = 5e-4,
    warmup: float = 0.1,
    validation: str | Path | None = None,
    seed: int = 0,
    verbose: Any = "auto",
) -> keras.callbacks.History:
    """Pre-train a network on a text file by masked tokens.

    AdamW with a weight decay of 0.01, warmup and linear decay of the learning rate, as
    ELECTRA-small's BERT. The weights of `network` are changed in place.

    Args:
        network: A model of `BERT`.
        tokenizer: The tokenizer for its vocabulary.
        path: A text file; see `read_text`.
        length: Number of tokens per row, at most the positions of the network.
        epochs: Number of passes over the file.
        batch_size: Rows per step.
        learning_rate: Largest learning rate.
        warmup: Share of the steps in which the learning rate rises.
        validation: A text file that is not trained on, for `val_loss` and `val_accuracy`.
        seed: Seed of the masks and of the order.
        verbose: As in `keras.Model.fit`.

    Returns:
        The history, per epoch; `loss` is the mean cross-entropy of the masked tokens, in nats.

    Raises:
        ValueError: if the texts do not fit the network.
    """
    ids = read_text(path, tokenizer, length)
    check_batch(network, {"ids": ids})
    data = MaskedTexts(ids, tokenizer, batch_size, seed=seed)
    model = MaskedLanguageModel(network)
    model.compile(
        adamw(learning_rate, epochs * len(data), warmup),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=["accuracy"],
    )
    unseen = None
    if validation is not None:
        unseen = MaskedTexts(read_text(validation, tokenizer, length), tokenizer, batch_size)
    return model.fit(data, epochs=epochs, validation_data=unseen, verbose=verbose)
