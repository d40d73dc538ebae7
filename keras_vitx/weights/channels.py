"""Adapting the first convolution to a different number of image channels."""

import numpy as np

COLOURS = 3


def kernel_for(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapt the kernel of a convolution on colour images to `channels` channels, as timm does.

    For one channel the kernel is summed over its input channels, which equals a grey image
    repeated in all three. For other counts the input channels are repeated cyclically and
    scaled by 3 / channels, so that the magnitude of the outputs is kept.

    Args:
        kernel: (height, width, 3, outputs).
        channels: Number of image channels.

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
