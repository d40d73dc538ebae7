"""Measures of the five papers: functions from arrays to arrays, one file per subject."""

from keras_vitx.analysis.measures.branches import branch_ratio, scale_summary
from keras_vitx.analysis.measures.cka import linear_cka, normalized_cka
from keras_vitx.analysis.measures.density import entropy, sorted_by_entropy, steepness
from keras_vitx.analysis.measures.distance import (
    attention_center,
    nonlocality,
    patch_distances,
    patch_maps,
    relative_distance,
)
from keras_vitx.analysis.measures.maps import class_rows, query_maps, scaled_by_maximum
from keras_vitx.analysis.measures.similarity import (
    adjacent_similarity,
    cross_layer_similarity,
    feature_similarity,
    head_similarity,
    map_cosines,
    map_similarity,
    mean_head_similarity,
    similar_blocks,
)

__all__ = [
    "attention_center",
    "branch_ratio",
    "cross_layer_similarity",
    "entropy",
    "feature_similarity",
    "map_similarity",
    "mean_head_similarity",
    "nonlocality",
    "normalized_cka",
    "relative_distance",
    "similar_blocks",
    "steepness",
]
