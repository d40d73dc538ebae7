"""Draw the sample of Fashion-MNIST in this folder.

python draw.py FOLDER [OUT.npz]

FOLDER holds the four files of the full dataset, `train-images-idx3-ubyte.gz` etc.
The draw is stratified and seeded, so it is reproducible.
"""

import gzip
import sys
from pathlib import Path

import numpy as np

SEED = 2017
TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of a gzipped idx file, of any number of axes."""
    content = gzip.decompress(Path(path).read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4)
    return np.frombuffer(content, "u1", offset=4 + 4 * axes).reshape(shape)


def draw(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Return the indices of `per_class` random labels of each class, in rising order."""
    # RandomState, because its stream is the same in all NumPy releases.
    random = np.random.RandomState(seed)
    drawn = [
        random.permutation(np.flatnonzero(labels == label))[:per_class]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


def sample(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of the sample, drawn from the full set in `folder`."""
    arrays = {"class_names": np.array(CLASS_NAMES)}
    for part, prefix, per_class in (
        ("train", "train", TRAIN_PER_CLASS),
        ("test", "t10k", TEST_PER_CLASS),
    ):
        labels = read_idx(Path(folder) / f"{prefix}-labels-idx1-ubyte.gz")
        indices = draw(labels, per_class, SEED)
        images = read_idx(Path(folder) / f"{prefix}-images-idx3-ubyte.gz")
        arrays[f"x_{part}"], arrays[f"y_{part}"] = images[indices], labels[indices]
    return arrays


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).with_name("sample.npz")
    np.savez_compressed(out, **sample(Path(sys.argv[1])))
