"""RoPE in 2-D: queries and keys of the patches are rotated by their rows and
columns (Heo et al., 2024, arXiv 2403.13298, the axial form)."""

import keras
import numpy as np

import keras_vitx as kv
from keras_vitx.layers import Attention


@keras.saving.register_keras_serializable(package="examples")
class RotaryAttention(Attention):
    def set_grid(self, grid, num_prefix_tokens):
        patches = np.indices(grid).reshape(2, -1).T
        self.places = np.concatenate(
            [np.zeros((num_prefix_tokens, 2)), patches]
        )

    def projections(self, x, training=False):
        query, key, value = super().projections(x, training)
        rates = 100.0 ** -np.linspace(0, 1, self.size // 4, endpoint=False)
        angles = (self.places[..., None] * rates).reshape(
            len(self.places), 1, -1
        )
        cos, sin = (
            keras.ops.cast(f(angles), self.compute_dtype)
            for f in (np.cos, np.sin)
        )
        pairs = (keras.ops.split(each, 2, axis=-1) for each in (query, key))
        turned = ((a * cos - b * sin, a * sin + b * cos) for a, b in pairs)
        return *(keras.ops.concatenate(each, axis=-1) for each in turned), value


model = kv.ViT_Mini(attention=lambda index: RotaryAttention(4))
