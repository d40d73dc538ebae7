"""Analyses of trained models, such as their attention maps."""

from keras_vitx.analysis.attention import attention_scores, class_attention, saliency
from keras_vitx.analysis.plots import plot_class_attention
