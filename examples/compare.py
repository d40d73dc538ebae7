"""Compare networks on equal terms: one data set, one recipe, the same images, steps and seeds.

    python examples/compare.py
    python examples/compare.py cifar10.npz --networks ViT_Mini ConViT_Mini --seeds 5 --epochs 10

The first network is the baseline (`kv.training.compare`). The last epoch's weights are tested.
"""

import argparse
from functools import partial

import keras_vitx as kv

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


def main():
    """Train, test and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="fashion_mnist", help="as of kv.fit")
    parser.add_argument("--networks", nargs="+", default=["ViT_Mini", "CaiT_Mini", "ConViT_Mini"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    recipe = LIGHT.replace(epochs=options.epochs, warmup_epochs=0.1 * options.epochs)
    makers = {name: partial(create, name) for name in options.networks}
    rows = kv.training.compare(makers, options.source, recipe, options.seeds)
    print(f"\n{'network':14} parameters  GMACs    min  accuracy by seed, %  gain, 95 % interval, p")
    for row in rows:
        model = create(row["network"], 10)
        cost = f"{model.count_params():10,} {kv.count_macs(model) / 1e9:6.3f} {row['minutes']:6.1f}"
        by_seed = " ".join(f"{accuracy:.2f}" for accuracy in row["accuracies"])
        gain = "{gain:+.2f}, {low:+.2f} to {high:+.2f}, {p:.2g}" if "gain" in row else "baseline"
        print(f"{row['network']:14} {cost}  {by_seed}  {gain.format(**row)}")


def create(name, classes):
    """Return a network with random weights."""
    return kv.create_model(name, classes=classes)


if __name__ == "__main__":
    main()
