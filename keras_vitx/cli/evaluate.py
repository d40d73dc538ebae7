"""`keras-vitx evaluate`: loss and accuracy of a model on labelled images."""

import csv
import math
from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import keras_vitx as kv
from keras_vitx.cli._models import (
    class_names_of,
    is_size,
    only_sensible_weights,
    open_model,
    preprocessing_of,
)
from keras_vitx.cli._options import Backend, Json, ModelOrFile, Source, Strict, Weights
from keras_vitx.cli._output import show, show_json
from keras_vitx.files import atomic_write, check_writable
from keras_vitx.text import csv_cell


def main(
    model: ModelOrFile,
    source: Source,
    weights: Weights = None,
    split: Annotated[
        Literal["test", "validation", "train"] | None,
        typer.Option(
            "--split",
            "--part",
            help="Split to measure. Default: the first of test, validation and train.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 64,
    crop_ratio: Annotated[
        list[float] | None,
        typer.Option(
            help="Fraction of the resized image that is cropped; above 1, it is padded. Repeat the "
            "option to compare several. Default: that of the model."
        ),
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(help="Picture of which classes are taken for which.")
    ] = None,
    per_class: Annotated[Path | None, typer.Option(help="CSV with one row per class.")] = None,
    scores: Annotated[
        bool,
        typer.Option("--scores", help="Also precision, recall, F1 and AUC, over all classes."),
    ] = False,
    wrong: Annotated[
        Path | None, typer.Option(help="Picture of the images that are predicted worst.")
    ] = None,
    real: Annotated[
        Path | None,
        typer.Option(
            help="ImageNet-ReaL's labels, real.json; the source is ImageNet's validation folder."
        ),
    ] = None,
    restrict: Annotated[
        bool,
        typer.Option("--restrict", help="Predict the source's classes only (ImageNet-A, -R)."),
    ] = False,
    perturb: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=STRENGTH",
            help="Also evaluate on perturbed images, such as occlude=0.25, fgsm=1/255, pgd=1/255, "
            "noise=10, shot_noise=1/60 or blur=1; may be repeated.",
        ),
    ] = None,
    runs: Annotated[
        int,
        typer.Option(help="Evaluations with different seeds of each random change.", min=1, max=10),
    ] = 1,
    validation_split: Annotated[
        float | None,
        typer.Option(
            help="Fraction of a source without splits that is measured. Default: all images; of "
            "the images that the model was trained with, those that its run held out."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of that fraction.", min=0)] = 0,
    strict: Strict = False,
    json: Json = False,
    backend: Backend = None,
) -> None:
    """Measure loss and accuracy of a model on labelled images."""
    from keras_vitx.robustness.curve import KINDS

    _check(crop_ratio, confusion, per_class, wrong)
    changes = _perturbations(perturb or (), KINDS)
    if changes and len(crop_ratio or ()) > 1:
        raise ValueError(f"Perturbed images need one `--crop-ratio`. Received: {crop_ratio}.")
    kv.keep_memory()
    if weights is None and is_size(model):
        weights = only_sensible_weights(model)
    network = open_model(model, weights)
    # A plain Keras model has neither attribute.
    if getattr(network, "preprocessing", None) is None:
        network.preprocessing = preprocessing_of(network)
    if getattr(network, "class_names", None) is None:
        network.class_names = class_names_of(network)
    for kind, strengths in changes.items():
        for strength in strengths:  # A wrong one is told before long work.
            KINDS[kind](network, strength)
    if real is not None:
        source = kv.data.load_real(source, real)
    elif validation_split is None and split in (None, "validation"):
        source, validation_split = _held_out(source, Path(model).parent, strict)
    validation_split = validation_split or 0.0
    rows = []
    for ratio in crop_ratio or [None]:
        measures = kv.evaluate(
            network,
            source,
            split,
            batch_size=batch_size,
            validation_split=validation_split,
            seed=seed,
            strict=strict,
            crop_ratio=ratio,
            restrict=restrict,
            confusion=bool(confusion or per_class),
            scores=scores,
            wrong=wrong,
        )
        counts, names = measures.pop("confusion", None), measures.pop("class_names", None)
        classes = measures.pop("per_class", None)
        rows.append(measures if ratio is None else {"crop_ratio": ratio, **measures})
    if changes:
        options = {
            "split": rows[0]["split"],
            "batch_size": batch_size,
            "validation_split": validation_split,
            "seed": seed,
            "strict": strict,
            "restrict": restrict,
            "crop_ratio": crop_ratio[0] if crop_ratio else None,
        }
        clean = {"perturbation": "none", "strength": 0, **_only(rows[0])}
        rows = [clean, *_perturbed(network, source, changes, runs, options)]
    if confusion:
        kv.analysis.plot_confusion(counts, names, confusion)
    if per_class:
        with atomic_write(per_class) as path, path.open("w", newline="") as file:
            writer = csv.DictWriter(file, classes[0])
            writer.writeheader()
            for row in classes:
                writer.writerow({key: csv_cell(value) for key, value in row.items()})
    if json:
        show_json(rows if len(rows) > 1 else rows[0])
    else:
        formats = {name: _rounded for name, v in rows[0].items() if isinstance(v, float)}
        formats["interval"] = _rounded
        formats |= {"images_per_second": lambda value: "" if value is None else f"{value:.1f}"}
        show(rows, formats=formats)


def _held_out(source: str, run: Path, strict: bool) -> tuple[Any, Any]:
    """Return a source, and the names of the images that the run of the model held out of it."""
    if not (run / "held_out.txt").exists():
        return source, None
    opened = kv.data.load_dataset(source, validation_split=0, strict=strict)
    if opened.validation is not None or opened.test is not None:
        return opened, None
    facts = kv.training.run.read_run(run)
    names = set(kv.training.held_out(run)) & set(opened.train.names())
    of_the_run = facts.get("train_images", 0) + facts.get("validation_images", 0)
    # The images of arrays have only numbers for names.
    if not names or (all(map(str.isdigit, names)) and opened.train.size != of_the_run):
        return opened, None
    typer.echo(f"Measured: the images that the run in {run} held out for validation.", err=True)
    return kv.data.load_dataset(source, validation_split=names, strict=strict), names


def _perturbed(network, source, changes, runs, options) -> list[dict[str, Any]]:
    rows = []
    for kind, strengths in changes.items():
        for row in kv.robustness.curve(network, source, kind, strengths, runs, **options):
            rows.append({"perturbation": row.pop("kind"), **row})
    return rows


def _only(measures: dict[str, Any]) -> dict[str, Any]:
    if "accuracy" not in measures:
        raise ValueError("Perturbed images need one class per image.")
    return {"accuracy": measures["accuracy"], "interval": None, "images": measures["images"]}


def _perturbations(texts: Sequence[str], kinds: Collection[str]) -> dict[str, list[float]]:
    """Return the strengths of each kind, from texts such as `fgsm=1/255`."""
    strengths: dict[str, list[float]] = {}
    for text in texts:
        kind, _, strength = text.partition("=")
        try:
            number = float(Fraction(strength))
        except (ValueError, ZeroDivisionError):
            number = None
        if kind not in kinds or number is None:
            raise ValueError(
                f"`--perturb` must be KIND=STRENGTH, such as fgsm=1/255, with one of the kinds "
                f"{', '.join(kinds)}. Received: {text!r}."
            )
        strengths.setdefault(kind, []).append(number)
    return strengths


def _check(crop_ratio: list[float] | None, *paths: Path | None) -> None:
    for ratio in crop_ratio or ():
        if not 0 < ratio < math.inf:
            raise ValueError(f"`--crop-ratio` must be above 0. Received: {ratio}.")
    written = [path for path in paths if path is not None]
    if written and len(crop_ratio or ()) > 1:
        raise ValueError(
            "`--confusion` and `--per-class` describe one evaluation: give one `--crop-ratio`. "
            f"Received: {crop_ratio}."
        )
    for path in written:
        check_writable(path)


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
