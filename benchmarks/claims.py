"""Try claims of the five papers on CIFAR-10, with networks that a core trains in minutes.

    KERAS_BACKEND=torch python benchmarks/claims.py run cifar10.npz runs/claims
    KERAS_BACKEND=torch python benchmarks/claims.py report runs/claims docs/figures

The first line trains and measures every run whose result is not yet in the folder; start it
several times to use several cores. The second prints the tables of docs/claims.md and draws its
figures.
"""

import argparse
import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx import analysis, robustness
from keras_vitx.files import written_whole

SIZE = {"dim": 48, "num_heads": 4, "mlp_ratio": 4.0, "patch_size": 8}
SIZE |= {"input_shape": (32, 32, 3), "classes": 10}
LIKE_VIT = {"residual_scale": 1.0, "layer_scale": None, "conv_stem": False}
NETWORKS = {
    "ViT": (kv.ViT, {"depth": 6}),
    "ConViT": (kv.ConViT, {"depth": 6, "local_depth": 5}),
    "CB-ViT": (kv.CBViT, {"depth": 6}),
    "Refined-ViT": (kv.RefinedViT, {"depth": 6, "refiner": "paper", **LIKE_VIT}),
    "ViT-24": (kv.ViT, {"depth": 24}),
    "DeepViT-24": (kv.DeepViT, {"depth": 24}),
    "CaiT-24": (kv.CaiT, {"depth": 24, "layer_scale": 1e-5}),
    "CaiT-24 without LayerScale": (kv.CaiT, {"depth": 24, "layer_scale": None}),
}
COLOURS = kv.Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
"""How images are prepared for all of them; the families have different defaults."""

FRACTIONS = (0.05, 0.1, 0.3, 1.0)
ATTACKED = ("ViT", "CB-ViT")
STRENGTHS = {"occlude": (0.0, 0.1, 0.25, 0.5), "fgsm": (0.0, 1 / 255, 2 / 255, 4 / 255)}
MEASURES = (
    *("entropy", "uniform_entropy", "cross_layer_similarity", "normalized_cka"),
    *("attention_branch", "mlp_branch"),
)
MEASURED, PERTURBED = 1000, 2000
"""Numbers of test images; accuracy is that on all of them."""


@dataclass(frozen=True)
class Run:
    """A network trained on a fraction of the images, for as many steps as on all of them."""

    network: str
    fraction: float
    seed: int

    def path(self, folder: Path, suffix: str) -> Path:
        name = f"{self.network}-{self.fraction:g}-{self.seed}".replace(" ", "-")
        return folder / (name + suffix)


def runs(seeds: int) -> list[Run]:
    """Return the table of runs, one seed after the other."""
    pairs = [(network, 1.0) for network in NETWORKS]
    pairs += [(network, part) for part in FRACTIONS[:-1] for network in ("ViT", "ConViT")]
    return [Run(*pair, seed) for seed in range(seeds) for pair in pairs]


# Train.


def recipe(run: Run, options: argparse.Namespace) -> kv.training.Recipe:
    """Return a light form of `small_images`, in which all fractions see equally many images."""
    light = kv.training.recipes.get("small_images").but(
        rand_augment=None, erasing=0.0, mixing=None, drop_path=0.0, ema=None, result="last"
    )
    whole = options.deep_epochs if NETWORKS[run.network][1]["depth"] > 6 else options.epochs
    epochs = 1 if options.smoke else round(whole / run.fraction)
    return light.but(epochs=epochs, warmup_epochs=0.1 * epochs, learning_rate=2e-3)


def network(run: Run, options: argparse.Namespace) -> tuple[Callable, dict[str, Any]]:
    """Return the family and the arguments of the network."""
    family, own = NETWORKS[run.network]
    arguments = {**SIZE, **own}
    if options.smoke:
        arguments |= {"dim": 8, "depth": 2, "patch_size": 16}
        arguments |= {"local_depth": 1} if "local_depth" in own else {}
    return family, arguments


def train(run: Run, options: argparse.Namespace) -> keras.Model:
    keras.utils.set_random_seed(run.seed)
    family, arguments = network(run, options)
    model = family(**arguments)
    model.preprocessing = COLOURS
    data = {"fraction": run.fraction, "validation_split": 0.0, "seed": run.seed}
    kv.fit(model, options.source, recipe(run, options), **data, verbose=0)
    return model


# Measure.


def measure(model: keras.Model, run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Return the accuracy and the measures of a trained network on the test images."""
    test = kv.data.open_source(options.source, validation_split=0.0).test
    images = kv.preprocess_input(list(test.images[:MEASURED]), model)
    found = analysis.measure(model, images, MEASURES)
    result = {
        "accuracy": kv.evaluate(model, options.source, "test", batch_size=500)["accuracy"],
        "measures": {
            name: {block: value.tolist() for block, value in values.items()}
            for name, values in found.items()
        },
    }
    if run.network in ATTACKED and run.fraction == 1:
        few = (test.images[:PERTURBED], test.labels[:PERTURBED])
        whole = {"part": "train", "validation_split": 0.0}
        result["perturbed"] = {
            kind: robustness.curve(model, few, kind, strengths, **whole)
            for kind, strengths in STRENGTHS.items()
        }
    return result


def run_all(options: argparse.Namespace) -> None:
    """Train and measure what has no result yet."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for run in runs(options.seeds):
        with alone(run.path(options.folder, ".lock")) as is_alone:
            if is_alone:
                run_one(run, options)


def run_one(run: Run, options: argparse.Namespace) -> None:
    file, weights = (run.path(options.folder, suffix) for suffix in (".json", ".keras"))
    settings = {"network": network(run, options)[1], "recipe": recipe(run, options).to_dict()}
    settings = json.loads(json.dumps(settings))
    if not file.exists():
        start = time.process_time()
        if not weights.exists():
            model = train(run, options)
            with written_whole(weights) as path:
                model.save(path)
        result = measure(keras.saving.load_model(weights), run, options)
        result |= {"cpu_seconds": round(time.process_time() - start), **settings}
        with written_whole(file) as path:
            path.write_text(json.dumps(result))
    result = json.loads(file.read_text())
    if any(result[name] != value for name, value in settings.items()):
        raise SystemExit(f"{file} has other settings: choose another folder.")
    print(f"{file.stem:36}{100 * result['accuracy']:6.2f} %", flush=True)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Yield whether no other process is in this context with the same path."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


# Report. `results` are those of one network on one fraction of the images, one per seed.


def read(folder: Path) -> dict[tuple[str, float], list[dict]]:
    found: dict[tuple[str, float], list[dict]] = {}
    for run in runs(100):
        file = run.path(folder, ".json")
        if file.exists():
            found.setdefault((run.network, run.fraction), []).append(json.loads(file.read_text()))
    return found


def accuracy(result: dict) -> float:
    return 100 * result["accuracy"]


def under(kind: str, index: int) -> Callable[[dict], float]:
    return lambda result: 100 * result["perturbed"][kind][index]["accuracy"]


def by_block(name: str) -> Callable[[dict], np.ndarray]:
    """Return a function that returns a measure of each block, the mean over heads."""

    def values(result):
        blocks = result["measures"][name].items()
        return np.array([np.mean(value) for block, value in blocks if "token_only" not in block])

    return values


def mean(name: str, start: int = 0) -> Callable[[dict], float]:
    return lambda result: by_block(name)(result)[start:].mean()


def spread(name: str) -> Callable[[dict], float]:
    """Return a function that returns the standard deviation over blocks, in parts of the mean."""
    return lambda result: by_block(name)(result).std() / by_block(name)(result).mean()


def similar_blocks(result: dict) -> float:
    shares = list(result["measures"]["cross_layer_similarity"].values())
    return analysis.measures.similar_blocks(np.array(shares)).sum()


TABLES = {
    ("ViT-24", "DeepViT-24"): {"accuracy, %": accuracy, "similar blocks of 24": similar_blocks},
    ("ViT", "CB-ViT"): {
        "accuracy, %": accuracy,
        "entropy": mean("entropy"),
        "entropy, deeper half": mean("entropy", 3),
    },
    ("CaiT-24 without LayerScale", "CaiT-24"): {
        "accuracy, %": accuracy,
        "attention branch / tokens": mean("attention_branch"),
        "spread over blocks": spread("attention_branch"),
        "MLP branch / tokens": mean("mlp_branch"),
        "its spread over blocks": spread("mlp_branch"),
    },
    ("ViT", "Refined-ViT"): {
        "accuracy, %": accuracy,
        "normalized CKA of the last block": mean("normalized_cka", -1),
    },
    ATTACKED: {
        f"{kind} {strength:.3g}": under(kind, index)
        for kind, strengths in STRENGTHS.items()
        for index, strength in enumerate(strengths)
    },
}
"""For each pair of networks, the figures that a claim is about."""


def report(options: argparse.Namespace) -> None:
    """Print the tables and draw the figures."""
    found = read(options.folder)
    rows = {f"{f:.0%} of the images": [found[n, f] for n in ("ViT", "ConViT")] for f in FRACTIONS}
    print_table(("ViT", "ConViT"), {name: (accuracy, row) for name, row in rows.items()})
    for networks, values in TABLES.items():
        row = [found[network, 1.0] for network in networks]
        print_table(networks, {name: (value, row) for name, value in values.items()})
    draw(found, options.figures)


def print_table(networks: tuple[str, ...], rows: dict[str, tuple]) -> None:
    """Print a Markdown table: the mean over seeds, and the values of the seeds in brackets."""
    print(f"\n| | {' | '.join(networks)} |\n|---|{'---|' * len(networks)}")
    for name, (value, row) in rows.items():
        cells = []
        for results in row:
            values = [value(result) for result in results]
            digits = 1 if max(values) >= 3 else 2
            seeds = ", ".join(f"{v:.{digits}f}" for v in values)
            cells.append(f"{np.mean(values):.{digits}f} ({seeds})")
        print(f"| {name} | {' | '.join(cells)} |")


def draw(found: dict[tuple[str, float], list[dict]], folder: Path) -> None:
    """Draw the means over seeds with the figures of `keras_vitx.analysis`."""
    folder.mkdir(parents=True, exist_ok=True)
    points = {n: {f: mean_of(found[n, f], accuracy) for f in FRACTIONS} for n in ("ViT", "ConViT")}
    analysis.plot_accuracy(points, folder / "claims-fractions.png", baseline="ViT")
    deep = measures_of(found, "ViT-24", "DeepViT-24")
    analysis.plot_similarity_matrix(deep, folder / "claims-similarity.png")
    analysis.plot_entropy(measures_of(found, "ViT", "CB-ViT"), folder / "claims-entropy.png")
    scaled = measures_of(found, "CaiT-24 without LayerScale", "CaiT-24")
    analysis.plot_branches(scaled, folder / "claims-branches.png")
    refined = measures_of(found, "ViT", "Refined-ViT")
    analysis.plot_by_block(refined, "normalized_cka", folder / "claims-cka.png", "normalized CKA")
    for kind, label in (("occlude", "occluded share"), ("fgsm", "FGSM, epsilon")):
        points = {
            n: {s: mean_of(found[n, 1.0], under(kind, i)) for i, s in enumerate(STRENGTHS[kind])}
            for n in ATTACKED
        }
        analysis.plot_accuracy(points, folder / f"claims-{kind}.png", label)


def mean_of(results: list[dict], value: Callable[[dict], float]) -> float:
    return np.mean([value(result) for result in results])


def measures_of(found, *networks: str) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Return the measures of networks as `analysis.measure` does, as means over seeds."""
    return {
        network: {
            name: {
                block: np.mean(
                    [one["measures"][name][block] for one in found[network, 1.0]], axis=0
                )
                for block in blocks
            }
            for name, blocks in found[network, 1.0][0]["measures"].items()
        }
        for network in networks
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("run", help="train and measure what has no result yet")
    verb.add_argument("source", help="CIFAR-10: cifar10.npz or tfds:cifar10")
    verb.add_argument("folder", type=Path, help="of the results")
    verb.add_argument("--seeds", type=int, default=2, help="runs of each kind")
    verb.add_argument("--epochs", type=int, default=3, help="on all images; more on a fraction")
    verb.add_argument("--deep-epochs", type=int, default=2, help="of the networks of 24 blocks")
    verb.add_argument("--smoke", action="store_true", help="tiny networks, one epoch")
    verb.set_defaults(call=run_all)
    verb = verbs.add_parser("report", help="print the tables, draw the figures")
    verb.add_argument("folder", type=Path, help="of the results")
    verb.add_argument("figures", type=Path, help="folder of the figures")
    verb.set_defaults(call=report)
    options = parser.parse_args(words)
    options.call(options)


if __name__ == "__main__":
    main()
