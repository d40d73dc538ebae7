"""Layers: attention and its modifications, blocks, tokens."""

from keras_vitx.layers.attention import Attention as Attention
from keras_vitx.layers.block import Block as Block
from keras_vitx.layers.block import PostNormBlock as PostNormBlock
from keras_vitx.layers.cait import ClassAttention as ClassAttention
from keras_vitx.layers.cait import ClassBlock as ClassBlock
from keras_vitx.layers.cait import TalkingHeadsAttention as TalkingHeadsAttention
from keras_vitx.layers.context import ContextBroadcasting as ContextBroadcasting
from keras_vitx.layers.context import SqueezeExcitation as SqueezeExcitation
from keras_vitx.layers.context import UniformHeads as UniformHeads
from keras_vitx.layers.convit import GatedPositionalAttention as GatedPositionalAttention
from keras_vitx.layers.convit import PositionalAttention as PositionalAttention
from keras_vitx.layers.deepvit import DeepAttention as DeepAttention
from keras_vitx.layers.deepvit import ReAttention as ReAttention
from keras_vitx.layers.deepvit import SharedAttention as SharedAttention
from keras_vitx.layers.deepvit import SharedMapsBlock as SharedMapsBlock
from keras_vitx.layers.deepvit import Temperature as Temperature
from keras_vitx.layers.heads import DenseHead as DenseHead
from keras_vitx.layers.heads import DistilledHead as DistilledHead
from keras_vitx.layers.maps import HeadMixing as HeadMixing
from keras_vitx.layers.maps import MapLayer as MapLayer
from keras_vitx.layers.mlp import MLP as MLP
from keras_vitx.layers.mlp import TokenMixing as TokenMixing
from keras_vitx.layers.preprocessing import ImagePreprocessing as ImagePreprocessing
from keras_vitx.layers.refiner import AccumulatingAttention as AccumulatingAttention
from keras_vitx.layers.refiner import LocalMapConvolution as LocalMapConvolution
from keras_vitx.layers.refiner import RefinedAttention as RefinedAttention
from keras_vitx.layers.refiner import Refinement as Refinement
from keras_vitx.layers.refiner import ResidualRefinement as ResidualRefinement
from keras_vitx.layers.regularization import DropPath as DropPath
from keras_vitx.layers.regularization import LayerScale as LayerScale
from keras_vitx.layers.tokens import ClassToken as ClassToken
from keras_vitx.layers.tokens import ConvStem as ConvStem
from keras_vitx.layers.tokens import PatchEmbedding as PatchEmbedding
from keras_vitx.layers.tokens import PositionEmbedding as PositionEmbedding
from keras_vitx.layers.tokens import TokenPooling as TokenPooling
from keras_vitx.renamed import renamed_names as _renamed_names

__getattr__ = _renamed_names(__name__, CarryingBlock="SharedMapsBlock")
