"""Analysis of trained models: traces of their blocks, measures, and figures."""

from keras_vitx.analysis import measures as measures
from keras_vitx.analysis.attribution import attribute as attribute
from keras_vitx.analysis.classes import classes_of as classes_of
from keras_vitx.analysis.classes import plot_confusion as plot_confusion
from keras_vitx.analysis.dynamics import MeasureDuringTraining as MeasureDuringTraining
from keras_vitx.analysis.dynamics import plot_dynamics as plot_dynamics
from keras_vitx.analysis.dynamics import read_dynamics as read_dynamics
from keras_vitx.analysis.figures import plot_by_block as plot_by_block
from keras_vitx.analysis.figures import plot_curves as plot_curves
from keras_vitx.analysis.figures import plot_history as plot_history
from keras_vitx.analysis.figures import plot_matrix as plot_matrix
from keras_vitx.analysis.measure import MEASURES as MEASURES
from keras_vitx.analysis.measure import Measure as Measure
from keras_vitx.analysis.measure import at_start as at_start
from keras_vitx.analysis.measure import measure as measure
from keras_vitx.analysis.page import explore as explore
from keras_vitx.analysis.pictures import plot_attribution as plot_attribution
from keras_vitx.analysis.pictures import plot_class_attention as plot_class_attention
from keras_vitx.analysis.pictures import plot_maps as plot_maps
from keras_vitx.analysis.pictures import plot_query as plot_query
from keras_vitx.analysis.trace import BlockTrace as BlockTrace
from keras_vitx.analysis.trace import class_attention as class_attention
from keras_vitx.analysis.trace import embedding_maps as embedding_maps
from keras_vitx.analysis.trace import trace as trace
