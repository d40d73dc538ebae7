"""Features of a directory of images, or of a data set, to Parquet files, on Ray Data.

    pip install "ray[data]"
    python examples/predict_with_ray.py photos features --workers 2
    python examples/predict_with_ray.py tfds:food101 features --model ViT_S --weights imagenet

Each worker holds one model; Ray streams the images through them, on one machine or on a cluster
(`ray.init(address="auto")`), with `--gpus 1` on one GPU each. The columns are `id` (path or index),
`label` (of a data set) and `features`. Files that can't be read are left out and reported.
"""

import argparse
from pathlib import Path

import keras_vitx as kv

import numpy as np
import ray

SUFFIXES = ".txt", ".csv", ".json", ".xml", ".md", ".db", ".ini"  # Of files that are no images.


class Features:
    """A worker: its model, and the split of the data set, if it is one."""

    def __init__(self, source, model, weights):
        self.model = kv.create_model(model, weights=weights, include_top=False, pooling="avg")
        self.split = None if source is None else split_of(source)

    def of_files(self, batch):
        found = next(kv.data.batches_of_files(batch["id"], self.model, len(batch["id"])))
        for error in found.errors.values():
            print(f"skipped: {error}")
        if not found.paths:
            return {"id": [], "features": []}
        features = self.model.predict_on_batch(found.images)
        return {"id": list(map(str, found.paths)), "features": list(np.asarray(features))}

    def of_split(self, batch):
        images = [self.split.images[i] for i in batch["id"]]
        images = np.concatenate([kv.preprocess_input(image, self.model) for image in images])
        features = np.asarray(self.model.predict_on_batch(images))
        labels = self.split.labels[batch["id"]]
        return {"id": batch["id"], "label": list(labels), "features": list(features)}

    def __call__(self, batch):
        return self.of_files(batch) if self.split is None else self.of_split(batch)


def split_of(source):
    """The test images of a data set, or the training images where there are none."""
    opened = kv.data.load_dataset(source, validation_split=0)
    return opened.test or opened.train


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("source", help="a directory of images, or a data set as of keras-vitx train")
parser.add_argument("output", help="directory for the Parquet files")
parser.add_argument("--model", default="CaiT_Mini")
parser.add_argument("--weights", default="cifar10")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--gpus", type=float, default=0, help="GPUs per worker")
options = parser.parse_args()

# All but hidden files: which of them Pillow reads, it says itself.
directory = Path(options.source)
ids = sorted(f for f in map(str, directory.rglob("*.*")) if not ("/." in f or f.endswith(SUFFIXES)))
source = None if directory.is_dir() else options.source
if source is not None:
    ids = range(split_of(source).size)
ray.data.from_items([{"id": id} for id in ids]).map_batches(
    Features,
    fn_constructor_args=(source, options.model, options.weights),
    compute=ray.data.ActorPoolStrategy(size=options.workers),
    batch_size=options.batch_size,
    num_cpus=0.5,  # The other half reads and writes.
    num_gpus=options.gpus or None,
).write_parquet(options.output)
