"""Analysis of trained models: what each block computes, measures of it, and figures."""

from keras_vitx.analysis import measures
from keras_vitx.analysis.attention import attention_scores, class_attention, saliency
from keras_vitx.analysis.confusion import plot_confusion
from keras_vitx.analysis.dynamics import (
    MeasureDuringTraining,
    plot_dynamics,
    plot_gates,
    read_dynamics,
    results_by_epoch,
)
from keras_vitx.analysis.figures import (
    plot_accuracy,
    plot_branches,
    plot_by_block,
    plot_class_rows,
    plot_context_scale,
    plot_entropy,
    plot_layer_similarity,
    plot_re_attention,
    plot_re_attention_depth,
    plot_similar_blocks,
    plot_similarity_matrix,
    plot_strength,
)
from keras_vitx.analysis.measure import MEASURES, Measure, measure
from keras_vitx.analysis.page import explore
from keras_vitx.analysis.pictures import (
    plot_class_attention,
    plot_class_heads,
    plot_maps,
    plot_query,
    plot_refined_maps,
    plot_saliency,
    plot_sorted_maps,
)
from keras_vitx.analysis.trace import BlockTrace, embedding_maps, trace

__all__ = [
    "MEASURES",
    "BlockTrace",
    "Measure",
    "MeasureDuringTraining",
    "attention_scores",
    "class_attention",
    "embedding_maps",
    "explore",
    "measure",
    "measures",
    "plot_accuracy",
    "plot_branches",
    "plot_by_block",
    "plot_class_attention",
    "plot_class_heads",
    "plot_class_rows",
    "plot_confusion",
    "plot_context_scale",
    "plot_dynamics",
    "plot_entropy",
    "plot_gates",
    "plot_layer_similarity",
    "plot_maps",
    "plot_query",
    "plot_re_attention",
    "plot_re_attention_depth",
    "plot_refined_maps",
    "plot_saliency",
    "plot_similar_blocks",
    "plot_similarity_matrix",
    "plot_sorted_maps",
    "plot_strength",
    "read_dynamics",
    "results_by_epoch",
    "saliency",
    "trace",
]
