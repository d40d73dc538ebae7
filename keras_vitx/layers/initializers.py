"""The two weight initializers of the released code: of Dense layers and of convolutions."""

import keras


def truncated_normal() -> keras.initializers.Initializer:
    """Return the initializer of Dense kernels, tokens and position embeddings.

    It is a normal distribution with a standard deviation of 0.02, truncated at two standard
    deviations. Head mixing in CaiT is a Dense in the released code and starts in the same way.
    """
    return keras.initializers.TruncatedNormal(stddev=0.02)


def uniform(fan_in: int) -> keras.initializers.Initializer:
    r"""Return PyTorch's default initializer of a convolution, $U(-1/\sqrt n, 1/\sqrt n)$.

    The released code of all families uses it for kernel and bias: in patch embeddings and
    stems, and in the convolutions over maps of DeepViT and Refined-ViT.

    Args:
        fan_in: $n$, the number of inputs per output: the input heads of a 1 x 1
            convolution over maps; height times width of a depthwise kernel; that times the
            input channels for any other convolution.
    """
    bound = fan_in**-0.5
    return keras.initializers.RandomUniform(-bound, bound)
