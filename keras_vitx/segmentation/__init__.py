"""Semantic segmentation: heads on feature maps, masks, training and measures."""

from keras_vitx.renamed import renamed_names as _renamed_names
from keras_vitx.segmentation.batches import EvaluationPairs as EvaluationPairs
from keras_vitx.segmentation.batches import TrainingCrops as TrainingCrops
from keras_vitx.segmentation.compiling import compile as compile
from keras_vitx.segmentation.evaluate import Counts as Counts
from keras_vitx.segmentation.evaluate import evaluate as evaluate
from keras_vitx.segmentation.heads import LinearHead as LinearHead
from keras_vitx.segmentation.heads import UperNet as UperNet
from keras_vitx.segmentation.model import Segmenter as Segmenter
from keras_vitx.segmentation.pictures import overlay as overlay
from keras_vitx.segmentation.pictures import palette as palette
from keras_vitx.segmentation.pictures import save_mask as save_mask
from keras_vitx.segmentation.predict import predict as predict
from keras_vitx.segmentation.schedule import WarmupPolynomial as WarmupPolynomial
from keras_vitx.segmentation.sources import IGNORED as IGNORED
from keras_vitx.segmentation.sources import MaskDataset as MaskDataset
from keras_vitx.segmentation.sources import MaskedImages as MaskedImages
from keras_vitx.segmentation.sources import load_dataset as load_dataset

__getattr__ = _renamed_names(__name__, open_source="load_dataset", MaskSource="MaskDataset")
