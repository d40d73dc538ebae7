"""QK-norm: queries and keys are normalized per head (Dehghani et al., 2023,
arXiv 2302.05442)."""

import keras

import keras_vitx as kv
from keras_vitx.layers import Attention


@keras.saving.register_keras_serializable(package="examples")
class QKNormAttention(Attention):
    def build_projections(self, input_shape):
        super().build_projections(input_shape)
        norm = {"epsilon": 1e-6, "dtype": self.dtype_policy}
        self.q_norm = keras.layers.LayerNormalization(**norm, name="q_norm")
        self.k_norm = keras.layers.LayerNormalization(**norm, name="k_norm")
        for layer in (self.q_norm, self.k_norm):
            layer.build((None, None, self.num_heads, self.size))

    def projections(self, x, training=False):
        query, key, value = super().projections(x, training)
        return self.run(self.q_norm, query), self.run(self.k_norm, key), value


model = kv.ViT_Mini(attention=lambda index: QKNormAttention(4))
