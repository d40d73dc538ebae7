"""A self-contained HTML page with the attention maps of a model on images."""

from keras_vitx.analysis.page.explore import CHARTS, Chart, explore
