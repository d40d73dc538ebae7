"""Resampling of position embeddings to another grid."""

import numpy as np

Grid = tuple[int, int]


def resample(embeddings: np.ndarray, old: Grid, new: Grid, num_prefix_tokens=0, antialias=True):
    """Resample position embeddings bicubically.

    Embeddings are (1, num_prefix_tokens + rows * columns, dim), row by row; prefix tokens are kept.
    Returns float32, equal to PyTorch's `interpolate(mode="bicubic", antialias=antialias)`: with
    antialiasing timm's, without it DeiT's, also when the grid grows, as the kernels differ.
    """
    embeddings = np.asarray(embeddings, "float32")
    if old == new:
        return embeddings
    prefix, patches = np.split(embeddings, [num_prefix_tokens], axis=1)
    patches = patches.reshape(*old, -1)
    patches = np.tensordot(_weights(old[0], new[0], antialias), patches, axes=1)
    patches = np.tensordot(_weights(old[1], new[1], antialias), patches, axes=(1, 1)).swapaxes(0, 1)
    patches = patches.reshape(1, new[0] * new[1], -1)
    return np.concatenate([prefix, patches], axis=1)


def _weights(old: int, new: int, antialias: bool) -> np.ndarray:
    """Return the (new, old) matrix of interpolation weights along one axis."""
    step = old / new
    if not antialias:
        # Four cells around each sample; those beyond the border have the values of the outermost.
        centers = (np.arange(new)[:, None] + 0.5) * step - 0.5
        cells = np.floor(centers) + np.arange(-1, 3)
        nearest = np.clip(cells, 0, old - 1)[..., None] == np.arange(old)
        weights = _cubic(np.abs(cells - centers), -0.75)[..., None] * nearest
        return weights.sum(axis=1).astype("float32")
    # Samples are at the centers of their cells; antialiasing widens the kernel if the grid shrinks.
    centers = (np.arange(new) + 0.5) * step
    distance = (np.arange(old) + 0.5 - centers[:, None]) / max(step, 1.0)
    weights = _cubic(np.abs(distance), -0.5)
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel. PyTorch uses a = -0.5 with antialiasing, -0.75 without."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
