"""QK-norm: queries and keys are normalized per head (Dehghani et al., 2023,
arXiv 2302.05442)."""

import keras_vitx as kv
from keras_vitx.layers import Attention
from keras_vitx.layers.base import Layer

import keras


@keras.saving.register_keras_serializable(package="examples")
class QKNorm(Layer):
    def build(self, input_shape):
        norm = {"epsilon": 1e-6, "dtype": self.dtype_policy}
        self.q_norm = keras.layers.LayerNormalization(**norm, name="q_norm")
        self.k_norm = keras.layers.LayerNormalization(**norm, name="k_norm")
        self.q_norm.build(input_shape[0])
        self.k_norm.build(input_shape[1])

    def call(self, queries_keys):
        query, key = queries_keys
        return self.run(self.q_norm, query), self.run(self.k_norm, key)


model = kv.ViT_Mini(
    attention=lambda index: Attention(4, on_queries_keys=[QKNorm()])
)
