"""From texts to token ids: WordPiece, by the package `tokenizers`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vitx.text import needs_extra

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's special tokens."""


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(needs_extra("Tokenization needs tokenizers", "text")) from error
    return tokenizers


def train_tokenizer(texts: Iterable[str], vocabulary: int = 30522, lowercase: bool = True) -> Any:
    """Train BERT's WordPiece tokenizer on texts.

    Args:
        texts: Texts, such as an open file, of which each line is one.
        vocabulary: Largest number of tokens, with the five special ones.
        lowercase: Whether case and accents are ignored.

    Returns:
        A `tokenizers.Tokenizer`; its method `save(path)` writes a file for `load_tokenizer`.
    """
    tokenizer = _wordpiece(lowercase)
    trainer = _tokenizers().trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _framed(tokenizer)


def load_tokenizer(path: str | Path, lowercase: bool = True) -> Any:
    """Load a tokenizer.

    Args:
        path: A `.json` file of `tokenizers`, or BERT's `vocab.txt`, one token per line.
        lowercase: Whether case and accents are ignored, with `vocab.txt`.

    Raises:
        ValueError: if the file cannot be read as that, or lacks one of `SPECIAL`.
        FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no tokenizer file {path}.")
    try:
        if path.suffix == ".txt":
            lines = path.read_text(encoding="utf-8").splitlines()
            tokenizer = _wordpiece(lowercase, {token: index for index, token in enumerate(lines)})
        else:
            tokenizer = _tokenizers().Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises plain exceptions.
        raise ValueError(f"{path} is not a tokenizer file: {error}") from error
    absent = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if absent:
        raise ValueError(
            f"The tokenizer of {path} must have the tokens {SPECIAL}. Absent: {absent}."
        )
    return _framed(tokenizer)


def _wordpiece(lowercase, vocabulary=None):
    tokenizers = _tokenizers()
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary or {}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer


def _framed(tokenizer):
    """Make a tokenizer write `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]`."""
    tokenizer.post_processor = _tokenizers().processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    return tokenizer


def encode(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    length: int = 128,
    truncate: bool = True,
) -> dict[str, np.ndarray]:
    """Encode texts, or pairs of texts, for a network of `BERT`.

    Args:
        tokenizer: Of `train_tokenizer` or `load_tokenizer`.
        texts: The texts.
        pairs: The second text of each, or None.
        length: Number of tokens per row, with `[CLS]` and `[SEP]`; shorter rows are padded.
        truncate: Whether longer texts are cut, the longer of a pair first.

    Returns:
        `"ids"`, `"segments"` and `"mask"`, int32 `(texts, length)`.

    Raises:
        ValueError: if `pairs` are fewer or more than `texts`; if `length` is below 3; or a text
            is longer than `length` with `truncate=False`.
    """
    check_room(length)
    if pairs is not None and len(pairs) != len(texts):
        raise ValueError(
            f"`pairs` must be as many as `texts`. Received: {len(pairs)} pairs, {len(texts)} texts."
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if truncate:
        tokenizer.enable_truncation(length, strategy="longest_first")
    rows = tokenizer.encode_batch(list(texts if pairs is None else zip(texts, pairs, strict=True)))
    batch = {part: np.zeros((len(rows), length), "int32") for part in ("ids", "segments", "mask")}
    # 0 in BERT's vocabularies, but not in all.
    batch["ids"][:] = tokenizer.token_to_id("[PAD]")
    for index, row in enumerate(rows):
        count = len(row.ids)
        if count > length:
            raise ValueError(
                f"With truncate=False, a text must have at most length={length} tokens. "
                f"Received: {count} tokens in text {index}, {texts[index][:60]!r}."
            )
        batch["ids"][index, :count] = row.ids
        batch["segments"][index, :count] = row.type_ids
        batch["mask"][index, :count] = 1
    return batch


def check_room(length: int) -> None:
    """Check that a row has room for a token between `[CLS]` and `[SEP]`.

    Raises:
        ValueError: if it has not.
    """
    if length < 3:
        raise ValueError(
            f"`length` must be at least 3: [CLS], a token, [SEP]. Received: length={length}."
        )
