"""Gated attention: the values of all heads are gated by the tokens, y *
sigmoid(x W + b) (Qiu et al., 2025, arXiv 2505.06708)."""

import keras

import keras_vitx as kv
from keras_vitx.layers import Attention


@keras.saving.register_keras_serializable(package="examples")
class GatedAttention(Attention):
    def build_projections(self, input_shape):
        super().build_projections(input_shape)
        self.gate = self.dense(self.value_width, "gate", input_shape)

    def gated(self, y, x, training=False):
        return y * keras.ops.sigmoid(
            self.split_heads(self.run(self.gate, x, training))
        )


model = kv.ViT_Mini(attention=lambda index: GatedAttention(4))
