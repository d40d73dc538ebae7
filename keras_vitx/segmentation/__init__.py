"""Semantic segmentation: heads on feature maps, masks, training and metrics."""

from keras_vitx.segmentation.batches import EvaluationPairs as EvaluationPairs
from keras_vitx.segmentation.batches import TrainingCrops as TrainingCrops
from keras_vitx.segmentation.batches import pipelines
from keras_vitx.segmentation.evaluate import evaluate, predict
from keras_vitx.segmentation.heads import LinearHead, UperNet
from keras_vitx.segmentation.masks import MaskDataset as MaskDataset
from keras_vitx.segmentation.masks import MaskedImages as MaskedImages
from keras_vitx.segmentation.masks import load_dataset, overlay, save_mask
from keras_vitx.segmentation.masks import palette as palette
from keras_vitx.segmentation.metrics import IGNORED as IGNORED
from keras_vitx.segmentation.model import Segmenter, compile
from keras_vitx.segmentation.model import WarmupPolynomial as WarmupPolynomial

__all__ = [
    "LinearHead",
    "Segmenter",
    "UperNet",
    "compile",
    "evaluate",
    "load_dataset",
    "overlay",
    "pipelines",
    "predict",
    "save_mask",
]
