"""Kernels for colour images, where a model's images have other channels."""

import numpy as np

COLOURS = 3


def kernel_for(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Let the kernel of a convolution on colour images read others, as timm does.

    One channel is as if it stood in all three: the kernels are summed. Of other numbers
    the three are repeated in turns, and scaled so that outputs keep their size.

    Args:
        kernel: (height, width, 3, outputs).
        channels: Of the images to read.

    Returns:
        (height, width, channels, outputs).
    """
    colours = kernel.shape[-2]
    if channels == colours:
        return kernel
    if channels == 1:
        return kernel.sum(axis=-2, keepdims=True)
    repeated = np.take(kernel, np.arange(channels) % colours, axis=-2)
    return repeated * np.float32(colours / channels)
