"""timm's names: a sample of them builds networks that read timm's files and equal timm's."""

import random

import pytest

import keras_vitx as kv
from keras_vitx.models.build import FAMILIES, MODELS


def width(known):
    """Return the width of the network of a checkpoint."""
    return ({**FAMILIES, **MODELS}[known.constructor].data | dict(known.arguments)).get("dim", 999)


NARROW = {
    (c.constructor, str(c.arguments)): c.name
    for c in kv.weights.checkpoints_of(None)
    if c.source.startswith("hf://timm/") and width(c) < 400
}


@pytest.mark.parametrize("tag", random.Random(0).sample([*NARROW.values()], 6))
def test_a_network_of_timms_name_equals_timms(timm, tag):
    import timm_names

    assert timm_names.difference(tag) < 1e-5
