"""ALiBi in 2-D: logits fall with the distance of the patches, at another slope
in each head (Press et al., 2021, arXiv 2108.12409; Fuller et al., 2023,
arXiv 2311.00566)."""

import keras_vitx as kv
from keras_vitx.layers import Attention

import keras
import numpy as np


@keras.saving.register_keras_serializable(package="examples")
class ALiBiAttention(Attention):
    fused = None

    def __init__(self, num_heads, grid, num_prefix_tokens=1, **kwargs):
        super().__init__(num_heads, **kwargs)
        self.grid, self.num_prefix_tokens = grid, num_prefix_tokens

    def logits_of(self, query, key):
        places = np.indices(self.grid).reshape(2, -1).T
        distances = np.linalg.norm(places[:, None] - places, axis=-1)
        distances = np.pad(distances, (self.num_prefix_tokens, 0))
        slopes = 2.0 ** (-8 * np.arange(1, self.num_heads + 1) / self.num_heads)
        bias = slopes[:, None, None] * distances
        return super().logits_of(query, key) - keras.ops.cast(bias, query.dtype)


model = kv.ViT_Mini(attention=lambda index: ALiBiAttention(4, grid=(8, 8)))
