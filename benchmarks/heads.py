"""Fine-tune on the same classes in another order, for each way of treating the head.

    python benchmarks/heads.py cifar10.npz [--images 1000] [--epochs 5] [--seeds 0 1]

Reads x_train, y_train, x_test and y_test of CIFAR-10, permutes the ten classes, and
fine-tunes the shipped checkpoint on some of the training images with the head kept,
reinitialized, or matched by class name. Prints one row per run with the test accuracy after
each epoch.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import keras_vitx as kv

TEST_IMAGES = 500


def permuted(path: Path, images: int, out: Path) -> Path:
    """Write a subset of CIFAR-10 with permuted classes to an .npz file."""
    names = kv.CaiT_Mini(weights="cifar10").class_names
    order = np.random.default_rng(0).permutation(len(names))  # old label -> new label
    arrays = np.load(path)
    np.savez(
        out,
        x_train=arrays["x_train"][:images],
        y_train=order[arrays["y_train"][:images]],
        x_val=arrays["x_test"][:TEST_IMAGES],
        y_val=order[arrays["y_test"][:TEST_IMAGES]],
        class_names=np.array([names[old] for old in np.argsort(order)]),
    )
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    logging.getLogger("keras_vitx").setLevel(logging.ERROR)
    print(f"{keras.backend.backend()}, {options.images} images, {TEST_IMAGES} test images")
    with tempfile.TemporaryDirectory() as folder:
        source = permuted(options.cifar10, options.images, Path(folder) / "permuted.npz")
        for seed in options.seeds:
            for head in ("keep", "fresh", "match"):
                keras.utils.set_random_seed(seed)
                start = time.perf_counter()
                history = kv.fit(
                    kv.CaiT_Mini(weights="cifar10"),
                    source,
                    head=head,
                    epochs=options.epochs,
                    seed=seed,
                    verbose=0,
                ).history["val_accuracy"]
                accuracies = "  ".join(f"{accuracy:.3f}" for accuracy in history)
                seconds = time.perf_counter() - start
                print(f"{head:5}  seed {seed}  {accuracies}  ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
