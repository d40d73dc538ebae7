"""Compare networks on equal terms: one data set, one recipe, the same images, steps and seeds.

    python examples/compare.py
    python examples/compare.py cifar10.npz --networks ViT_Mini ConViT_Mini --seeds 5 --epochs 10

The first network is the baseline. Seeds are paired: a gain is the mean over seeds of the difference
to the baseline, with its interval of 95 % (Student's t), and p of the difference, corrected for the
number of networks (Holm). Decide on the number of seeds before you look: one that is added because
the others don't decide makes the interval too narrow. The last epoch's weights are tested, once.
"""

import argparse
import time

import keras_vitx as kv

import keras
import numpy as np
from scipy import stats

# AdamW as in the papers, without what only long trainings can use.
LIGHT = kv.training.recipes.get("small_images").replace(
    algorithm="adamw",
    rand_augment=None,
    erasing=0.0,
    mixing=None,
    drop_path=0.0,
    ema=None,
    result="last",
)


def interval(differences, null=0.0):
    """Return mean, lower and upper end of the 95 % interval, and p of the mean being `null`."""
    test = stats.ttest_1samp(differences, null)
    return np.mean(differences), *test.confidence_interval(0.95), test.pvalue


def holm(p):
    """Return p of several tests corrected for their number (Holm, 1979)."""
    corrected = np.maximum.accumulate(np.sort(p) * np.arange(len(p), 0, -1))
    return np.minimum(1, corrected)[np.argsort(np.argsort(p))]


def main():
    """Train, test and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="fashion_mnist", help="as of kv.fit")
    parser.add_argument("--networks", nargs="+", default=["ViT_Mini", "CaiT_Mini", "ConViT_Mini"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    data = kv.data.load_dataset(options.source)
    recipe = LIGHT.replace(epochs=options.epochs, warmup_epochs=0.1 * options.epochs)

    accuracies, costs = {}, {}
    for name in options.networks:
        accuracies[name], start = [], time.perf_counter()
        for seed in range(options.seeds):
            keras.utils.set_random_seed(seed)
            model = kv.create_model(name, classes=len(data.class_names))
            kv.fit(model, data, recipe, seed=seed)
            accuracies[name].append(100 * kv.evaluate(model, data, "test")["accuracy"])
        minutes = (time.perf_counter() - start) / 60 / options.seeds
        costs[name] = f"{model.count_params():10,} {kv.count_macs(model) / 1e9:6.3f} {minutes:6.1f}"

    baseline, *others = options.networks
    tests = {n: interval(np.subtract(accuracies[n], accuracies[baseline])) for n in others}
    corrected = dict(zip(others, holm([p for *_, p in tests.values()]), strict=True))
    print(f"\n{'network':14} parameters  GMACs    min  accuracy by seed, %  gain, 95 % interval, p")
    for name, found in accuracies.items():
        by_seed = " ".join(f"{accuracy:.2f}" for accuracy in found)
        gain = "{:+.2f}, {:+.2f} to {:+.2f}".format(*tests[name]) if name in tests else "baseline"
        p = f", {corrected[name]:.2g}" if name in tests else ""
        print(f"{name:14} {costs[name]}  {by_seed}  {gain}{p}")


if __name__ == "__main__":
    main()
