"""Layers: arguments of every kind are in tests/layers/test_layer_arguments.py until they move."""

from keras_vitx.layers import UniformHeads

BACKEND_FREE = True
ERRORS = {ValueError: {"`count` must be ... Received: 0": lambda: UniformHeads(0)}}
