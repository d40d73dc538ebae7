"""GLUE's tasks: their files, labels and metrics."""

import csv
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vitx.text import nearest, needs_extra


def accuracy(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return the share of texts whose largest output is that of their class."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, outputs.argmax(-1)))


def matthews(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return Matthews's correlation of the labels and the classes with the largest outputs."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, outputs.argmax(-1)))


def spearman(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return Spearman's rank correlation of the values and the outputs; 0 if one is constant."""
    from scipy.stats import spearmanr

    outputs = outputs[:, 0]
    constant = np.ptp(outputs) == 0 or np.ptp(labels) == 0
    return 0.0 if constant else float(spearmanr(labels, outputs).statistic)


@dataclass(frozen=True)
class Task:
    """A task on texts, or on pairs of texts.

    Attributes:
        name: Its name, also that of tensorflow-datasets (`glue/NAME`).
        columns: The columns of the one or two texts: names in the first line of a TSV file, or
            indices if the files have no such line.
        label: The column of the label, in the same way.
        classes: Labels in the files, in the order of the outputs; empty for a regression.
        metric: A function of the labels and of the outputs `(texts, classes or 1)`.
        features: Names of the texts in tensorflow-datasets, where they are not `columns`.
        validation: Names of the validation files, without `.tsv`, of which the first counts;
            and of the split of tensorflow-datasets.
    """

    name: str
    columns: tuple[str | int, ...]
    label: str | int = "label"
    classes: tuple[str, ...] = ("0", "1")
    metric: Callable[[np.ndarray, np.ndarray], float] = accuracy
    features: tuple[str, ...] = ()
    validation: tuple[str, str] = ("dev", "validation")

    @property
    def outputs(self) -> int:
        """Number of outputs of a network for this task."""
        return len(self.classes) or 1


SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    task.name: task
    for task in (
        Task("cola", (3,), 1, metric=matthews, features=("sentence",)),
        Task("sst2", ("sentence",)),
        Task("mrpc", ("#1 String", "#2 String"), "Quality", features=SENTENCES),
        Task("qqp", ("question1", "question2"), "is_duplicate"),
        Task("stsb", SENTENCES, "score", (), spearman),
        Task(
            "mnli",
            SENTENCES,
            "gold_label",
            ("entailment", "neutral", "contradiction"),
            features=("premise", "hypothesis"),
            validation=("dev_matched", "validation_matched"),
        ),
        Task("qnli", ("question", "sentence"), classes=ENTAILMENT),
        Task("rte", SENTENCES, classes=ENTAILMENT),
    )
}
"""The eight tasks of Refiner, Table 6: GLUE without WNLI. F1 and Pearson are not in the table."""


def task_of(name: str | Task) -> Task:
    """Return a task of `TASKS` by its name; a `Task` is returned as it is.

    Raises:
        ValueError: if GLUE has no such task.
    """
    if isinstance(name, Task):
        return name
    found = TASKS.get(str(name).lower().replace("-", "").replace("_", ""))
    if found is None:
        raise ValueError(
            f"`task` must be one of GLUE's. Received: {name!r}. {nearest(name, TASKS)}"
        )
    return found


class Examples(NamedTuple):
    """Labelled texts.

    Attributes:
        texts: The texts, or the first of each pair.
        pairs: The second of each pair, or None.
        labels: int64 classes, or float32 values, `(texts,)`.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray


def read_tsv(task: str | Task, path: str | Path) -> Examples:
    """Read a labelled TSV file of a task, as the archives of GLUE have it, without quotes.

    Lines with too few columns are left out, which is logged: QQP's files have some.

    Args:
        task: A name of `TASKS`, or a `Task`.
        path: The file, such as `RTE/train.tsv`.

    Raises:
        ValueError: if the file lacks a column or has no whole line, or a label is unknown; the
            message names the file and the line.
        FileNotFoundError: if there is no such file.
    """
    task = task_of(task)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    wanted, first = (*task.columns, task.label), 1
    if isinstance(task.label, str):
        header, rows, first = (rows[0] if rows else []), rows[1:], 2
        absent = [name for name in wanted if name not in header]
        if absent:
            raise ValueError(
                f"The file of task {task.name!r} must have the columns {list(wanted)}. "
                f"Received: {path} with {header}."
            )
        wanted = tuple(header.index(name) for name in wanted)
    whole = [(line, row) for line, row in enumerate(rows, first) if len(row) > max(wanted)]
    if not whole:
        raise ValueError(
            f"The file of task {task.name!r} must have lines of at least {max(wanted) + 1} "
            f"columns. Received: {path}, without one."
        )
    if len(whole) < len(rows):
        logging.getLogger("keras_vitx").warning(
            "%s: left out %d lines with too few columns.", path, len(rows) - len(whole)
        )
    *texts, label = wanted
    columns = [[row[index] for _, row in whole] for index in texts]
    labels = [_label(task, row[label], f"{path}, line {line}") for line, row in whole]
    return _examples(task, columns, labels)


def _label(task: Task, label: str, place: str) -> float:
    try:
        return task.classes.index(label) if task.classes else float(label)
    except ValueError:
        expected = f"one of {task.classes}" if task.classes else "a number"
        raise ValueError(
            f"A label of task {task.name!r} must be {expected}. Received: {label!r} in {place}."
        ) from None


def _examples(task: Task, texts: list[list[str]], labels: list[float]) -> Examples:
    values = np.array(labels, "int64" if task.classes else "float32")
    return Examples(texts[0], texts[1] if len(texts) > 1 else None, values)


def read_folder(task: str | Task, folder: str | Path) -> tuple[Examples, Examples]:
    """Read the training and the validation file of a task, `train.tsv` and `dev.tsv`.

    Of MNLI, the validation file is `dev_matched.tsv`.
    """
    task, folder = task_of(task), Path(folder)
    return tuple(read_tsv(task, folder / f"{name}.tsv") for name in ("train", task.validation[0]))


def read_tfds(task: str | Task, data_dir: str | Path | None = None) -> tuple[Examples, Examples]:
    """Read the training and the validation split of a task from tensorflow-datasets.

    Args:
        task: A name of `TASKS`, or a `Task`.
        data_dir: Folder of tensorflow-datasets; None is its own.

    Raises:
        ImportError: if tensorflow-datasets is not installed.
        ValueError: if a label is above the classes.
    """
    task = task_of(task)
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(needs_extra("This needs tensorflow-datasets", "data")) from error
    return tuple(
        from_rows(
            task, tfds.as_numpy(tfds.load(f"glue/{task.name}", split=split, data_dir=data_dir))
        )
        for split in ("train", task.validation[1])
    )


def from_rows(task: str | Task, rows: Iterable[dict[str, Any]]) -> Examples:
    """Return the examples of rows as tensorflow-datasets has them, with numbers as labels.

    Raises:
        ValueError: if a label is above the classes.
    """
    task, rows = task_of(task), list(rows)
    texts = [
        [row[name].decode() if isinstance(row[name], bytes) else str(row[name]) for row in rows]
        for name in task.features or task.columns
    ]
    examples = _examples(task, texts, [row["label"] for row in rows])
    check_labels(examples.labels, len(task.classes))
    return examples


def check_examples(task: Task, examples: Examples) -> None:
    """Check that examples are those of a task.

    Raises:
        ValueError: if they have pairs and the task has none, or the other way round; if the
            numbers of texts and labels differ; or a label is not one of the classes.
    """
    texts, has_pairs = len(task.columns), examples.pairs is not None
    if has_pairs != (texts > 1):
        raise ValueError(
            f"Examples of task {task.name!r} must have {texts} texts each. "
            f"Received: {1 + has_pairs} texts each."
        )
    if len(examples.texts) != len(examples.labels):
        raise ValueError(
            "Examples must have as many labels as texts. "
            f"Received: {len(examples.texts)} texts, {len(examples.labels)} labels."
        )
    check_labels(examples.labels, len(task.classes))


def check_labels(labels: np.ndarray, classes: int) -> None:
    """Check class labels; `classes=0` is a regression.

    Raises:
        ValueError: if a label is not one of the classes.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes)) if classes else ()
    if len(wrong):
        raise ValueError(
            f"Labels must be from 0 to {classes - 1}, for {classes} classes. "
            f"Received: {labels[wrong[0]]} in row {wrong[0]}."
        )
