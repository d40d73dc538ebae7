"""Regularization of residual branches: LayerScale and stochastic depth."""

import keras

from keras_vitx.keras_internals import replace_seed_generator
from keras_vitx.layers import ops
from keras_vitx.layers.base import Layer, register
from keras_vitx.layers.initializers import start_from
from keras_vitx.layers.recording import record


@register
class LayerScale(Layer):
    r"""A learned weight on a residual branch: $y = \gamma \odot x / s$ (CaiT, Section 2).

    Input and output: `(..., dim)`.

    Args:
        init: Initial value of $\gamma$: a number, or an initializer such as
            `keras.initializers.RandomUniform(0, 2e-5)` for the row U[0, 2ε] of Table A.1. Without a
            seed, each layer draws its own values. None is no $\gamma$.
        scalar: One weight per branch instead of one per channel. With `init=0` it is ReZero with
            LayerNorm, with `init=1` the Fixup-like form (Table 1).
        divisor: $s$.
    """

    def __init__(
        self,
        init: float | keras.initializers.Initializer | None = 1e-5,
        scalar: bool = False,
        divisor: float = 1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.init = init
        self.scalar = scalar
        self.divisor = divisor
        self.gamma = None

    def build(self, input_shape):
        if self.init is not None:
            shape = (1,) if self.scalar else (input_shape[-1],)
            self.gamma = self.add_weight(shape, start_from(self.init), name="gamma")

    def call(self, x):
        y = x if self.gamma is None else x * self.gamma
        return record(self.name, y if self.divisor == 1 else y / self.divisor)


@register
class DropPath(Layer):
    r"""Stochastic depth: in training, a residual branch is dropped at random, per sample.

    $y = x\,b / (1 - p)$ with one $b \sim \mathrm{Bernoulli}(1 - p)$ per sample.

    Input and output: `(batch, ...)`.

    Args:
        rate: $p$, in [0, 1).
        seed: Random seed. Under PyTorch, a layer without one draws from PyTorch's own generator, as
            Keras's `Dropout`. With one, every draw waits for the device, and seeds 1 and 2 draw the
            same masks one call apart, as in Keras: take seeds that are far apart.
    """

    varying = ("_rate",)
    mask = None  # What the next call takes, `(batch,)`; without, it draws one.

    def __init__(self, rate: float = 0.0, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be in [0, 1). Received: rate={rate}.")
        self._rate = rate
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed) if rate else None

    @property
    def rate(self) -> float:
        """The rate, which may be set at any time. A compiled training step keeps the old one."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._rate = rate
        # As if made with that rate, so that saved files agree.
        if bool(rate) != (self.seed_generator is not None):
            new = keras.random.SeedGenerator(self.seed) if rate else None
            replace_seed_generator(self, "seed_generator", new)

    def call(self, x, training=False):
        if not training or self.seed_generator is None:
            return x
        mask = self.mask
        if mask is None or mask.shape[0] != x.shape[0]:
            return x * ops.drop_path_mask(x, 1 - self.rate, self.seed_generator, self.seed)
        self.mask = None
        return x * ops.cast(ops.reshape(mask, (-1, *[1] * (len(x.shape) - 1))), x.dtype)
