"""Analysis of trained models: traces of their blocks, measures, and figures."""

from keras_vitx.analysis import measures
from keras_vitx.analysis.dynamics import (
    MeasureDuringTraining,
    converged_at,
    plot_dynamics,
    read_dynamics,
    results_by_epoch,
)
from keras_vitx.analysis.figures import plot_by_block, plot_confusion, plot_curves, plot_matrix
from keras_vitx.analysis.measure import MEASURES, Measure, at_start, measure
from keras_vitx.analysis.page import explore
from keras_vitx.analysis.pictures import plot_class_attention, plot_maps, plot_query
from keras_vitx.analysis.trace import BlockTrace, class_attention, embedding_maps, trace

__all__ = [
    "MEASURES",
    "BlockTrace",
    "Measure",
    "MeasureDuringTraining",
    "at_start",
    "class_attention",
    "converged_at",
    "embedding_maps",
    "explore",
    "measure",
    "measures",
    "plot_by_block",
    "plot_class_attention",
    "plot_confusion",
    "plot_curves",
    "plot_dynamics",
    "plot_maps",
    "plot_matrix",
    "plot_query",
    "read_dynamics",
    "results_by_epoch",
    "trace",
]
