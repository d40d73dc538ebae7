"""Print the tables of docs/claims.md, and draw its figures.

    python benchmarks/claims_report.py runs/claims docs/figures

The folder is the one that `benchmarks/claims.py` wrote. Each cell is the mean over seeds, with
the values of the seeds in brackets; figures are drawn by `keras_vitx.analysis`.
"""

import argparse
import json
from collections.abc import Callable
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


DEEPVIT, CB = ("ViT-24", "DeepViT-24"), ("ViT", "CB-ViT")
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
"""For each pair of networks, the figures that a claim is about."""


def read(folder: Path) -> Found:
    found: Found = {}
    for run in runs(100):
        file = run.path(folder, ".json")
        if file.exists():
            found.setdefault((run.network, run.fraction), []).append(json.loads(file.read_text()))
    missing = {(run.network, run.fraction) for run in runs(1)} - found.keys()
    if missing:
        raise SystemExit(f"{folder} has no result of {sorted(missing)}.")
    return found


def print_tables(found: Found) -> None:
    networks = ("ViT", "ConViT")
    print_head(networks)
    for part in FRACTIONS:
        print_row(f"{part:.0%} of the images", accuracy, [found[n, part] for n in networks])
    for networks, values in TABLES:
        print_head(networks)
        for name, value in values.items():
            print_row(name, value, [found[network, 1.0] for network in networks])


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
    folder.mkdir(parents=True, exist_ok=True)

    def path(name):
        return folder / f"claims-{name}.png"

    def mean(network, value, part=1.0):
        return np.mean([value(result) for result in found[network, part]])

    def measures(networks):
        return {network: mean_measures(found[network, 1.0]) for network in networks}

    points = {n: {f: mean(n, accuracy, f) for f in FRACTIONS} for n in ("ViT", "ConViT")}
    analysis.plot_accuracy(points, path("fractions"), baseline="ViT")
    analysis.plot_similarity_matrix(measures(DEEPVIT), path("similarity"))
    analysis.plot_entropy(measures(CB), path("entropy"))
    analysis.plot_branches(measures(CAIT), path("branches"))
    analysis.plot_by_block(measures(REFINED), "normalized_cka", path("cka"), "normalized CKA")
    for kind, label in (("occlude", "share of the area occluded"), ("fgsm", "FGSM, epsilon")):
        strengths = {0.0: under("occlude", 0.0)} | {s: under(kind, s) for s in STRENGTHS[kind]}
        points = {n: {s: mean(n, value) for s, value in strengths.items()} for n in ATTACKED}
        analysis.plot_accuracy(points, path(kind), label)


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
    print_tables(found)
    draw(found, options.figures)


if __name__ == "__main__":
    main()
