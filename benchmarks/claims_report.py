"""Write docs/claims.md, or another page, from the results of `benchmarks/claims.py`.

    KERAS_BACKEND=torch python benchmarks/claims_report.py runs/claims docs/claims.md docs/figures

A claim is a number per seed, positive if the paper is right, and a test that was named before the
runs: Student's t over seeds of its mean against 0, or against a margin (equivalence); or Fisher's
exact test on the number of failed trainings. The tests of a page are corrected together, by Holm.
"""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import exact_claims
import numpy as np
from claims import DESIGNS, FAILED, FRACTIONS, RATES, STRENGTHS, Run
from compare import holm, interval
from scipy import stats

from keras_vitx import analysis

Result = Mapping
Value = Callable[[Result], float]
"""A figure of one run, computed from its result."""


def accuracy(result: Result) -> float:
    return 100 * result["accuracy"]


def by_block(result: Result, name: str, when: str = "measures") -> np.ndarray:
    """Return the means over heads of a measure, by block."""
    return np.array([np.mean(value) for value in result[when][name].values()])


def mean_of(name: str) -> Value:
    return lambda result: by_block(result, name).mean()


def at_start(name: str) -> Value:
    return lambda result: by_block(result, name, "step_0").mean()


def deep_minus_shallow(result: Result, when: str = "measures") -> float:
    values = by_block(result, "entropy", when)
    half = len(values) // 2
    return values[half:].mean() - values[:half].mean()


def last_cka(result: Result, when: str = "measures") -> float:
    return by_block(result, "normalized_cka", when)[-1]


def mlp_spread(result: Result, when: str = "measures") -> float:
    values = by_block(result, "mlp_branch", when)
    return values.std() / values.mean()


def under(kind: str, strength: float) -> Value:
    def accuracy_under(result):
        rows = {row["strength"]: row for row in result["perturbed"][kind]}
        return 100 * rows[strength]["accuracy"]

    return accuracy_under


def gates_of(blocks: slice, when: str = "measures") -> Value:
    return lambda result: by_block(result, "gates", when)[blocks].mean()


Runs = Callable[[Run], Result]
"""The result of a run of one seed."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        title: What it is about, and where the paper has it.
        paper: What the paper found.
        design: Its runs, a name in `DESIGNS`.
        here: What is compared, in words.
        rows: What the table shows of each run, before training ("step 0") and after.
        statistic: One number per seed, positive if the paper is right.
        size: The number as the paper has it; 0 if it gives a direction only.
        margin: If set, the claim is that the number is within it.
        failures: If set, the networks of which the first fails more often; `statistic` is unused.
        figure: The measure that is drawn.
    """

    title: str
    paper: str
    design: str
    here: str
    rows: dict[str, tuple[Value | None, Value]]
    statistic: Callable[[Runs], float] | None = None
    size: float = 0.0
    margin: float | None = None
    failures: tuple[str, str] | None = None
    figure: str | None = None


ACCURACY = {"accuracy, %": (None, accuracy)}
(VIT, CB), (FROZEN, AT_RANDOM), (CONVIT,) = (DESIGNS[n] for n in ("entropy", "frozen", "gates"))
WHOLE, REUSING = DESIGNS["reuse"]
VIT_24, DEEPVIT_24 = DESIGNS["similarity"]


def difference(value: Value, first: Run, second: Run) -> Callable[[Runs], float]:
    return lambda of: value(of(first)) - value(of(second))


def sharing_costs(of: Runs) -> float:
    plain, refined = (
        accuracy(of(Run(f"{name} shared by 0"))) - accuracy(of(Run(f"{name} shared by 3")))
        for name in ("attention", "refined")
    )
    return plain - refined


def slope_of_gap(of: Runs) -> float:
    gaps = [accuracy(of(Run("ConViT", f))) - accuracy(of(Run("ViT", f))) for f in FRACTIONS]
    return -np.polyfit(np.log(FRACTIONS), gaps, 1)[0]


CLAIMS = (
    Claim(
        "Frozen attention with a convolutional start (ConViT, Table 3)",
        "With all GPSA layers frozen, the convolutional start is 4.9 points above a random one.",
        "frozen",
        "accuracy with the start minus without it, in points",
        ACCURACY,
        difference(accuracy, FROZEN, AT_RANDOM),
        size=4.9,
    ),
    Claim(
        "Sharing maps with the next blocks (Refiner, Table 13)",
        "Shared by 0, 1, 2, 3 blocks: plain attention 82, 77, 70, NaN; refined 83.0, 83.0, 82.8, "
        "82.6: by 2 blocks, 11.8 points.",
        "sharing",
        "what sharing by 3 costs plain attention minus what it costs refined attention, in points",
        ACCURACY | {"normalized CKA, last block": (partial(last_cka, when="step_0"), last_cka)},
        sharing_costs,
        size=11.8,
    ),
    Claim(
        "Refined features change faster (Refiner, Figure 4)",
        "By normalized CKA, the features of a refined network change faster with depth.",
        "sharing",
        "normalized CKA of the last block, refined minus plain, nothing shared",
        {},
        difference(last_cka, Run("refined shared by 0"), Run("attention shared by 0")),
    ),
    Claim(
        "LayerScale lets deep networks train (CaiT, Table 1)",
        "DeiT-S of 24 and 36 blocks fails before the end without it, at 78.9 %; with it 82.4 and "
        "82.9 %.",
        "frontier",
        f"trainings of 24 blocks that end below {FAILED:.0%}, of 117 steps each",
        ACCURACY,
        failures=("ViT-24", "ViT-24 LayerScale"),
    ),
    Claim(
        "LayerScale evens out the branches (CaiT, Figure 4)",
        "With it, the norms of the branches beside that of the tokens vary less over the blocks.",
        "frontier",
        "standard deviation over blocks of the MLP branch's norm, divided by its mean: without "
        f"minus with LayerScale, at the learning rate {RATES[0]:g}",
        {"MLP branch, spread": (partial(mlp_spread, when="step_0"), mlp_spread)},
        difference(
            mlp_spread,
            *(Run(name, 0.3, 0.3, RATES[0]) for name in ("ViT-24", "ViT-24 LayerScale")),
        ),
    ),
    Claim(
        "Few images (ConViT, Table 2)",
        "ConViT_S gains over DeiT_S 13.0 points with 5 % of the images, 11.6 with 10 %, 7.6 with "
        "30 %, 1.5 with all: 3.9 per factor e.",
        "few",
        "how much the gap falls per factor e of images, in points",
        ACCURACY,
        slope_of_gap,
        size=3.9,
    ),
    Claim(
        "Entropy in deep blocks (Context Broadcasting, Figure 5a)",
        "Context Broadcasting lowers the entropy of attention, most in the deeper blocks.",
        "entropy",
        "entropy of the deeper half minus that of the shallow half: ViT minus CB-ViT, in nats",
        ACCURACY
        | {
            "entropy": (at_start("entropy"), mean_of("entropy")),
            "deeper minus shallow half": (
                partial(deep_minus_shallow, when="step_0"),
                deep_minus_shallow,
            ),
        },
        difference(deep_minus_shallow, VIT, CB),
        figure="entropy",
    ),
    Claim(
        "Lower entropy (Context Broadcasting, Figure 5a)",
        "Context Broadcasting lowers the entropy of attention.",
        "entropy",
        "mean entropy, ViT minus CB-ViT, in nats",
        {},
        difference(mean_of("entropy"), VIT, CB),
    ),
    Claim(
        "Robustness (Context Broadcasting, Table 8)",
        "Context Broadcasting raises the accuracy of ViT_S on images with an occluded center and "
        "under FGSM, by 1.0 and 5.1 points; the text gives neither the area nor epsilon.",
        "entropy",
        "accuracy with a quarter of the area occluded, CB-ViT minus ViT, in points",
        {f"{s:.0%} occluded": (None, under("occlude", s)) for s in STRENGTHS["occlude"]}
        | {f"FGSM {255 * s:.0f}/255, %": (None, under("fgsm", s)) for s in STRENGTHS["fgsm"]},
        difference(under("occlude", 0.25), CB, VIT),
        size=1.0,
    ),
    Claim(
        "Gates close, deep blocks first (ConViT, Figure 6)",
        "The mean gate falls throughout training, to 0 in the deep GPSA blocks, while heads of "
        "the first five blocks keep attending by position.",
        "gates",
        "mean gate of the first two GPSA blocks minus that of the last two, after training",
        {
            "gate, first two blocks": (gates_of(slice(2), "step_0"), gates_of(slice(2))),
            "gate, last two blocks": (
                gates_of(slice(-2, None), "step_0"),
                gates_of(slice(-2, None)),
            ),
        },
        lambda of: gates_of(slice(2))(of(CONVIT)) - gates_of(slice(-2, None))(of(CONVIT)),
        figure="gates",
    ),
    Claim(
        "Gates fall (ConViT, Figure 6)",
        "The mean gate falls throughout training.",
        "gates",
        "mean gate before training minus after it",
        {},
        lambda of: gates_of(slice(None), "step_0")(of(CONVIT)) - gates_of(slice(None))(of(CONVIT)),
        size=0.7,
    ),
    Claim(
        "Reusing maps costs nothing (DeepViT, Table 3)",
        "24 blocks, the last 11 with the maps of one: 78.7 instead of 79.3 %; 32 blocks, 15: 79.2 "
        "as before.",
        "reuse",
        "accuracy with 5 of 12 blocks reusing maps minus without; equivalent if within 1 point",
        ACCURACY,
        difference(accuracy, REUSING, WHOLE),
        margin=1.0,
    ),
    Claim(
        "Similar maps (DeepViT, Figures 1 to 4)",
        "Maps of adjacent deep blocks of a ViT are nearly the same, those of a DeepViT are not.",
        "similarity",
        "similarity of adjacent maps, without the mean of each row: ViT minus DeepViT",
        ACCURACY
        | {
            "similarity": (at_start("map_similarity"), mean_of("map_similarity")),
            "without rows' means": (
                at_start("centered_similarity"),
                mean_of("centered_similarity"),
            ),
        },
        difference(mean_of("centered_similarity"), VIT_24, DEEPVIT_24),
        figure="centered_similarity",
    ),
)


def read(directory: Path) -> list[dict[Run, Result]]:
    """Return the results by run, its seed set to 0, one dictionary per seed."""
    found = []
    rows = dict.fromkeys(run for design in DESIGNS.values() for run in design)
    for seed in range(100):
        results = {}
        for run in rows:
            file = dataclasses.replace(run, seed=seed).path(directory, ".json")
            if file.exists():
                results[run] = json.loads(file.read_text())
        if not results:
            return found
        found.append(results)
    return found


@dataclass(frozen=True)
class Tested:
    """The test of a claim: numbers by seed, mean, interval of 95 %, and p before correction."""

    by_seed: str
    mean: float = np.nan
    interval: tuple[float, float] = (-np.inf, np.inf)
    p: float | None = None
    summary: str = ""


def tested(claim: Claim, found: list[dict[Run, Result]]) -> Tested:
    """Return the test of a claim; its `p` is None where too little was run."""
    if claim.failures:
        return fisher(claim, found)
    values = []
    for results in found:
        with contextlib.suppress(KeyError):  # A run that it compares is missing.
            values.append(claim.statistic(results.__getitem__))
    text = ", ".join(f"{value:+.2f}" for value in values)
    if len(values) < 2:
        return Tested(text, summary="one seed" if values else "")
    # For an equivalence, p is of the mean being the nearer margin.
    null = 0.0 if claim.margin is None else np.copysign(claim.margin, np.mean(values))
    mean, lower, upper, p = interval(values, null)
    summary = f"{mean:+.2f}, {lower:+.2f} to {upper:+.2f}"
    return Tested(text, mean, (lower, upper), p, summary)


def fisher(claim: Claim, found: list[dict[Run, Result]]) -> Tested:
    counts = []
    for network in claim.failures:
        ends = [
            not results[run]["accuracy"] >= FAILED
            for results in found
            for run in DESIGNS[claim.design]
            if run.network == network and run in results
        ]
        counts.append((sum(ends), len(ends) - sum(ends)))
    text = ", ".join(f"{bad} of {bad + good}" for bad, good in counts)
    if not all(map(sum, counts)):
        return Tested(text)
    (first, _), (second, _) = counts
    return Tested(text, first - second, p=stats.fisher_exact(counts).pvalue)


def verdicts(claims: Sequence[Claim], found: list[dict[Run, Result]]) -> list[tuple[str, ...]]:
    """Return by claim the numbers of the seeds, the interval, p after Holm, and the verdict."""
    tests = [tested(claim, found) for claim in claims]
    corrected = iter(holm([one.p for one in tests if one.p is not None]))
    rows = []
    for claim, one in zip(claims, tests, strict=True):
        if one.p is None:
            verdict = "no power" if one.summary else "not run"
            rows.append((one.by_seed, one.summary, "", verdict))
            continue
        p = next(corrected)
        is_right = one.mean > 0 if claim.margin is None else abs(one.mean) < claim.margin
        if p < 0.05:
            verdict = "shows" if is_right else "contradicts"
        elif claim.margin is None and one.interval[1] < claim.size:
            verdict = "not at this scale"
        else:
            verdict = "no power"
        rows.append((one.by_seed, one.summary, f"{p:.2g}", verdict))
    return rows


def page(found: list[dict[Run, Result]], figures: Path) -> str:
    """Return the page, and draw its figures."""
    titles = ("claim", "by seed", "mean and 95 % interval", "p, Holm", "verdict")
    lines = [HEAD, f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for claim, row in zip(CLAIMS, verdicts(CLAIMS, found), strict=True):
        lines.append(f"| {' | '.join((claim.title, *row))} |")
    lines.append("\n## What was compared")
    for claim in CLAIMS:
        design = DESIGNS[claim.design]
        if not any(run in results for results in found for run in design):
            continue
        lines.append(f"\n**{claim.title}.** The paper: {claim.paper} Compared: {claim.here}.")
        lines += [*(table(claim, found) if claim.rows else ()), *figure(claim, found, figures)]
    lines += ["\n## Claims that hold to rounding\n", EXACT, *exact_claims.rows()]
    return "\n".join(lines) + "\n"


def table(claim: Claim, found: list[dict[Run, Result]]) -> list[str]:
    """Return a row per run, with the value of each seed before and after training."""
    columns = [
        (label, value, label + ", step 0" * (value is before))
        for label, (before, after) in claim.rows.items()
        for value in filter(None, (before, after))
    ]
    lines = [f"\n| network | {' | '.join(title for *_, title in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for run in DESIGNS[claim.design]:
        results = [each[run] for each in found if run in each]
        name = run.network + (f", {run.fraction:.0%} of the images" * (claim.design == "few"))
        name += f", learning rate {run.learning_rate:g}" * (claim.design == "frontier")
        cells = [
            ", ".join(f"{value(one):.{1 + ('%' not in label)}f}" for one in results)
            for label, value, _ in columns
        ]
        lines += [f"| {' | '.join((name, *cells))} |"] * bool(results)
    return lines


def figure(claim: Claim, found: list[dict[Run, Result]], figures: Path) -> list[str]:
    """Draw the measure of a claim by block, before and after training, or during it (gates)."""
    results = {
        run.network: [each[run] for each in found if run in each] for run in DESIGNS[claim.design]
    }
    results = {network: each for network, each in results.items() if each}
    if claim.figure is None or not results:
        return []
    figures.mkdir(parents=True, exist_ok=True)
    path = figures / f"claims-{claim.figure}.png"
    if claim.figure == "gates":
        (runs,) = results.values()
        analysis.plot_dynamics(runs[0]["dynamics"], path, "gates", heads=True)
    else:
        by_network = {}
        for network, runs in results.items():
            for when, word in (("step_0", ", step 0"), ("measures", "")):
                values = [run[when][claim.figure] for run in runs]
                means = {b: np.mean([np.mean(each[b]) for each in values]) for b in values[0]}
                by_network[network + word] = {claim.figure: means}
        analysis.plot_by_block(by_network, names=claim.figure, path=path)
    return [f"\n![{claim.figure}]({figures.name}/{path.name})"]


HEAD = """# The papers' claims, tried small

Claims of the five papers about attention, tried with networks that a CPU core trains in minutes:
6 to 24 blocks of width 48, with 8 x 8 patches of CIFAR-10 (64 tokens; the papers have 196),
trained for two epochs of all images or as many steps of fewer, by AdamW without strong
augmentation. The papers trained networks of 20 to 90 million parameters on ImageNet for 300
epochs. A difference that shows here is one of early training; a claim without power is not
refuted.

`benchmarks/claims.py` has the runs, `benchmarks/claims_report.py` the statistics, and writes this
page. A number per seed is positive if the paper is right; with it come its mean and the 95 %
interval (Student's t), and p of the test against 0, corrected for all tests of the page (Holm).
"Shows", "contradicts": p below .05, and a positive or a negative mean. "Not at this scale": else,
if the interval excludes the size that the paper has, or, where it has a direction only, lies on the
other side of 0. "No power": else. Claims of which nothing was run have a row in this table only. In
the tables below, a cell has a value per seed, and "step 0" is the same network with random weights.

The number of seeds is decided before the first run: three. This page departs from that once: the
frozen attention has five, its fourth and fifth added after three that held 0, so that its interval
is too narrow. Of four fractions of the images, two were left out before any was run. Of five
learning rates of LayerScale's, four were run, the highest two added when no training failed. Rows
and verdicts have all that was run.

`examples/compare.py` has recipe, interval and correction for any networks and images.

```sh
KERAS_BACKEND=torch python benchmarks/claims.py cifar10.npz runs/claims
KERAS_BACKEND=torch python benchmarks/claims_report.py runs/claims \\
    docs/claims.md docs/figures
```
"""


EXACT = """These need no training: both sides are computed from random numbers in float32, and
their largest difference is given beside the largest value (`python
benchmarks/exact_claims.py`).
"""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument("page", type=Path, help="the page to write")
    parser.add_argument("figures", type=Path, help="directory of the figures, beside the page")
    options = parser.parse_args(words)
    options.page.write_text(page(read(options.directory), options.figures), "utf-8")


if __name__ == "__main__":
    main()
