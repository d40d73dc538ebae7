"""Weight initializers of the released code, by name."""

from numbers import Real

import keras


def normal() -> keras.initializers.Initializer:
    """Return the initializer of Dense kernels, tokens and position embeddings, N(0, 0.02²).

    The released code calls `trunc_normal_(std=.02)`, which truncates at the absolute values
    -2 and 2, a hundred deviations away. `keras.initializers.TruncatedNormal(stddev=0.02)`
    truncates at two deviations, which leaves a deviation of 0.0176.
    """
    return keras.initializers.RandomNormal(stddev=0.02)


def uniform(fan_in: int) -> keras.initializers.Initializer:
    r"""Return PyTorch's default initializer, $U(-1/\sqrt n, 1/\sqrt n)$.

    Args:
        fan_in: $n$, the number of inputs per output: the input heads of a 1 x 1
            convolution over maps; height times width of a depthwise kernel; that times the
            input channels for any other convolution; the input width of a Dense.
    """
    bound = fan_in**-0.5
    return keras.initializers.RandomUniform(-bound, bound)


def start_from(value: float | str | keras.initializers.Initializer):
    """Return the initializer of one variable that starts from a number, or as it is told."""
    if isinstance(value, Real):
        return keras.initializers.Constant(value)
    # A clone, because an initializer returns the same numbers each time.
    return keras.initializers.get(value).clone()


def initializers(name: str, fan_in: int) -> dict[str, keras.initializers.Initializer]:
    r"""Return `kernel_initializer` and `bias_initializer` of a Dense or a convolution.

    Args:
        name: `"normal"`: Dense layers, $N(0, 0.02^2)$ with zero biases, also for the mixing of
            heads in CaiT, which is a Dense in the released code. `"uniform"`: PyTorch's default
            for kernel and bias, of all convolutions, those over maps included, and of PiT's
            Dense layers. `"xavier"`: the MLPs of Mixer, Xavier uniform with biases of deviation
            1e-6. `"lecun"`: Mixer's patch embedding. `"zeros"`: Mixer's classifier.
        fan_in: As in `uniform`.

    Raises:
        ValueError: if the name is unknown.
    """
    zeros = keras.initializers.Zeros()
    pairs = {
        "normal": (normal(), zeros),
        "uniform": (uniform(fan_in), uniform(fan_in)),
        "xavier": (keras.initializers.GlorotUniform(), keras.initializers.RandomNormal(0.0, 1e-6)),
        "lecun": (keras.initializers.LecunNormal(), zeros),
        "zeros": (zeros, zeros),
    }
    if name not in pairs:
        raise ValueError(f"`initialization` must be one of {tuple(pairs)}. Received: {name!r}.")
    kernel, bias = pairs[name]
    return {"kernel_initializer": kernel, "bias_initializer": bias}
