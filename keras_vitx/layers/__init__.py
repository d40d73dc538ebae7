"""Layers: attention and its modifications, blocks, tokens."""

from keras_vitx.layers.attention import Attention as Attention
from keras_vitx.layers.attention import ClassAttention as ClassAttention
from keras_vitx.layers.attention import TalkingHeadsAttention as TalkingHeadsAttention
from keras_vitx.layers.blocks import Block as Block
from keras_vitx.layers.blocks import ClassBlock as ClassBlock
from keras_vitx.layers.maps import HeadMixing as HeadMixing
from keras_vitx.layers.mlp import MLP as MLP
from keras_vitx.layers.regularization import DropPath as DropPath
from keras_vitx.layers.regularization import LayerScale as LayerScale
from keras_vitx.layers.tokens import ClassToken as ClassToken
from keras_vitx.layers.tokens import PatchEmbedding as PatchEmbedding
from keras_vitx.layers.tokens import PositionEmbedding as PositionEmbedding
from keras_vitx.layers.tokens import TokenPooling as TokenPooling
