"""The normalization of the images, folded into the patch embedding."""

from typing import Any

import keras
import numpy as np

from keras_vitx.export.fusing.values import Values
from keras_vitx.layers import ConvStem, ImagePreprocessing, PatchEmbedding

LEVELS = 255.0


def fold_images(
    preprocessing: keras.layers.Layer,
    arguments: dict[str, Any],
    embedding: keras.layers.Layer,
    values: Values,
) -> None:
    r"""Fold the mean and the standard deviation of an `ImagePreprocessing` into an embedding.

    With pixels $x$ in 0..255, $W (x / 255 - \mu) / \sigma + b = W' x + b'$ with
    $W' = W / (255 \sigma)$ and $b' = b - \sum W \mu / \sigma$. A `ConvStem` pads the
    normalized image with zeros, which are pixels of value $255 \mu$ before; so the mean is
    still subtracted there, and only $255 \sigma$ is folded.

    Args:
        preprocessing: A layer of the original model.
        arguments: Its serialized arguments, which are changed.
        embedding: The next layer.
        values: The values of the variables, which are changed.
    """
    if type(preprocessing) is not ImagePreprocessing or preprocessing.normalize is not True:
        return
    mean, std = (np.array(each, "float32") for each in (preprocessing.mean, preprocessing.std))
    if type(embedding) is PatchEmbedding:
        kernel, bias = f"{embedding.proj.path}/kernel", f"{embedding.proj.path}/bias"
        shift = np.einsum("ijcf,c->f", values.read(kernel), mean / std)
        values[bias] = values.read(bias) - shift
        arguments["normalize"] = False
    elif type(embedding) is ConvStem and embedding.convolutions:
        kernel = f"{embedding.convolutions[0].path}/kernel"
        arguments["normalize"] = "mean"
    else:
        return
    values[kernel] = values.read(kernel) / (LEVELS * std[:, None])


def fold_before(preprocessing: ImagePreprocessing, network: keras.Model) -> ImagePreprocessing:
    """Fold the normalization of a layer before a network into it.

    Args:
        preprocessing: The layer, which is not changed.
        network: A fused network, whose first layer is changed.

    Returns:
        The layer without what the network does now.
    """
    arguments, values = preprocessing.get_config(), Values.of(network)
    fold_images(preprocessing, arguments, network.steps[0], values)
    for variable in network.weights:
        if values[variable.path] is not variable:
            variable.assign(values[variable.path])
    return type(preprocessing).from_config(arguments)
