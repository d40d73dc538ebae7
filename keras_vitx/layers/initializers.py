"""Weight initializers of the released code, by name."""

from numbers import Real

import keras
import numpy as np


@keras.saving.register_keras_serializable(package="keras_vitx")
class Normal(keras.initializers.RandomNormal):
    """Keras's `RandomNormal`, drawn by NumPy: the same numbers for a seed on all backends.

    XLA would compile a program for each shape, most of the seconds to make a model under JAX.
    """

    def __call__(self, shape, dtype=None):
        drawn = np.random.default_rng(self.seed).standard_normal(shape, "float32")
        return keras.ops.convert_to_tensor(self.mean + self.stddev * drawn, dtype)


@keras.saving.register_keras_serializable(package="keras_vitx")
class Uniform(keras.initializers.RandomUniform):
    """Keras's `RandomUniform`, drawn by NumPy as in `Normal`."""

    def __call__(self, shape, dtype=None):
        drawn = np.random.default_rng(self.seed).random(shape, "float32")
        return keras.ops.convert_to_tensor(self.minval + (self.maxval - self.minval) * drawn, dtype)


def normal(stddev: float = 0.02) -> keras.initializers.Initializer:
    """Return the initializer of Dense kernels, tokens and position embeddings, N(0, 0.02²).

    The released `trunc_normal_(std=.02)` truncates at the values -2 and 2. Keras's
    `TruncatedNormal` truncates at two deviations, which leaves a deviation of 0.0176.
    """
    return Normal(stddev=stddev)


def uniform(fan_in: int) -> keras.initializers.Initializer:
    r"""Return PyTorch's default, $U(-1/\sqrt n, 1/\sqrt n)$, with $n$ inputs per output.

    $n$ is the number of heads for a 1 x 1 convolution over maps; height times width for a depthwise
    kernel; that times the channels for other convolutions; the input width for a Dense.
    """
    bound = fan_in**-0.5
    return Uniform(-bound, bound)


def start_from(value: float | str | keras.initializers.Initializer):
    """Return the initializer of one variable that starts from a number, or as it is told."""
    if isinstance(value, Real):
        return keras.initializers.Constant(value)
    # A clone, because an initializer returns the same numbers each time.
    return keras.initializers.get(value).clone()


def initializers(name: str, fan_in: int) -> dict[str, keras.initializers.Initializer]:
    """Return `kernel_initializer` and `bias_initializer` of a Dense or a convolution.

    `"normal"` is for Dense layers, including CaiT's mixing of heads; `"uniform"` for convolutions,
    including those over maps, and PiT's Dense layers; `"xavier"`, `"lecun"` and `"zeros"` for
    Mixer's MLPs, patch embedding and classifier.
    """
    zeros = keras.initializers.Zeros()
    pairs = {
        "normal": (normal(), zeros),
        "uniform": (uniform(fan_in), uniform(fan_in)),
        "xavier": (keras.initializers.GlorotUniform(), normal(1e-6)),
        "lecun": (keras.initializers.LecunNormal(), zeros),
        "zeros": (zeros, zeros),
    }
    kernel, bias = pairs[name]
    return {"kernel_initializer": kernel, "bias_initializer": bias}
