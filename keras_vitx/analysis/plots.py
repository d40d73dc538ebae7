"""Plots of the analyses."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vitx.analysis.attention import class_attention, saliency
from keras_vitx.files import written_whole
from keras_vitx.text import needs_extra


def plot_class_attention(
    model: keras.Model,
    images: Any,
    path: str | os.PathLike,
    shown: np.ndarray | None = None,
    titles: Sequence[str] = (),
) -> Path:
    """Plot the attention of the class token: one row per image, one column per block.

    Args:
        model: A model with a class token, a `Chain`.
        images: `(batch, height, width, channels)`, preprocessed for the model.
        path: Path of the file; the suffix selects the format (`.png`, `.pdf`).
        shown: The images to show, values in 0..1 or uint8. None shows `images`, each scaled
            to 0..1.
        titles: One title per image.

    Returns:
        The path.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: as in `class_attention`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(needs_extra("Figures need matplotlib", "plots")) from error

    images = keras.ops.convert_to_numpy(images)
    maps = class_attention(model, images)
    if shown is None:
        low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
        shown = (images - low) / np.maximum(high - low, np.finfo("float32").tiny)
    size = images.shape[1:3]
    columns = {name: saliency(scores, size) for name, scores in maps.items()}

    figure = Figure((2 * (1 + len(columns)), 2.2 * len(images)), layout="constrained")
    axes = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for row, image in enumerate(shown):
        axes[row, 0].imshow(np.squeeze(image), cmap="gray")
        axes[row, 0].set_title(titles[row] if row < len(titles) else "image", fontsize=8)
        for axis, (name, salient) in zip(axes[row, 1:], columns.items(), strict=True):
            axis.imshow(salient[row], cmap="cividis", vmin=0, vmax=1)
            axis.set_title(name, fontsize=8)
    for axis in axes.flat:
        axis.set_axis_off()
    with written_whole(path) as unfinished:
        figure.savefig(unfinished, dpi=100)
    return Path(path)
