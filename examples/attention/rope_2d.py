"""RoPE in 2-D: queries and keys of the patches are rotated by their rows and
columns (Heo et al., 2024, arXiv 2403.13298); mixed with `learned=True`."""

import keras_vitx as kv
from keras_vitx.layers import Attention, RotaryEmbedding

model = kv.ViT_Mini(
    attention=lambda index: Attention(
        4, on_queries_keys=[RotaryEmbedding(grid=(8, 8), num_prefix_tokens=1)]
    )
)
