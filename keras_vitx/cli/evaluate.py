"""`keras-vitx evaluate`: loss and accuracy of a model on labeled images."""

from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from typer import Option

import keras_vitx as kv
from keras_vitx.cli._options import (
    Backend,
    Json,
    ModelOrFile,
    Source,
    Strict,
    Weights,
    open_model,
)
from keras_vitx.cli._output import say, show, show_json
from keras_vitx.files import check_writable, write_csv


def main(
    model: ModelOrFile,
    source: Source,
    weights: Weights = None,
    split: Literal["test", "validation", "train"] | None = Option(
        None,
        "--split",
        "--part",
        metavar="SPLIT",
        help="test, validation or train. Default: the first of these that exists.",
    ),
    batch_size: int = Option(64, help="Images per batch.", min=1),
    crop_ratio: list[float] | None = Option(
        None,
        help="Fraction of the resized image that is cropped; above 1, it is padded. Repeat to "
        "compare several. Default: the model's.",
    ),
    confusion: Path | None = Option(None, help="Picture of the confusion matrix."),
    per_class: Path | None = Option(None, help="CSV with one row per class."),
    scores: bool = Option(
        False, "--scores", help="Also precision, recall, F1 and AUC, over all classes."
    ),
    wrong: Path | None = Option(None, help="Picture of the worst predictions."),
    per_image: Path | None = Option(None, help="CSV with one row per image, the worst first."),
    flips: bool = Option(False, "--flips", help="Predict the mean of image and mirror image."),
    real: Path | None = Option(
        None, help="ImageNet-ReaL's real.json; SOURCE is ImageNet's validation directory."
    ),
    restrict: bool = Option(
        False, "--restrict", help="Predict the source's classes only (ImageNet-A, -R)."
    ),
    perturb: list[str] | None = Option(
        None,
        metavar="KIND=STRENGTH",
        help="Also evaluate on perturbed images: occlude=0.25, fgsm=1/255, pgd=1/255, "
        "noise=10, shot_noise=1/60 or blur=1. Repeatable.",
    ),
    runs: int = Option(1, help="Evaluations of each random perturbation.", min=1, max=10),
    validation_split: float | None = Option(
        None,
        help="Fraction of a source without splits to evaluate. Default: the images that the "
        "model's run held out, else all.",
    ),
    strict: Strict = False,
    json: Json = False,
    backend: Backend = None,
) -> None:
    """Measure loss and accuracy of a model on labeled images."""
    from keras_vitx.robustness import PERTURBATIONS

    ratios = crop_ratio or [None]
    if len(ratios) > 1 and (confusion or per_class or perturb):
        raise ValueError(
            "`--confusion`, `--per-class` and `--perturb` take one `--crop-ratio`. "
            f"Received: {crop_ratio}."
        )
    for path in filter(None, (confusion, per_class, per_image, wrong)):
        check_writable(path)
    perturbations = _perturbations(perturb or (), PERTURBATIONS)
    network = open_model(model, weights, trained=True)
    for kind, strengths in perturbations.items():
        for strength in strengths:  # Raises for an invalid one, before long work.
            PERTURBATIONS[kind](network, strength)
    if real is not None:
        source = kv.data.load_real(source, real)
    elif validation_split is None and split in (None, "validation"):
        source, validation_split = _held_out(source, Path(model).parent, strict)
    options = {
        "batch_size": batch_size,
        "validation_split": validation_split or 0.0,
        "strict": strict,
        "restrict": restrict,
    }
    outputs = {"confusion": bool(confusion or per_class), "scores": scores, "wrong": wrong}
    outputs |= {"per_image": per_image, "flips": flips}
    rows, counts = [], {}
    for ratio in ratios:
        metrics = kv.evaluate(network, source, split, crop_ratio=ratio, **outputs, **options)
        for name in ("confusion", "class_names", "per_class"):
            counts[name] = metrics.pop(name, None)
        rows.append(metrics if ratio is None else {"crop_ratio": ratio, **metrics})
    if confusion:
        kv.analysis.plot_confusion(counts["confusion"], counts["class_names"], confusion)
    if per_class:
        write_csv(counts["per_class"], per_class)
    if perturbations:
        (clean,) = rows
        if "accuracy" not in clean:
            raise ValueError("Perturbed images need one class per image.")
        metrics = {"accuracy": clean["accuracy"], "interval": None, "images": clean["images"]}
        rows = [{"perturbation": "none", "strength": 0, **metrics}]
        options |= {"split": clean["split"], "crop_ratio": ratios[0]}
        for kind, strengths in perturbations.items():
            for row in kv.robustness.curve(network, source, kind, strengths, runs, **options):
                rows.append({"perturbation": row.pop("kind"), **row})
    if json:
        show_json(rows if len(rows) > 1 else rows[0])
    else:
        rows = [{k: v for k, v in row.items() if k != "images_per_second" or v} for row in rows]
        names = [name for name, v in rows[-1].items() if v is None or isinstance(v, float)]
        show(rows, formats=dict.fromkeys(names, _format))


def _held_out(source: str, run: Path, strict: bool) -> tuple[Any, Any]:
    """Return a source, and the names of its images that the model's run held out."""
    if not (run / "held_out.txt").exists():
        return source, None
    dataset = kv.data.load_dataset(source, validation_split=0, strict=strict)
    if dataset.validation is not None or dataset.test is not None:
        return dataset, None
    record = kv.training.run.read_run(run)
    names = set(kv.training.held_out(run)) & set(dataset.train.names())
    run_size = record.get("train_images", 0) + record.get("validation_images", 0)
    # Other images may have the same names; the run's dataset may have grown or moved.
    is_files = not all(map(str.isdigit, names))
    is_same = is_files and record.get("source") in (None, kv.training.run.path_of(source))
    if not names or not (is_same or dataset.train.size == run_size):
        return dataset, None
    say(f"Measured: the images that the run in {run} held out for validation.", error=True)
    return kv.data.load_dataset(source, validation_split=names, strict=strict), names


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


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value >= 10 else f"{value:.4f}"
