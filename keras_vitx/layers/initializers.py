"""The two starts of weights in the released code: that of a Dense, that of a convolution."""

import keras


def truncated_normal() -> keras.initializers.Initializer:
    """Return the start of a Dense kernel, a token or a position: stddev 0.02, cut at two.

    Head mixing in CaiT is a Dense in the released code and starts the same.
    """
    return keras.initializers.TruncatedNormal(stddev=0.02)


def uniform(fan_in: int) -> keras.initializers.Initializer:
    r"""Return PyTorch's default start of a convolution, $U(-1/\sqrt n, 1/\sqrt n)$.

    Kernel and bias start from it in the released code of all families: patch embeddings and
    stems, and the convolutions over maps of DeepViT and Refined-ViT.

    Args:
        fan_in: $n$, the number of inputs per output: the heads taken by a 1 x 1
            convolution over maps, height times width of a depthwise kernel, times the
            channels taken for any other.
    """
    bound = fan_in**-0.5
    return keras.initializers.RandomUniform(-bound, bound)
