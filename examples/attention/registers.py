"""Register tokens: learned tokens that only attention reads, so that it need
not keep what it computes in patches (Darcet et al., 2023, arXiv 2309.16588)."""

import keras_vitx as kv

model = kv.ViT_Mini(register_tokens=4)
