"""Mixed precision beside float32: the losses of a training, or the predictions of checkpoints.

    KERAS_BACKEND=torch python benchmarks/precision.py
    KERAS_BACKEND=jax python benchmarks/precision.py --predict cifar10.npz --weights cifar10

The first form trains a tiny model of each family. All runs see the same batches of the shipped
Fashion-MNIST sample and begin with the same weights. The loss is the mean over all 200 steps; a
run fails if one loss is not finite, or this mean differs by more than 2 % from float32's.
In mixed_float16 the loss scale starts at 256: from Keras's 32,768, Refined-ViT with 16 images
skips nine of the first 65 updates, whose gradients overflow, and lags behind.

The second form prints, for each model with such weights, the accuracy on the test images of
a source and the percentage of images for which the predicted class is that of float32. A model
fails below 99.5 %.
"""

import argparse
import sys
from pathlib import Path

import keras
import numpy as np

import keras_vitx as kv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import FAMILIES, PRECISIONS

TOLERANCE = 0.02
AGREEMENT = 99.5


class Losses(keras.callbacks.Callback):
    """Collect the loss of each step, from the running mean that Keras logs."""

    def __init__(self):
        super().__init__()
        self.means: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.means.append(logs["loss"])

    @property
    def each(self) -> np.ndarray:
        sums = np.array(self.means, "float64") * np.arange(1, len(self.means) + 1)
        return np.diff(sums, prepend=0.0)


def losses_of(family: str, precision: str, steps: int, batch_size: int, seed: int) -> np.ndarray:
    """Return the loss of each step of a training."""
    keras.utils.set_random_seed(seed)
    model = FAMILIES[family](classes=10)
    batches = kv.data.pipelines("fashion_mnist", model, batch_size, augmentation=None).train
    kv.training.set_precision(model, precision)
    optimizer = keras.optimizers.AdamW(1e-3)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    losses = Losses()
    batches = [batches[i % len(batches)] for i in range(steps)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    model.fit(images, labels, batch_size, shuffle=False, verbose=0, callbacks=[losses])
    return losses.each


def agreement(source: str, weights: str, models: list[str] | None, batch_size: int) -> list[str]:
    """Print a table of the predictions of models with `weights`; return what failed."""
    opened = kv.data.load_dataset(source, validation_split=0)
    print("| model | precision | accuracy, % | as in float32, % | largest difference |")
    print("|---|---|---|---|---|")
    failed = []
    for name in models or kv.list_models():
        # Checkpoints of other datasets have to be downloaded.
        if not any(c.dataset == weights for c in kv.weights.checkpoints_of(name)):
            continue
        base = None
        for precision in PRECISIONS:
            model = kv.create_model(name, weights=weights)
            kv.training.set_precision(model, precision)
            found = model.predict(
                kv.data.pipelines(opened, model, batch_size, augmentation=None).test, verbose=0
            )
            base = found if base is None else base
            same = 100 * np.mean(found.argmax(-1) == base.argmax(-1))
            right = 100 * np.mean(found.argmax(-1) == opened.test.labels)
            apart = np.abs(found - base).max()
            print(
                f"| {name} | {precision} | {right:.2f} | {same:.2f} | {apart:.3f} |",
                flush=True,
            )
            if same < AGREEMENT:
                failed.append(f"{name} in {precision}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--seed", type=int, default=0, help="of the weights at the start")
    parser.add_argument("--predict", metavar="SOURCE", help="compare predictions on test images")
    parser.add_argument("--models", nargs="+", help="sizes for --predict; default: all")
    parser.add_argument("--weights", default="cifar10", help="checkpoints for --predict")
    arguments = parser.parse_args()
    if arguments.predict:
        failed = agreement(arguments.predict, arguments.weights, arguments.models, arguments.batch)
        print("failed: " + ", ".join(failed) if failed else f"all at least {AGREEMENT} %")
        sys.exit(bool(failed))
    print(f"{keras.backend.backend()}, {arguments.steps} steps of {arguments.batch} images")
    print("| family | float32 | mixed_bfloat16 | mixed_float16 |")
    print("|---|---|---|---|")
    failed = []
    for family in arguments.families:
        cells, base = [], None
        for precision in PRECISIONS:
            losses = losses_of(family, precision, arguments.steps, arguments.batch, arguments.seed)
            mean = losses.mean()
            base = mean if base is None else base
            cells.append(f"{mean:.4f} ({mean / base - 1:+.2%})")
            if not np.isfinite(losses).all() or abs(mean / base - 1) > TOLERANCE:
                failed.append(f"{family} in {precision}")
        print(f"| {family} | {' | '.join(cells)} |", flush=True)
    print("failed: " + ", ".join(failed) if failed else "all finite, and within 2 %")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
