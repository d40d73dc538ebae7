"""Analysis of trained models: attention maps and saliency."""

from keras_vitx.analysis.attention import attention_scores, class_attention, saliency
from keras_vitx.analysis.plots import plot_class_attention, plot_confusion
