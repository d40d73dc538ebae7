"""Pre-train a small BERT with Refiner's attention on docstrings, and tell two libraries apart.

    python examples/language.py [FILES [EPOCHS]]

The texts are the sentences of Python's own documentation and of NumPy's, by file: those of some
files are only used to measure. Needs the extra "text". Takes some minutes.
"""

import ast
import random
import re
import sys
import sysconfig
from pathlib import Path

import keras
import numpy as np

from keras_vitx import language
from keras_vitx.layers import RefinedAttention

FILES, EPOCHS = [*map(int, sys.argv[1:]), *(400, 10)[len(sys.argv) - 1 :]]
LENGTH = 40
FOLDERS = (Path(sysconfig.get_paths()["stdlib"]), Path(np.__file__).parent)

keras.utils.set_random_seed(0)
random.seed(0)


def sentences(path):
    """The sentences of the docstrings of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                yield from re.findall(r"[A-Z][^.>]{30,}\.(?!\S)", " ".join(paragraph.split()))


def texts_of(folder):
    """Sentences for training, and others, of other files, to measure."""
    files = sorted(folder.rglob("*.py"))
    parts = [{*path.relative_to(folder).parts} for path in files]
    others = {"test", "tests", "lib2to3", "site-packages"}
    files = [path for path, names in zip(files, parts, strict=True) if not names & others]
    files = random.sample(files, min(FILES, len(files)))
    cut = len(files) * 3 // 4
    return [
        sorted({sentence for path in part for sentence in sentences(path)})
        for part in (files[:cut], files[cut:])
    ]


train, unseen = zip(*map(texts_of, FOLDERS), strict=True)
Path("docstrings.txt").write_text("\n\n".join("\n".join(part) for part in train), "utf-8")


def labelled(parts):
    """As many sentences of each library."""
    count = min(map(len, parts))
    texts = [text for part in parts for text in random.sample(part, count)]
    return language.Examples(texts, None, np.repeat([0, 1], count))


tokenizer = language.train_tokenizer((text for part in train for text in part), 4096)
network = language.BERT(
    128,
    depth=4,
    num_heads=4,
    embedding_dim=64,
    vocabulary=4096,
    positions=LENGTH,
    attention=lambda index: RefinedAttention(4, proj_dropout=0.1),
)
language.pretrain(network, tokenizer, "docstrings.txt", LENGTH, EPOCHS, 32, 1e-3, verbose=2)
task = language.Task("library", ("sentence",), classes=("Python", "NumPy"))
tuned = language.finetune(
    network, tokenizer, task, labelled(train), labelled(unseen), LENGTH, verbose=2
)
tuned.model.save("library.keras")
print(f"accuracy on other files: {tuned.score:.1%}")
