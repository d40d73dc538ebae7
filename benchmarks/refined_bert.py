"""Train BERT with and without the refiner (Refiner, Section 4.5), at a size for minutes on a core.

    KERAS_BACKEND=torch python benchmarks/refined_bert.py runs/bert

Pre-trains on the docstrings of installed libraries by masked tokens, then learns from few labelled
sentences which library a sentence is of. Sentences of other files measure both. Makes every run
whose result is not yet in the folder, and prints a table of those that are there as Markdown.
To use several cores, start it several times. Needs the extra "text".
"""

import argparse
import ast
import importlib.util
import itertools
import json
import random
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from claims import alone

from keras_vitx import language
from keras_vitx.files import written_whole
from keras_vitx.layers import Attention, RefinedAttention

SIZE = {"dim": 128, "depth": 4, "num_heads": 4, "embedding_dim": 64, "vocabulary": 4096}
SMOKE = {"dim": 16, "depth": 1, "num_heads": 2, "embedding_dim": 8, "vocabulary": 500}
ATTENTION = {"plain": Attention, "refined": RefinedAttention}
LENGTH = 40
PRETRAINING = {"batch_size": 64, "learning_rate": 1e-3}
FINETUNING = {"epochs": 4, "batch_size": 32, "learning_rate": 3e-4}
LIBRARIES = ("torch", "tensorflow", "scipy", "sklearn")
HELD_OUT = 0.3
"""Share of the files of a library that are only used to measure."""
LABELLED = {"train": 500, "held_out": 1000}
"""Labelled sentences per library, at most."""
DOCUMENTS = {"train": None, "held_out": 300}
"""Files whose text pre-training reads or is measured on, at most."""

Corpus = dict[str, dict[str, list[list[str]]]]
"""Sentences by part, library and file."""


@dataclass(frozen=True)
class Run:
    """A network, pre-trained and fine-tuned."""

    attention: str
    seed: int

    def path(self, folder: Path, suffix: str) -> Path:
        return folder / f"{self.attention}-{self.seed}{suffix}"


def sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of the docstrings of a file, without code."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Of strings with odd backslashes.
            tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:  # A template, or of another version of Python.
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = re.sub(r"```.*?```", "", ast.get_docstring(node) or "", flags=re.DOTALL)
            for paragraph in re.split(r"\n\s*\n", text):
                line = " ".join(paragraph.split())
                for sentence in re.split(r"(?<=[.!?]) (?=[A-Z`])", line):
                    words = len(re.findall("[A-Za-z]{2,}", sentence))
                    if ">>>" not in line and 6 <= words <= 30 and sentence.endswith("."):
                        yield sentence


def files_of(library: str) -> list[Path]:
    """Return the Python files of an installed library but its tests, in a fixed random order."""
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"The library {library!r} is not installed: choose other --libraries.")
    folder = Path(spec.submodule_search_locations[0])
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    names = [name for name in names if "test" not in str(name)]
    random.Random(0).shuffle(names)
    return [folder / name for name in names]


def collect(libraries: list[str]) -> Corpus:
    """Return the sentences of libraries, each sentence once."""
    seen: set[str] = set()
    corpus: Corpus = {"train": {}, "held_out": {}}
    for library in libraries:
        files = files_of(library)
        cut = round(HELD_OUT * len(files))
        for part, chosen in (("train", files[cut:]), ("held_out", files[:cut])):
            documents = corpus[part][library] = []
            for path in chosen:
                # Not a set: the order is that of the file.
                found = {one.lower(): one for one in sentences(path) if one.lower() not in seen}
                seen.update(found)
                if found:
                    documents.append(list(found.values()))
    return corpus


def corpus_of(options: argparse.Namespace) -> Corpus:
    """Return the sentences in the folder; if there are none yet, collect and tokenize them."""
    file, tokens = options.folder / "corpus.json", options.folder / "tokens.json"
    if not file.exists() or not tokens.exists():
        corpus = collect(options.libraries)
        for part, libraries in corpus.items():
            documents = [document for each in libraries.values() for document in each]
            random.Random(0).shuffle(documents)
            with written_whole(options.folder / f"{part}.txt") as path:
                path.write_text("\n\n".join(map("\n".join, documents[: DOCUMENTS[part]])), "utf-8")
        with open(options.folder / "train.txt", encoding="utf-8") as text:
            tokenizer = language.train_tokenizer(text, size(options)["vocabulary"])
        with written_whole(tokens) as path:
            tokenizer.save(str(path))
        with written_whole(file) as path:
            path.write_text(json.dumps(corpus))
    corpus = json.loads(file.read_text())
    if list(corpus["train"]) != list(options.libraries):
        raise SystemExit(f"{file} has other libraries: choose another folder.")
    return corpus


def labelled(corpus: Corpus, part: str) -> language.Examples:
    """Return as many sentences of each library, labelled."""
    pools = [[*itertools.chain(*documents)] for documents in corpus[part].values()]
    count = min(LABELLED[part], *map(len, pools))
    draw = random.Random(1)
    texts = [text for pool in pools for text in draw.sample(pool, count)]
    return language.Examples(texts, None, np.repeat(np.arange(len(pools)), count))


def size(options: argparse.Namespace) -> dict[str, int]:
    return SMOKE if options.smoke else SIZE


def network(run: Run, options: argparse.Namespace) -> keras.Model:
    """Return a new network. Both attentions have the same dropout, none on the maps."""
    keras.utils.set_random_seed(run.seed)
    heads = size(options)["num_heads"]
    make = ATTENTION[run.attention]
    return language.BERT(
        **size(options), positions=LENGTH, attention=lambda index: make(heads, proj_dropout=0.1)
    )


def settings(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "attention": run.attention,
        "network": size(options),
        "pretraining": {**PRETRAINING, "epochs": options.epochs},
        "finetuning": FINETUNING,
    }


def measure(run: Run, corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """Pre-train and fine-tune a network, and fine-tune an equal one that is not pre-trained."""
    tokenizer = language.load_tokenizer(options.folder / "tokens.json")
    task = language.Task("library", ("sentence",), classes=tuple(corpus["train"]))
    data = labelled(corpus, "train"), labelled(corpus, "held_out")

    def accuracy(trained):
        tuned = language.finetune(
            trained, tokenizer, task, *data, LENGTH, **FINETUNING, seed=run.seed, verbose=0
        )
        return tuned.score

    start = time.process_time()
    pretrained = network(run, options)
    history = language.pretrain(
        pretrained,
        tokenizer,
        options.folder / "train.txt",
        LENGTH,
        options.epochs,
        **PRETRAINING,
        validation=options.folder / "held_out.txt",
        seed=run.seed,
        verbose=2,
    ).history
    seconds = round(time.process_time() - start)
    return {
        "parameters": pretrained.count_params(),
        "pretraining_cpu_seconds": seconds,
        "history": history,
        "accuracy": accuracy(pretrained),
        "accuracy_without_pretraining": accuracy(network(run, options)),
    }


def run_one(run: Run, corpus: Corpus, options: argparse.Namespace) -> None:
    """Measure a run and write its result, if there is none yet."""
    file = run.path(options.folder, ".json")
    wanted = json.loads(json.dumps(settings(run, options)))
    if not file.exists():
        result = {"settings": wanted, **measure(run, corpus, options)}
        with written_whole(file) as path:
            path.write_text(json.dumps(result, indent=1))
    if json.loads(file.read_text())["settings"] != wanted:
        raise SystemExit(f"{file} has other settings: choose another folder.")


ROWS = {
    "masked tokens, held-out loss": (2, lambda result: result["history"]["val_loss"][-1]),
    "masked tokens, held-out accuracy, %": (1, lambda r: 100 * r["history"]["val_accuracy"][-1]),
    "libraries, accuracy, %": (1, lambda result: 100 * result["accuracy"]),
    "the same without pre-training, %": (
        1,
        lambda result: 100 * result["accuracy_without_pretraining"],
    ),
    "CPU minutes of pre-training": (1, lambda result: result["pretraining_cpu_seconds"] / 60),
}
"""Number of digits, and a function of a result."""


def report(folder: Path) -> None:
    """Print the results that are there, the mean over seeds and each seed."""
    found = {
        name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))]
        for name in ATTENTION
    }
    if not all(found.values()):
        return
    heads = [f"{name}, {results[0]['parameters']:,} weights" for name, results in found.items()]
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, (digits, value) in ROWS.items():
        cells = []
        for results in found.values():
            values = [value(result) for result in results]
            seeds = ", ".join(f"{one:.{digits}f}" for one in values)
            cells.append(f"{np.mean(values):.{digits}f} ({seeds})")
        print(f"| {name} | {' | '.join(cells)} |")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the texts and of the results")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), help="installed ones")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each attention")
    parser.add_argument("--epochs", type=int, default=2, help="of pre-training")
    parser.add_argument("--smoke", action="store_true", help="a tiny network")
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    corpus = corpus_of(options)
    for run in (Run(name, seed) for seed in range(options.seeds) for name in ATTENTION):
        with alone(run.path(options.folder, ".lock")) as is_alone:
            if is_alone:
                run_one(run, corpus, options)
    report(options.folder)


if __name__ == "__main__":
    main()
