"""Semantic segmentation: heads on feature maps, predictions by windows, and metrics."""

from keras_vitx.segmentation.evaluate import evaluate, predict
from keras_vitx.segmentation.heads import LinearHead, UperNet
from keras_vitx.segmentation.metrics import IGNORED as IGNORED
from keras_vitx.segmentation.metrics import MeanIoU
from keras_vitx.segmentation.model import Segmenter

__all__ = ["LinearHead", "MeanIoU", "Segmenter", "UperNet", "evaluate", "predict"]
