"""Differential attention: the difference of two softmax maps per head, scaled
by a learned number (Ye et al., 2024, arXiv 2410.05258, whose norm per head
is left out)."""

import keras_vitx as kv
from keras_vitx.layers import Attention
from keras_vitx.layers.maps import MapLayer

import keras


@keras.saving.register_keras_serializable(package="examples")
class Difference(MapLayer):
    def heads_of(self, heads):
        return heads // 2

    def build(self, shape):
        self.scale = self.add_weight(
            name="scale", shape=(shape[1] // 2, 1, 1), initializer="zeros"
        )

    def call(self, maps):
        return maps[:, ::2] - (0.8 + self.scale) * maps[:, 1::2]


model = kv.ViT_Mini(
    attention=lambda index: Attention(
        2 * 4, head_size=96 // 4, on_weights=[Difference()]
    )
)
