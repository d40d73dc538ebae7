"""Accuracy as a function of the strength of a perturbation."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vitx.robustness import perturbations as p
from keras_vitx.training.evaluate import evaluate

PERTURBATIONS: dict[str, Callable[..., Any]] = {
    "occlude": p.Occlusion,
    "fgsm": p.FGSM,
    "pgd": p.PGD,
    "noise": p.GaussianNoise,
    "shot_noise": p.ShotNoise,
    "blur": p.GaussianBlur,
}
"""The perturbations by name, as functions of a model and a strength."""

RANDOM = ("pgd", "noise", "shot_noise")  # Perturbations with a seed.
# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def curve(
    model: keras.Model,
    source: Any,
    kind: str,
    strengths: Sequence[float],
    runs: int = 1,
    evaluate: Callable[..., dict[str, Any]] = evaluate,
    measure: str = "accuracy",
    **options: Any,
) -> list[dict[str, Any]]:
    """Evaluate a model on images perturbed with each strength.

    Args:
        model: A classifier with `preprocessing`.
        source: Labeled images, as in `keras_vitx.evaluate`.
        kind: One of `PERTURBATIONS`.
        strengths: The strengths, in the units of the perturbation.
        runs: Number of evaluations of random perturbations with different seeds, at most 10
            (Context Broadcasting, Table 12, has five).
        evaluate: `keras_vitx.evaluate` or `keras_vitx.segmentation.evaluate`.
        measure: Key of its result, such as `"mean_iou"`.
        **options: Further arguments of `evaluate`, such as `batch_size`.

    Returns:
        One dictionary per strength: `"kind"`, `"strength"`, the measure by its name (the mean of
        the runs), `"interval"` (half the width of its 95 % confidence interval, None for one run)
        and `"images"`.

    Raises:
        ValueError: if an argument is unknown or out of range.
    """
    if kind not in PERTURBATIONS:
        raise ValueError(f"`kind` must be one of {', '.join(PERTURBATIONS)}. Received: {kind!r}.")
    if not isinstance(runs, int) or not 1 <= runs <= len(T) + 1:
        raise ValueError(f"`runs` must be an integer in 1..{len(T) + 1}. Received: {runs!r}.")
    if not isinstance(strengths, (Sequence, np.ndarray)) or isinstance(strengths, str):
        raise ValueError(f"`strengths` must be a list of numbers. Received: {strengths!r}.")
    seeds = [{"seed": seed} for seed in range(runs)] if kind in RANDOM else [{}]
    # Before the first evaluation, so that an invalid strength costs no time.
    perturbations = [[PERTURBATIONS[kind](model, x, **seed) for seed in seeds] for x in strengths]
    rows = []
    for strength, perturbs in zip(strengths, perturbations, strict=True):
        results = [evaluate(model, source, perturb=perturb, **options) for perturb in perturbs]
        if measure not in results[0]:
            raise ValueError(
                f"`measure` must be one of {', '.join(results[0])}, which `evaluate` returned. "
                f"Received: {measure!r}."
            )
        values = [result[measure] for result in results]
        row = {"kind": kind, "strength": strength, measure: statistics.fmean(values)}
        rows.append({**row, "interval": interval(values), "images": results[0]["images"]})
    return rows


def interval(values: Sequence[float]) -> float | None:
    r"""Return half the 95 % confidence interval of a mean, $t\,s / \sqrt n$; None for one value."""
    if len(values) < 2:
        return None
    return T[len(values) - 2] * statistics.stdev(values) / len(values) ** 0.5
