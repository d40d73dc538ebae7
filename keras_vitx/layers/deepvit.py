"""DeepViT's layers: re-attention and the temperature of the softmax."""

import keras

from keras_vitx.checks import PositiveFloat, check_argument
from keras_vitx.layers import ops
from keras_vitx.layers.attention import Attention
from keras_vitx.layers.base import at_least_float32, build_all, register
from keras_vitx.layers.maps import MapLayer, MapNormalization, convolution_1x1


@register
class ReAttention(MapLayer):
    r"""New maps from all heads: $A' = s\,\mathrm{BN}(\Theta A + b)$.

    DeepViT, Section 4.2, Equation 3; BN runs over the head axis. Under a policy of half precision
    and `torch.autocast` it computes in float32: the maps, with a spread of about 0.01, would be
    lost beside $b$, which starts within $\pm 1/\sqrt{\text{heads}}$ and which BN subtracts again.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        map_scale: $s$; 1, except in the released DeepViT-S, where it is $1/\sqrt{d}$ with $d$ the
            size of a head.
        normalize: Whether to apply BN. Without it, $A' = s\,(\Theta A + b)$.
    """

    def __init__(self, map_scale: float = 1.0, normalize: bool = True, **kwargs):
        super().__init__(**{**kwargs, "dtype": at_least_float32(kwargs.get("dtype"))})
        self.map_scale = map_scale
        self.normalize = normalize

    def build(self, input_shape):
        heads, dtype = input_shape[1], self.dtype_policy
        self.reatten_matrix = convolution_1x1(heads, heads, True, dtype, "reatten_matrix")
        self.var_norm = MapNormalization(dtype=dtype, name="var_norm") if self.normalize else None
        build_all(filter(None, [self.reatten_matrix, self.var_norm]), input_shape)

    def call(self, maps, training=False):
        with ops.without_autocast(maps):
            maps = self.run(self.reatten_matrix, ops.cast(maps, self.compute_dtype))
            if self.normalize:
                maps = self.run(self.var_norm, maps, training)
        return maps if self.map_scale == 1 else self.map_scale * maps


def DeepAttention(
    num_heads: int, map_scale: float = 1.0, normalize: bool = True, **kwargs
) -> Attention:
    """Attention with `ReAttention` over its maps (DeepViT, Section 4.2); arguments of both."""
    layer = ReAttention(map_scale, normalize, name="re_attention", dtype=kwargs.get("dtype"))
    return Attention(num_heads, on_weights=[layer], **kwargs)


@register
class Temperature(MapLayer):
    r"""A temperature of the softmax: $A' = A / \tau$ (DeepViT, Section 5.3, Equation 4).

    For use in `on_logits`. Values below 1 sharpen the maps.

    Input and output: `(batch, heads, queries, keys)`.

    Args:
        temperature: $\tau$, above 0. One that decreases linearly from block to block is the decayed
            temperature of Table 5.
        learnable: Whether $\tau$ is trained, with `temperature` as its initial value.
    """

    varying = ("temperature",)

    def __init__(self, temperature: float = 1.0, learnable: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.temperature = check_argument("temperature", temperature, PositiveFloat)
        self.learnable = learnable

    def build(self, input_shape):
        if self.learnable:
            start = keras.initializers.Constant(self.temperature)
            self.tau = self.add_weight(name="tau", shape=(1,), initializer=start)

    def call(self, maps):
        tau = self.tau if self.learnable else self.temperature
        return ops.cast(maps / tau, self.compute_dtype)
