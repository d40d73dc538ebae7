"""Analysis of trained models: what each block computes, measures of it, and figures."""

from keras_vitx.analysis import measures
from keras_vitx.analysis.attention import attention_scores, class_attention, saliency
from keras_vitx.analysis.measure import MEASURES, Measure, measure
from keras_vitx.analysis.page import explore
from keras_vitx.analysis.plots import plot_class_attention, plot_confusion
from keras_vitx.analysis.trace import BlockTrace, embedding_maps, trace
