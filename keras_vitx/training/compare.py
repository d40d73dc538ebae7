"""Networks compared on equal terms: the same images, recipe, steps and seeds."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vitx.data import load_dataset
from keras_vitx.training.fit import fit
from keras_vitx.training.recipe import Recipe


def compare(
    networks: Mapping[str, Callable[[int], keras.Model]],
    source: Any,
    recipe: str | Recipe = "small_images",
    seeds: int = 3,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train each network with several seeds, test it once, and return gains over the first.

    Seeds are paired: a gain is the mean over seeds of the difference to the first network. Decide
    on their number before you look: a seed that is added because the others don't decide makes the
    interval too narrow. Needs SciPy.

    Args:
        networks: By label, a function of the number of classes that returns a new network, such as
            `lambda classes: kv.ViT_Mini(classes=classes)`. The first is the baseline.
        source: As in `fit`, with test images.
        recipe: As in `fit`. The epoch that is best on the validation images is tested, or that of
            the recipe's `result`.
        seeds: Number of seeds, from 0, two at least.
        **settings: As in `fit`.

    Returns:
        A row per network: `network`, `accuracies` (test, in percent, by seed), `minutes` per
        training, and after the first row `gain`, the ends `low` and `high` of its 95 % interval
        (Student's t), and `p` of no gain, corrected for the number of networks (Holm, 1979).
    """
    from scipy import stats

    dataset = load_dataset(source)
    rows = []
    for label, network in networks.items():
        start, row = time.perf_counter(), {"network": label, "accuracies": []}
        for seed in range(seeds):
            number, total = len(rows) * seeds + seed + 1, len(networks) * seeds
            print(f"{label}, seed {seed}: training {number} of {total}", flush=True)
            keras.utils.set_random_seed(seed)
            history = fit(network(len(dataset.class_names)), dataset, recipe, seed=seed, **settings)
            row["accuracies"].append(100 * history.test["accuracy"])
            print(f"{label}, seed {seed}: {row['accuracies'][-1]:.2f} %", flush=True)
        row["minutes"] = (time.perf_counter() - start) / 60 / seeds
        rows.append(row)
    for row in rows[1:]:
        gains = np.subtract(row["accuracies"], rows[0]["accuracies"])
        test = stats.ttest_1samp(gains, 0)
        low, high = test.confidence_interval(0.95)
        row |= {"gain": gains.mean(), "low": low, "high": high, "p": test.pvalue}
    corrected = 0.0
    for rank, row in enumerate(sorted(rows[1:], key=lambda row: row["p"])):
        row["p"] = corrected = max(corrected, min(1.0, row["p"] * (len(rows) - 1 - rank)))
    return rows
