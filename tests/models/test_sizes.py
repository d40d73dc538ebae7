"""The registered sizes; tests/test_readme.py compares the numbers of their tables."""

import pytest
from sizes import COUNTS, PATH, count, gmacs, stub

import keras_vitx as kv

pytestmark = pytest.mark.backend_free


# As the paper counts them: CaiT, Tables 3 and 6.
@pytest.mark.parametrize(("name", "published"), [("CaiT_XXS24", 9.6), ("CaiT_S36", 48.0)])
def test_macs_at_384(name, published):
    assert float(gmacs(name, input_shape=(384, 384, 3))) == pytest.approx(published, rel=0.01)


def test_every_size_has_a_row():
    new, gone = set(kv.list_models()) - set(COUNTS), set(COUNTS) - set(kv.list_models())
    assert not new | gone, f"run `make sizes` for {new}; remove {gone} from docs/sizes.md"


OTHERS = [
    ("CaiT_S36", {"input_shape": (384, 384, 3)}, 68_366_632),
    (
        "CaiT_XXS24",
        {"input_shape": (32, 48, 3), "classes": 10},
        11_956_264 - (196 - 6) * 192 - 990 * 193,
    ),
    ("RefinedViT_S", {"dense_head": True}, 25_408_656),
]


@pytest.mark.parametrize(("name", "arguments", "parameters"), OTHERS)
def test_parameters_with_other_arguments(name, arguments, parameters):
    assert count(name, **arguments) == parameters


def test_registry():
    assert kv.list_models("cait_s*") == ["CaiT_S24", "CaiT_S36", "CaiT_S48"]
    assert kv.list_models("none*") == []
    for name in kv.list_models():
        constructor = getattr(kv.models, name)
        assert getattr(kv, name) is constructor
        assert constructor.__name__ == name
        for key, value in constructor.data.items():
            assert key in ("input_shape", "classes") or f"{key}={value!r}" in constructor.__doc__
        assert "weights:" in constructor.__doc__
        assert "**overrides" in constructor.__doc__


def test_editors_see_the_parameters_of_today():
    assert PATH.read_text() == stub(), "run `make sizes`"
