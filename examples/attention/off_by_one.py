"""Softmax off by one: exp(l) / (1 + sum of exp(l)), so that a head can attend
nothing (Miller, 2023, "Attention is off by one")."""

import keras

import keras_vitx as kv
from keras_vitx.layers import Attention


@keras.saving.register_keras_serializable(package="examples")
class OffByOneAttention(Attention):
    fused = None

    def softmax_of(self, logits, dtype):
        # A key whose logit is 0 and whose value is 0.
        logits = keras.ops.pad(logits, ((0, 0), (0, 0), (0, 0), (0, 1)))
        maps = keras.ops.softmax(keras.ops.cast(logits, "float32"))
        return keras.ops.cast(maps[..., :-1], dtype)


model = kv.ViT_Mini(attention=lambda index: OffByOneAttention(4))
