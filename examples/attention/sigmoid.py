"""Sigmoid attention: sigmoid(l - log n) for n keys, which do not compete
(Ramapuram et al., 2024, arXiv 2409.04431)."""

import math

import keras

import keras_vitx as kv
from keras_vitx.layers import Attention


@keras.saving.register_keras_serializable(package="examples")
class SigmoidAttention(Attention):
    fused = None

    def softmax_of(self, logits, dtype):
        logits = keras.ops.cast(logits, "float32") - math.log(logits.shape[-1])
        return keras.ops.cast(keras.ops.sigmoid(logits), dtype)


model = kv.ViT_Mini(attention=lambda index: SigmoidAttention(4))
