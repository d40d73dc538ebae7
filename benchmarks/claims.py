"""Try claims of the five papers on CIFAR-10, with networks that a core trains in minutes.

    KERAS_BACKEND=torch python benchmarks/claims.py cifar10.npz runs/claims
    KERAS_BACKEND=torch python benchmarks/claims.py cifar10.npz runs/claims --designs frozen gates

Trains and measures every run of the designs whose result is not yet in the directory, by the recipe
of `examples/compare.py`. `benchmarks/claims_report.py` writes docs/claims.md from the results, and
says there what is still missing.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx import analysis, robustness
from keras_vitx.files import atomic_write

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from compare import LIGHT

SIZE = {"dim": 48, "num_heads": 4, "mlp_ratio": 4.0, "patch_size": 4, "depth": 6}
SIZE |= {"input_shape": (32, 32, 3), "classes": 10}
"""An image has 8 x 8 patches."""
SHARED = {"depth": 8, "residual_scale": 1.0, "layer_scale": None, "conv_stem": False}
NETWORKS: dict[str, tuple[Callable, dict[str, Any]]] = {
    "ViT": (kv.ViT, {}),
    "CB-ViT": (kv.CBViT, {}),
    "ConViT": (kv.ConViT, {"local_depth": 5}),
    "ConViT frozen": (kv.ConViT, {"local_depth": 5, "frozen_attention": True}),
    "ConViT frozen at random": (
        kv.ConViT,
        {"local_depth": 5, "frozen_attention": True, "conv_start": False},
    ),
    "ViT-12": (kv.ViT, {"depth": 12}),
    "ViT-12 reusing 5": (kv.DeepViT, {"depth": 12, "re_attention_depth": 0, "shared_depth": 5}),
    "ViT-24": (kv.ViT, {"depth": 24}),
    "ViT-24 LayerScale": (kv.ViT, {"depth": 24, "layer_scale": 1e-5}),
    "DeepViT-24": (kv.DeepViT, {"depth": 24}),
    **{
        f"{name} shared by {count}": (
            kv.RefinedViT,
            {**SHARED, "refiner": refiner, "shared_depth": count},
        )
        for name, refiner in (("attention", None), ("refined", "paper"))
        for count in range(4)
    },
}
COLORS = kv.Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
"""How images are prepared for all of them; the families have different defaults."""

FRACTIONS = (0.1, 1.0)
"""Two, since each costs six trainings: the slope is that between them."""
RATES = (2e-3, 8e-3, 3.2e-2, 0.128, 0.512)
FAILED = 0.15
"""Accuracy below which a training counts as failed."""
STRENGTHS = {"occlude": (0.0, 0.1, 0.25, 0.5), "fgsm": (1 / 255, 2 / 255, 4 / 255)}
MEASURES = ("entropy", "map_similarity", "attention_branch", "mlp_branch", "normalized_cka")
MEASURED, PERTURBED = 512, 1000
"""Numbers of test images; accuracy is that on all of them."""

Labeled = tuple[np.ndarray, np.ndarray]
"""Images and labels."""


@dataclass(frozen=True)
class Run:
    """A network trained on a fraction of the images, for `passes` over as many as there are."""

    network: str
    fraction: float = 1.0
    passes: float = 2.0
    learning_rate: float = 2e-3
    seed: int = 0

    def path(self, directory: Path, suffix: str) -> Path:
        numbers = (self.fraction, self.passes, self.learning_rate, self.seed)
        name = "-".join([self.network, *(f"{number:g}" for number in numbers)])
        return directory / (name.replace(" ", "-") + suffix)


DESIGNS: dict[str, tuple[Run, ...]] = {
    "entropy": (Run("ViT"), Run("CB-ViT")),
    "frozen": (Run("ConViT frozen"), Run("ConViT frozen at random")),
    "gates": (Run("ConViT"),),
    "frontier": tuple(
        Run(network, 0.3, 0.3, rate)
        for rate in RATES
        for network in ("ViT-24", "ViT-24 LayerScale")
    ),
    "sharing": tuple(
        Run(f"{name} shared by {count}")
        for count in (0, 3, 1, 2)
        for name in ("attention", "refined")
    ),
    "few": tuple(Run(name, part) for part in FRACTIONS[::-1] for name in ("ViT", "ConViT")),
    "reuse": (Run("ViT-12"), Run("ViT-12 reusing 5")),
    "similarity": (Run("ViT-24", 1.0, 1.0), Run("DeepViT-24", 1.0, 1.0)),
}
"""The runs of each design, each of them once per seed."""


def runs(designs: list[str], seeds: int) -> list[Run]:
    """Return the runs of the designs, one seed of a design after the other, each once."""
    rows = [
        Run(run.network, run.fraction, run.passes, run.learning_rate, seed)
        for design in designs
        for seed in range(seeds)
        for run in DESIGNS[design]
    ]
    return list(dict.fromkeys(rows))


def recipe(run: Run, smoke: bool) -> kv.training.Recipe:
    """Return a recipe with which all fractions see equally many images."""
    epochs = 1 if smoke else round(run.passes / run.fraction)
    return LIGHT.replace(epochs=epochs, warmup_epochs=0.1 * epochs, learning_rate=run.learning_rate)


def network(run: Run, smoke: bool) -> tuple[Callable, dict[str, Any]]:
    """Return the family and the arguments of the network."""
    family, own = NETWORKS[run.network]
    arguments = {**SIZE, **own}
    if smoke:
        arguments |= {"dim": 8, "depth": 4, "patch_size": 16}
        arguments |= {name: 2 for name in ("local_depth", "shared_depth") if own.get(name)}
    return family, arguments


def measure(model: keras.Model, images: np.ndarray) -> dict[str, dict[str, list]]:
    """Return the means of the measures by block, those without class blocks."""
    images = kv.preprocess_input(images[:MEASURED], model)
    names = [*MEASURES, *(["gates"] if model.family == "ConViT" else [])]
    found = analysis.measure(model, images, names)
    found["centered_similarity"] = analysis.measure(model, images, ["map_similarity"], center=True)[
        "map_similarity"
    ]
    return {
        name: {block: np.asarray(value).tolist() for block, value in values.items()}
        for name, values in found.items()
    }


def train(run: Run, images: Labeled, test: Labeled, smoke: bool) -> tuple[keras.Model, dict]:
    """Return a network, trained unless that failed, and its measures before training."""
    keras.utils.set_random_seed(run.seed)
    family, arguments = network(run, smoke)
    model = family(**arguments)
    model.preprocessing = COLORS
    before = measure(model, test[0])
    data = {"fraction": run.fraction, "validation_split": 0.0, "seed": run.seed}
    gates = []
    if model.family == "ConViT":
        few = kv.preprocess_input(test[0][:8], model)
        gates = [analysis.MeasureDuringTraining(few, measures=["gates"], every=50)]
    with contextlib.suppress(FloatingPointError):  # The accuracy tells.
        kv.fit(model, images, recipe(run, smoke), callbacks=gates, **data)
    return model, {"step_0": before, "dynamics": gates[0].rows if gates else []}


def result_of(run: Run, model: keras.Model, test: Labeled) -> dict[str, Any]:
    """Return the accuracy and the measures of a trained network on test images."""
    images, labels = test
    accuracy = kv.evaluate(model, test, batch_size=500)["accuracy"]
    result = {"accuracy": accuracy, "measures": measure(model, images)}
    if run.network in ("ViT", "CB-ViT") and run.fraction == 1:
        few = (images[:PERTURBED], labels[:PERTURBED])
        result["perturbed"] = {
            kind: robustness.curve(model, few, kind, strengths)
            for kind, strengths in STRENGTHS.items()
        }
    return result


def run_all(options: argparse.Namespace) -> None:
    options.directory.mkdir(parents=True, exist_ok=True)
    with np.load(options.source) as arrays:
        data = [(arrays[f"x_{part}"], arrays[f"y_{part}"].ravel()) for part in ("train", "test")]
    for run in runs(options.designs, options.seeds):
        run_one(run, *data, options)


def run_one(run: Run, images: Labeled, test: Labeled, options: argparse.Namespace) -> None:
    """Train, measure, and write the result, if there is none yet."""
    file, smoke = run.path(options.directory, ".json"), options.smoke
    settings = {"network": network(run, smoke)[1], "recipe": recipe(run, smoke).to_dict()}
    settings = json.loads(json.dumps(settings))
    if not file.exists():
        start = time.process_time()
        model, before = train(run, images, test, smoke)
        result = {**before, **result_of(run, model, test), **settings}
        result["cpu_seconds"] = round(time.process_time() - start)
        with atomic_write(file) as path:
            path.write_text(json.dumps(result))
    result = json.loads(file.read_text())
    if any(result[name] != value for name, value in settings.items()):
        raise SystemExit(f"{file} has other settings: choose another directory.")
    print(f"{file.stem:44}{100 * result['accuracy']:6.2f} %", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "source", type=Path, help="cifar10.npz, with x_train, y_train, x_test, y_test"
    )
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument("--designs", nargs="*", choices=DESIGNS, default=list(DESIGNS))
    parser.add_argument("--seeds", type=int, default=3, help="of each run: decide before")
    parser.add_argument("--smoke", action="store_true", help="tiny networks, one epoch")
    run_all(parser.parse_args(words))


if __name__ == "__main__":
    main()
