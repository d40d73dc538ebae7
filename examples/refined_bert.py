"""Refiner on text (Section 4.5, Table 6): BERT with plain and with refined attention maps.

    python examples/refined_bert.py                       # docstrings, ten minutes per network
    python examples/refined_bert.py --glue rte --small    # GLUE, by tensorflow-datasets

Pre-trains by masked tokens on the docstrings of installed libraries, or on `--text TRAIN HELD_OUT`,
files with a sentence per line and a blank line between documents. Then it learns which library a
sentence is of, or a task of GLUE. Prints a table of both attentions. Needs the extra "text".
"""

import argparse
import ast
import functools
import importlib.util
import itertools
import random
import re
import warnings
from pathlib import Path

from keras_vitx.layers import MLP, Attention, RefinedAttention

import keras
import numpy as np
from keras import ops
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, matthews_corrcoef
from tokenizers.implementations import BertWordPieceTokenizer

ATTENTION = {"plain": Attention, "refined": RefinedAttention}
SMALL = {"dim": 256, "depth": 12, "num_heads": 4, "embedding_dim": 128}
"""The BERT-small of the paper, ELECTRA's: 14 M parameters (with 30,522 tokens 13.5 M)."""
INPUTS = "ids", "segments", "mask"
Norm = functools.partial(keras.layers.LayerNormalization, epsilon=1e-12)
START = functools.partial(keras.initializers.RandomNormal, stddev=0.02)
MINI = {"dim": 128, "depth": 4, "num_heads": 4, "embedding_dim": 64}
LIBRARIES = ("torch", "tensorflow", "scipy", "sklearn")
LABELED = 500, 1000
"""Labeled sentences per library: to train on, and to measure."""
HELD_OUT = 0.3
"""Share of the files of a library that only measure."""
SENTENCES = ["sentence1", "sentence2"]
GLUE = {"cola": ["sentence"], "sst2": ["sentence"], "mrpc": SENTENCES, "stsb": SENTENCES}
GLUE |= {"rte": SENTENCES, "qqp": ["question1", "question2"], "qnli": ["question", "sentence"]}
GLUE |= {"mnli": ["premise", "hypothesis"]}
"""The columns of the eight tasks of Table 6 in tensorflow-datasets."""


def bert(attention, vocabulary, dim, depth, num_heads, embedding_dim, positions=512, dropout=0.1):
    """The encoder of BERT, with ELECTRA's factorized embeddings; output `(batch, tokens, dim)`.

    Inputs: `ids`, `segments` and `mask` (1 where there is a token), integers `(batch, tokens)`.
    `attention` is a layer's class. Padding is masked as a key and as a query, which keeps it out
    of the refiner's convolution, too.
    """
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in INPUTS]
    ids, segments, mask = inputs
    order, x = ops.cumsum(ops.ones_like(ids), axis=1) - 1, 0
    kinds = {"token": (ids, vocabulary), "segment": (segments, 2), "position": (order, positions)}
    for name, (part, count) in kinds.items():
        settings = {"embeddings_initializer": START(), "reverse_dtype": "float32", "name": name}
        x = x + keras.layers.ReversibleEmbedding(count, embedding_dim, **settings)(part)
    x = Norm(name="norm")(x)
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Dense(dim, kernel_initializer=START(), name="proj")(x)
    pairs = ops.cast(ops.expand_dims(mask, 1) * ops.expand_dims(mask, 2), "bool")
    for index in range(depth):
        layer = attention(num_heads, proj_dropout=dropout, name=f"attn_{index}")
        mlp = MLP(4.0, on_output=[keras.layers.Dropout(dropout)], name=f"mlp_{index}")
        x = Norm(name=f"norm1_{index}")(x + layer(x, attention_mask=pairs))
        x = Norm(name=f"norm2_{index}")(x + mlp(x))
    return keras.Model(inputs, x)


def masked_language_model(network):
    """Logits of the tokens at `positions` `(batch, masked)`: LN(GELU(W x + b)) Eᵀ."""
    embedding = network.get_layer("token")  # In float32, as logits have to be.
    positions = keras.Input((None,), dtype="int32", name="positions")
    x = ops.take_along_axis(network.output, ops.expand_dims(positions, -1), axis=1)
    width = embedding.output_dim
    x = keras.layers.Dense(width, "gelu", kernel_initializer=START(), name="transform")(x)
    x = Norm(name="masked_norm")(x)
    return keras.Model([*network.inputs, positions], embedding(x, reverse=True))


def classifier(network, outputs, dropout=0.1):
    """Logits of the whole text, from its first token, [CLS], as in ELECTRA."""
    x = network.output[:, 0]
    for units, activation, name in ((x.shape[-1], "gelu", "pool"), (outputs, None, "logits")):
        x = keras.layers.Dropout(dropout)(x)
        x = keras.layers.Dense(units, activation, kernel_initializer=START(), name=name)(x)
    return keras.Model(network.inputs, x)


class Schedule(keras.optimizers.schedules.PolynomialDecay):
    """Linear decay, times a linear warm-up in the first tenth of the steps."""

    def __call__(self, step):
        warmup = (ops.cast(step, "float32") + 1) / max(1, self.decay_steps // 10)
        return super().__call__(step) * ops.minimum(warmup, 1.0)


def adamw(peak, steps):
    """ELECTRA's optimizer: no decay of biases and norms."""
    rate = Schedule(peak, steps, end_learning_rate=0.0)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def encode(tokenizer, texts, pairs=None, length=128):
    """`ids`, `segments` and `mask` of texts or pairs, int32 `(texts, length)`, cut and padded."""
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(length=length, pad_id=tokenizer.token_to_id("[PAD]"))
    rows = tokenizer.encode_batch(list(texts if pairs is None else zip(texts, pairs, strict=True)))
    parts = ([getattr(row, name) for row in rows] for name in ("ids", "type_ids", "attention_mask"))
    return [np.array(part, "int32") for part in parts]


def train_tokenizer(lines, vocabulary):
    """BERT's WordPiece tokenizer, trained on lines of text."""
    words = BertWordPieceTokenizer()
    words.train_from_iterator(lines, vocab_size=vocabulary, show_progress=False)
    return BertWordPieceTokenizer(words.get_vocab())  # Which adds [CLS] and [SEP].


def pack(text, tokenizer, length):
    """Rows of token ids `(rows, length)`: as many whole lines of one document as fit."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    rows, row = [], []
    for line in [*text.splitlines(), ""]:
        tokens = tokenizer.encode(line, add_special_tokens=False).ids
        if row and (not tokens or len(row) + len(tokens) > length - 2):
            rows.append(row[: length - 2])
            row = []
        row = row + tokens
    first, last, padding = map(tokenizer.token_to_id, ("[CLS]", "[SEP]", "[PAD]"))
    rows = [[first, *row, last] for row in rows]
    return np.array([row + [padding] * (length - len(row)) for row in rows], "int32")


class MaskedTexts(keras.utils.PyDataset):
    """Batches with new masks in each epoch (BERT, Section 3.1).

    15 % of the tokens are predicted: 80 % of them are replaced by [MASK], 10 % by another token.
    """

    def __init__(self, ids, tokenizer, batch_size=64, seed=0, share=0.15):
        super().__init__()
        self.ids, self.batch_size, self.seed, self.share = ids, batch_size, seed, share
        *self.kept, self.mask = map(tokenizer.token_to_id, ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
        self.vocabulary, self.epoch = tokenizer.get_vocab_size(), 0

    def __len__(self):
        return len(self.ids) // self.batch_size

    def on_epoch_end(self):
        self.epoch += 1

    def __getitem__(self, index):
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.ids))
        ids = self.ids[order[index * self.batch_size :][: self.batch_size]]
        draw = np.random.default_rng((self.seed, self.epoch, index))
        free = ~np.isin(ids, self.kept)
        counts = np.minimum(np.maximum(1, np.round(self.share * free.sum(1))), free.sum(1))
        # The free tokens of each row in random order, before the others.
        positions = np.argsort(np.where(free, draw.random(ids.shape), 2.0), axis=1)
        positions = positions[:, : max(1, round(self.share * ids.shape[1]))].astype("int32")
        weights = (np.arange(positions.shape[1]) < counts[:, None]).astype("float32")
        labels = np.take_along_axis(ids, positions, axis=1)
        chance = draw.random(labels.shape)
        others = draw.integers(0, self.vocabulary, labels.shape)
        replaced = np.where(chance < 0.8, self.mask, np.where(chance < 0.9, labels, others))
        seen = ids.copy()
        np.put_along_axis(seen, positions, np.where(weights > 0, replaced, labels), axis=1)
        present = (ids != self.kept[0]).astype("int32")
        return (seen, np.zeros_like(ids), present, positions), labels, weights


def pretrain(network, tokenizer, texts, options, seed):
    """Pre-train in place on a text, measured on another; returns the history per epoch."""
    train, held_out = (
        MaskedTexts(pack(text, tokenizer, options.length), tokenizer, seed=seed) for text in texts
    )
    model = masked_language_model(network)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    optimizer = adamw(1e-3, options.epochs * len(train))
    model.compile(optimizer, loss, weighted_metrics=["accuracy"])
    return model.fit(train, epochs=options.epochs, validation_data=held_out, verbose=2).history


def finetune(network, tokenizer, task, length, seed, epochs=4, batch_size=32):
    """Train a copy of the network on a task; returns the metric on the validation texts."""
    keras.utils.set_random_seed(seed)
    outputs, metric, (train, labels), (unseen, truth) = task
    copy = keras.models.clone_model(network)
    copy.set_weights(network.get_weights())
    model = classifier(copy, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if outputs > 1 else "mse"
    model.compile(adamw(3e-4, epochs * -(-len(labels) // batch_size)), loss)
    model.fit(encode(tokenizer, *train, length=length), labels, batch_size, epochs, verbose=2)
    found = model.predict(encode(tokenizer, *unseen, length=length), verbose=0)
    return float(metric(truth, found.argmax(-1) if outputs > 1 else found[:, 0]))


def glue(name):
    """A task of GLUE: number of outputs, metric, training and validation texts with labels."""
    import tensorflow_datasets as tfds

    parts = []
    for split in ("train", "validation_matched" if name == "mnli" else "validation"):
        rows = list(tfds.as_numpy(tfds.load(f"glue/{name}", split=split)))
        texts = [[row[column].decode() for row in rows] for column in GLUE[name]]
        parts.append((texts, np.array([row["label"] for row in rows])))
    metrics = {"cola": matthews_corrcoef, "stsb": lambda y, x: spearmanr(y, x).statistic}
    return {"stsb": 1, "mnli": 3}.get(name, 2), metrics.get(name, accuracy_score), *parts


def sentences(path):
    """The sentences of the docstrings of a file, without code."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:  # A template, or of another version of Python.
        return
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in (node for node in ast.walk(tree) if isinstance(node, documented)):
        text = re.sub(r"```.*?```", "", ast.get_docstring(node) or "", flags=re.DOTALL)
        for line in (" ".join(part.split()) for part in re.split(r"\n\s*\n", text)):
            for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`])", line):
                words = len(re.findall("[A-Za-z]{2,}", sentence))
                if ">>>" not in line and 6 <= words <= 30 and sentence.endswith("."):
                    yield sentence


def docstrings(libraries):
    """Per split, documents in random order: pairs of a library's index and its sentences."""
    seen, corpus = set(), {"train": [], "held_out": []}
    for label, library in enumerate(libraries):
        spec = importlib.util.find_spec(library)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"The library {library!r} is not installed: choose other --libraries.")
        directory = Path(spec.submodule_search_locations[0])
        names = sorted(path.relative_to(directory) for path in directory.rglob("*.py"))
        names = [name for name in names if "test" not in str(name)]
        random.Random(0).shuffle(names)
        for index, name in enumerate(names):
            found = {s.lower(): s for s in sentences(directory / name) if s.lower() not in seen}
            seen.update(found)
            split = "held_out" if index < round(HELD_OUT * len(names)) else "train"
            corpus[split].append((label, list(found.values())))
    for documents in corpus.values():
        random.Random(0).shuffle(documents)
    return corpus


def libraries_task(corpus, counts):
    """Which library a sentence is of, as many of each."""
    parts = []
    for documents, count in zip(corpus.values(), counts, strict=True):
        by_label = {}
        for label, found in documents:
            by_label.setdefault(label, []).extend(found)
        count = min(count, *map(len, by_label.values()))
        texts = [text for label in sorted(by_label) for text in by_label[label][:count]]
        parts.append(([texts], np.repeat(sorted(by_label), count)))
    return len(by_label), accuracy_score, *parts


def main(words=None):
    """Train with each attention and seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", nargs="+", default=LIBRARIES, help="installed ones")
    parser.add_argument("--text", type=Path, nargs=2, help="files to pre-train and measure on")
    parser.add_argument("--glue", choices=GLUE, help="task of GLUE")
    parser.add_argument("--small", action="store_true", help="the paper's size")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2, help="of pre-training")
    parser.add_argument("--length", type=int, default=40, help="tokens per row")
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args(words)
    warnings.simplefilter("ignore", SyntaxWarning)  # Of docstrings with odd backslashes.
    corpus = docstrings([] if options.text and options.glue else options.libraries)
    texts = ["\n\n".join("\n".join(found) for _, found in part) for part in corpus.values()]
    if options.text:
        texts = [path.read_text(encoding="utf-8") for path in options.text]
    tokenizer = train_tokenizer(texts[0].splitlines(), options.vocabulary)
    task = glue(options.glue) if options.glue else libraries_task(corpus, LABELED)
    print("| attention | weights | held-out loss | accuracy, % | task, % | not pre-trained, % |")
    print("|---|---|---|---|---|---|")
    for seed, (name, attention) in itertools.product(range(options.seeds), ATTENTION.items()):
        keras.utils.set_random_seed(seed)
        size = SMALL if options.small else MINI
        network = bert(attention, tokenizer.get_vocab_size(), **size)
        without = finetune(network, tokenizer, task, options.length, seed)
        history = pretrain(network, tokenizer, texts, options, seed)
        score = finetune(network, tokenizer, task, options.length, seed)
        figures = history["val_loss"][-1], 100 * history["val_accuracy"][-1], 100 * score
        cells = " | ".join(f"{figure:.2f}" for figure in (*figures, 100 * without))
        print(f"| {name}, seed {seed} | {network.count_params():,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
