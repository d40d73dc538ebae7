"""Figures that a notebook shows."""

import pytest

import keras_vitx as kv

pytestmark = pytest.mark.backend_free
KINDS = {"png": ("image/png", b"\x89PNG"), "svg": ("image/svg+xml", "<?xml"), "pdf": (None, None)}


@pytest.mark.parametrize("suffix", KINDS)
def test_a_figure_is_a_path_and_a_picture(suffix, tmp_path):
    figure = kv.analysis.plot_curves({"a": {1: 0.5, 2: 0.6}}, tmp_path / f"m.{suffix}", "setting")
    assert figure == tmp_path / f"m.{suffix}" and figure.exists()
    (kind, content), *rest = figure._repr_mimebundle_().items()
    expected, start = KINDS[suffix]
    assert not rest and kind == (expected or "text/plain")
    assert expected is None or content.startswith(start)
