"""Try claims of the five papers on CIFAR-10, with networks that a core trains in minutes.

    KERAS_BACKEND=torch python benchmarks/claims.py cifar10.npz runs/claims

Trains and measures every run whose result is not yet in the directory. To use several cores, start
it several times. `benchmarks/claims_report.py` prints tables of the results and draws figures.
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
from keras_vitx.files import atomic_write

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
COLORS = kv.Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
"""How images are prepared for all of them; the families have different defaults."""

FRACTIONS = (0.05, 0.1, 0.3, 1.0)
ATTACKED = ("ViT", "CB-ViT")
STRENGTHS = {"occlude": (0.0, 0.1, 0.25, 0.5), "fgsm": (1 / 255, 2 / 255, 4 / 255)}
MEASURES = (
    *("entropy", "uniform_entropy", "cross_layer_similarity", "normalized_cka"),
    *("attention_branch", "mlp_branch"),
)
MEASURED, PERTURBED = 512, 1000
"""Numbers of test images; accuracy is that on all of them."""

Labeled = tuple[np.ndarray, np.ndarray]
"""Images and labels."""


@dataclass(frozen=True)
class Run:
    """A network trained on a fraction of the images, for as many steps as on all of them."""

    network: str
    fraction: float
    seed: int

    def path(self, directory: Path, suffix: str) -> Path:
        name = f"{self.network}-{self.fraction:g}-{self.seed}".replace(" ", "-")
        return directory / (name + suffix)


def runs(seeds: int) -> list[Run]:
    """Return the table of runs, one seed after the other."""
    pairs = [(network, part) for part in FRACTIONS[:-1] for network in ("ViT", "ConViT")]
    pairs += [(network, 1.0) for network in NETWORKS]
    return [Run(*pair, seed) for seed in range(seeds) for pair in pairs]


def recipe(run: Run, options: argparse.Namespace) -> kv.training.Recipe:
    """Return a light form of `small_images`, in which all fractions see equally many images."""
    light = kv.training.recipes.get("small_images").replace(
        algorithm="adamw",  # as in the papers
        rand_augment=None,
        erasing=0.0,
        mixing=None,
        drop_path=0.0,
        ema=None,
        result="last",
    )
    epochs = 1 if options.smoke else round(options.epochs / run.fraction)
    return light.replace(epochs=epochs, warmup_epochs=0.1 * epochs, learning_rate=2e-3)


def network(run: Run, options: argparse.Namespace) -> tuple[Callable, dict[str, Any]]:
    """Return the family and the arguments of the network."""
    family, own = NETWORKS[run.network]
    arguments = {**SIZE, **own}
    if options.smoke:
        arguments |= {"dim": 8, "depth": 2, "patch_size": 16}
        arguments |= {"local_depth": 1} if "local_depth" in own else {}
    return family, arguments


def train(run: Run, images: Labeled, options: argparse.Namespace) -> keras.Model:
    keras.utils.set_random_seed(run.seed)
    family, arguments = network(run, options)
    model = family(**arguments)
    model.preprocessing = COLORS
    data = {"fraction": run.fraction, "validation_split": 0.0, "seed": run.seed}
    kv.fit(model, images, recipe(run, options), **data, verbose=0)
    return model


def measure(run: Run, model: keras.Model, test: Labeled) -> dict[str, Any]:
    """Return the accuracy and the measures of a trained network on test images."""
    images, labels = test
    few = kv.preprocess_input(images[:MEASURED], model)
    whole = {"split": "train", "validation_split": 0.0}  # The arrays have one split.
    result = {
        "accuracy": kv.evaluate(model, test, batch_size=500, **whole)["accuracy"],
        "measures": {
            name: {block: value.tolist() for block, value in values.items()}
            for name, values in analysis.measure(model, few, MEASURES).items()
        },
    }
    if run.network in ATTACKED and run.fraction == 1:
        few = (images[:PERTURBED], labels[:PERTURBED])
        result["perturbed"] = {
            kind: robustness.curve(model, few, kind, strengths, **whole)
            for kind, strengths in STRENGTHS.items()
        }
    return result


def run_all(options: argparse.Namespace) -> None:
    options.directory.mkdir(parents=True, exist_ok=True)
    with np.load(options.source) as arrays:
        data = [(arrays[f"x_{part}"], arrays[f"y_{part}"].ravel()) for part in ("train", "test")]
    for run in runs(options.seeds):
        with alone(run.path(options.directory, ".lock")) as is_alone:
            if is_alone:
                run_one(run, *data, options)


def run_one(run: Run, images: Labeled, test: Labeled, options: argparse.Namespace) -> None:
    """Train, measure, and write the network and the result, if there is no result yet."""
    file, weights = (run.path(options.directory, suffix) for suffix in (".json", ".keras"))
    settings = {"network": network(run, options)[1], "recipe": recipe(run, options).to_dict()}
    settings = json.loads(json.dumps(settings))
    if not file.exists():
        start = time.process_time()
        if not weights.exists():
            model = train(run, images, options)
            with atomic_write(weights) as path:
                model.save(path)
        result = measure(run, keras.saving.load_model(weights), test)
        result |= {"cpu_seconds": round(time.process_time() - start), **settings}
        with atomic_write(file) as path:
            path.write_text(json.dumps(result))
    result = json.loads(file.read_text())
    if any(result[name] != value for name, value in settings.items()):
        raise SystemExit(f"{file} has other settings: choose another directory.")
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


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "source", type=Path, help="cifar10.npz, with x_train, y_train, x_test, y_test"
    )
    parser.add_argument("directory", type=Path, help="directory of the results")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind")
    parser.add_argument("--epochs", type=int, default=10, help="of all images; more of fewer")
    parser.add_argument("--smoke", action="store_true", help="tiny networks, one epoch")
    run_all(parser.parse_args(words))


if __name__ == "__main__":
    main()
