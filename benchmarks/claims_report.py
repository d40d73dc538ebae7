"""Print the tables of docs/claims.md, and draw its figures.

    python benchmarks/claims_report.py runs/claims docs/figures

The folder is the one that `benchmarks/claims.py` wrote. Each cell is the mean over seeds, with
the values of the seeds in brackets; figures are drawn by `keras_vitx.analysis`.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from claims import ATTACKED, FRACTIONS, STRENGTHS, runs

from keras_vitx import analysis

Value = Callable[[dict], float]
"""A figure of one run, computed from its result."""
Found = dict[tuple[str, float], list[dict]]
"""The results of each seed, by network and fraction of the images."""


def accuracy(result: dict) -> float:
    return 100 * result["accuracy"]


def similar_blocks(result: dict) -> float:
    shares = list(result["measures"]["cross_layer_similarity"].values())
    return analysis.measures.similar_blocks(np.array(shares)).sum()


def by_block(result: dict, name: str) -> np.ndarray:
    """Return the means over heads of a measure, without class blocks."""
    blocks = result["measures"][name].items()
    return np.array([np.mean(value) for block, value in blocks if "token_only" not in block])


def deeper_entropy(result: dict) -> float:
    values = by_block(result, "entropy")
    return values[len(values) // 2 :].mean()


def spread(values: np.ndarray) -> float:
    return values.std() / values.mean()


def under(kind: str, strength: float) -> Value:
    def accuracy_under(result):
        rows = {row["strength"]: row for row in result["perturbed"][kind]}
        return 100 * rows[strength]["accuracy"]

    return accuracy_under


CONVIT, CB = ("ViT", "ConViT"), ("ViT", "CB-ViT")
DEEPVIT = ("ViT-24", "DeepViT-24")
CAIT, REFINED = ("CaiT-24 without LayerScale", "CaiT-24"), ("ViT", "Refined-ViT")
TABLES: tuple[tuple[tuple[str, str], dict[str, Value]], ...] = (
    (DEEPVIT, {"accuracy, %": accuracy, "similar blocks": similar_blocks}),
    (
        CB,
        {
            "accuracy, %": accuracy,
            "entropy": lambda result: by_block(result, "entropy").mean(),
            "entropy, deeper half": deeper_entropy,
        },
    ),
    (
        CAIT,
        {
            "accuracy, %": accuracy,
            "attention branch": lambda result: by_block(result, "attention_branch").mean(),
            "its spread": lambda result: spread(by_block(result, "attention_branch")),
            "MLP branch": lambda result: by_block(result, "mlp_branch").mean(),
            "the spread of that": lambda result: spread(by_block(result, "mlp_branch")),
        },
    ),
    (
        REFINED,
        {
            "accuracy, %": accuracy,
            "normalized CKA, last block": lambda result: by_block(result, "normalized_cka")[-1],
        },
    ),
    (ATTACKED, {f"{s:.0%} occluded": under("occlude", s) for s in STRENGTHS["occlude"]}),
    (ATTACKED, {f"FGSM, {255 * s:.0f}/255": under("fgsm", s) for s in STRENGTHS["fgsm"]}),
)
"""For each pair of networks, the values that a claim is about."""
FIGURES = (
    (DEEPVIT, "similarity", analysis.plot_similarity_matrix),
    (CB, "entropy", analysis.plot_entropy),
    (CAIT, "branches", analysis.plot_branches),
    (REFINED, "cka", partial(analysis.plot_by_block, name="normalized_cka")),
)


def read(folder: Path) -> Found:
    found: Found = {}
    for run in runs(100):
        file = run.path(folder, ".json")
        if file.exists():
            found.setdefault((run.network, run.fraction), []).append(json.loads(file.read_text()))
    return found


def print_tables(found: Found) -> None:
    """Print the tables of all claims whose runs are there."""
    if all((network, part) in found for network in CONVIT for part in FRACTIONS):
        print_head(CONVIT)
        for part in FRACTIONS:
            print_row(f"{part:.0%} of the images", accuracy, [found[n, part] for n in CONVIT])
    for networks, values in TABLES:
        if are_there(found, networks):
            print_head(networks)
            for name, value in values.items():
                print_row(name, value, [found[network, 1.0] for network in networks])


def are_there(found: Found, networks: tuple[str, ...]) -> bool:
    return all((network, 1.0) in found for network in networks)


def print_head(networks: tuple[str, ...]) -> None:
    print(f"\n| | {' | '.join(networks)} |\n|---|{'---|' * len(networks)}")


def print_row(name: str, value: Value, row: list[list[dict]]) -> None:
    cells = []
    for results in row:
        values = [value(result) for result in results]
        digits = 1 if max(values) >= 5 else 2
        seeds = ", ".join(f"{one:.{digits}f}" for one in values)
        cells.append(f"{np.mean(values):.{digits}f} ({seeds})")
    print(f"| {name} | {' | '.join(cells)} |")


def draw(found: Found, folder: Path) -> None:
    """Draw the figures of all claims whose runs are there."""
    folder.mkdir(parents=True, exist_ok=True)

    def mean(network, value, part=1.0):
        return np.mean([value(result) for result in found[network, part]])

    if all((network, part) in found for network in CONVIT for part in FRACTIONS):
        points = {n: {part: mean(n, accuracy, part) for part in FRACTIONS} for n in CONVIT}
        analysis.plot_accuracy(points, folder / "claims-fractions.png", baseline="ViT")
    for networks, name, plot in FIGURES:
        if are_there(found, networks):
            measures = {network: mean_measures(found[network, 1.0]) for network in networks}
            plot(measures, path=folder / f"claims-{name}.png")
    if are_there(found, ATTACKED):
        for kind, label in (("occlude", "share of the area occluded"), ("fgsm", "FGSM, epsilon")):
            values = {0.0: under("occlude", 0.0)} | {s: under(kind, s) for s in STRENGTHS[kind]}
            points = {n: {s: mean(n, value) for s, value in values.items()} for n in ATTACKED}
            analysis.plot_accuracy(points, folder / f"claims-{kind}.png", label)


def mean_measures(results: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Return the means over seeds, in the form that `keras_vitx.analysis.measure` returns."""
    return {
        name: {
            block: np.mean([result["measures"][name][block] for result in results], axis=0)
            for block in blocks
        }
        for name, blocks in results[0]["measures"].items()
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("figures", type=Path, help="folder of the figures")
    options = parser.parse_args(words)
    found = read(options.folder)
    missing = [run for run in runs(1) if (run.network, run.fraction) not in found]
    print_tables(found)
    draw(found, options.figures)
    if missing:
        print(f"\nNo result yet: {', '.join(run.path(Path(), '').name for run in missing)}.")


if __name__ == "__main__":
    main()
