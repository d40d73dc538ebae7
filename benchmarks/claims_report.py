"""Print what came out of `benchmarks/claims.py` as Markdown, and draw its figures.

    KERAS_BACKEND=torch python benchmarks/claims_report.py runs/claims runs/figures > runs/claims.md

Each cell is the mean over seeds, with the value of each seed in parentheses; figures are drawn by
`keras_vitx.analysis`.
"""

import argparse
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from claims import FRACTIONS, STRENGTHS, runs

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


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        title: What it is about.
        paper: What the paper found.
        networks: The networks that are compared, trained on all images.
        values: What is compared, a row of the table each.
        figure: Name of the figure and the function that draws it from the measures.
    """

    title: str
    paper: str
    networks: tuple[str, str]
    values: dict[str, Value]
    figure: tuple[str, Callable] | None = None


CONVIT, ATTACKED = ("ViT", "ConViT"), ("ViT", "CB-ViT")
FEW = "Few images (ConViT, Table 2)"
FEW_PAPER = (
    "ConViT_S against DeiT_S on ImageNet, with the same number of images seen: 47.8 against 34.8 "
    "with 5 % of the images, 59.6 against 48.0 with 10 %, 73.7 against 66.1 with 30 %, 81.4 "
    "against 79.9 with all."
)
CLAIMS = (
    Claim(
        "Similar blocks (DeepViT, Table 4)",
        "In a ViT of 24 blocks, 11 are similar to the block before (79.4 %), in a DeepViT none "
        "(80.1 %).",
        ("ViT-24", "DeepViT-24"),
        {"accuracy, %": accuracy, "similar blocks": similar_blocks},
        ("similarity", partial(analysis.plot_matrix, name="cross_layer_similarity")),
    ),
    Claim(
        "Entropy (Context Broadcasting, Figure 5a)",
        "Context Broadcasting raises accuracy (ViT_S: 79.9 to 80.5 %, Table 6) and lowers the "
        "entropy of attention, most in the deeper blocks (Figure 5a).",
        ATTACKED,
        {
            "accuracy, %": accuracy,
            "entropy": lambda result: by_block(result, "entropy").mean(),
            "entropy, deeper half": deeper_entropy,
        },
        ("entropy", partial(analysis.plot_by_block, names="entropy")),
    ),
    Claim(
        "Robustness (Context Broadcasting, Table 8)",
        "With Context Broadcasting, ViT_S gains accuracy on images with an occluded center and "
        "under FGSM. The text gives neither the share nor epsilon.",
        ATTACKED,
        {f"{s:.0%} occluded": under("occlude", s) for s in STRENGTHS["occlude"]}
        | {f"FGSM, {255 * s:.0f}/255": under("fgsm", s) for s in STRENGTHS["fgsm"]},
    ),
    Claim(
        "Branch norms (CaiT, Figure 4)",
        "With LayerScale, the branches have about 20 % of the norm of the tokens, more evenly "
        "over the blocks than without. Spread is the standard deviation over blocks divided by "
        "the mean.",
        ("CaiT-24 without LayerScale", "CaiT-24"),
        {
            "accuracy, %": accuracy,
            "attention branch": lambda result: by_block(result, "attention_branch").mean(),
            "attention branch, spread": lambda result: spread(by_block(result, "attention_branch")),
            "MLP branch": lambda result: by_block(result, "mlp_branch").mean(),
            "MLP branch, spread": lambda result: spread(by_block(result, "mlp_branch")),
        },
        ("branches", partial(analysis.plot_by_block, names=["attention_branch", "mlp_branch"])),
    ),
    Claim(
        "Features (Refiner, Figure 4, Table 2)",
        "Refined attention raises accuracy (ViT of 16 blocks: 78.9 %; with distributed local "
        "attention alone 80.3 %, Table 2; with the whole refiner 83.0 %, Tables 1 and 9), and "
        "features, by normalized CKA, change faster with depth.",
        ("ViT", "Refined-ViT"),
        {
            "accuracy, %": accuracy,
            "normalized CKA, last block": lambda result: by_block(result, "normalized_cka")[-1],
        },
        ("cka", partial(analysis.plot_by_block, names="normalized_cka")),
    ),
)


def read(directory: Path) -> Found:
    found: Found = {}
    for run in runs(100):
        file = run.path(directory, ".json")
        if file.exists():
            found.setdefault((run.network, run.fraction), []).append(json.loads(file.read_text()))
    return found


def report(found: Found, directory: Path) -> None:
    """Print and draw the claims whose runs are there."""
    directory.mkdir(parents=True, exist_ok=True)

    def picture(name):
        print(f"\n![{name}]({directory.name}/claims-{name}.png)")
        return directory / f"claims-{name}.png"

    if all((network, part) in found for network in CONVIT for part in FRACTIONS):
        print_head(FEW, FEW_PAPER, CONVIT)
        for part in FRACTIONS:
            print_row(f"{part:.0%} of the images", accuracy, [found[n, part] for n in CONVIT])
        points = {n: {f: mean(found[n, f], accuracy) for f in FRACTIONS} for n in CONVIT}
        xlabel = "fraction of the training images"
        analysis.plot_curves(points, picture("fractions"), xlabel, baseline="ViT")
    for claim in CLAIMS:
        if not all((network, 1.0) in found for network in claim.networks):
            continue
        results = {network: found[network, 1.0] for network in claim.networks}
        print_head(claim.title, claim.paper, claim.networks)
        for name, value in claim.values.items():
            print_row(name, value, list(results.values()))
        if claim.figure:
            name, plot = claim.figure
            plot({n: mean_measures(one) for n, one in results.items()}, path=picture(name))
        else:
            draw_robustness(results, picture)


def draw_robustness(results: dict[str, list[dict]], picture: Callable[[str], Path]) -> None:
    for kind, label in (("occlude", "share of the area occluded"), ("fgsm", "FGSM, epsilon")):
        values = {0.0: under("occlude", 0.0)} | {s: under(kind, s) for s in STRENGTHS[kind]}
        points = {n: {s: mean(one, v) for s, v in values.items()} for n, one in results.items()}
        analysis.plot_curves(points, picture(kind), label)


def mean(results: list[dict], value: Value) -> float:
    return np.mean([value(result) for result in results])


def print_head(title: str, paper: str, networks: tuple[str, ...]) -> None:
    print(f"\n## {title}\n")
    print(textwrap.fill(f"The paper: {paper}", 118))
    print(f"\n| | {' | '.join(networks)} |\n|---|{'---|' * len(networks)}")


def print_row(name: str, value: Value, row: list[list[dict]]) -> None:
    cells = []
    for results in row:
        values = [value(result) for result in results]
        digits = 1 if max(values) >= 5 else 2
        seeds = ", ".join(f"{one:.{digits}f}" for one in values)
        cells.append(f"{np.mean(values):.{digits}f} ({seeds})")
    print(f"| {name} | {' | '.join(cells)} |")


def mean_measures(results: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """Return the means over seeds, without class blocks, as `keras_vitx.analysis.measure` does."""
    return {
        name: {
            block: np.mean([result["measures"][name][block] for result in results], axis=0)
            for block in blocks
            if "token_only" not in block
        }
        for name, blocks in results[0]["measures"].items()
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument("figures", type=Path, help="directory of the figures")
    options = parser.parse_args(words)
    found = read(options.directory)
    missing = [run for run in runs(1) if (run.network, run.fraction) not in found]
    report(found, options.figures)
    if missing:
        print(f"\nNo result yet: {', '.join(run.path(Path(), '').name for run in missing)}.")


if __name__ == "__main__":
    main()
