"""Value residual: every block mixes its values with those of the first block
(Zhou et al., 2024, arXiv 2410.17897)."""

import keras_vitx as kv
from keras_vitx.layers import SharingAttention

import keras


@keras.saving.register_keras_serializable(package="examples")
class ValueResidualAttention(SharingAttention):
    def __init__(self, num_heads, first=False, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.first, self.reads_maps = first, not first

    def build_projections(self, input_shape):
        super().build_projections(input_shape)
        if not self.first:
            half = keras.initializers.Constant(0.5)
            self.mix = self.add_weight(name="mix", shape=(2,), initializer=half)

    def with_shared(self, query, key, value, shared):
        return query, key, self.mix[0] * value + self.mix[1] * shared

    def shared_of(self, maps, value, shared):
        return value if self.first else shared

    def shared_shape(self, tokens):
        return (None, tokens, self.num_heads, self.size)


model = kv.ViT_Mini(
    attention=lambda index: ValueResidualAttention(4, first=index == 0)
)
