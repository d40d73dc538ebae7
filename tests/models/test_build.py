"""Public constructors: signatures, docs, sizes, what any refuses, and families from outside."""

import inspect
import re
from functools import partial
from unittest.mock import patch

import keras
import numpy as np
import pytest
from harness import FAMILIES, array, close, numbers, randomize
from safetensors.numpy import load_file
from sizes import COUNTS, PATH, gmacs, listed, stub

import keras_vitx as kv
from keras_vitx.layers import MLP, PatchEmbedding, TalkingHeadsAttention
from keras_vitx.models import build
from keras_vitx.models.arguments import ModelArguments
from keras_vitx.models.common import class_tokens, last_norm
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import names
from keras_vitx.weights.names import Row, Table

KERAS_ORDER = (
    *("include_top", "weights", "input_tensor", "input_shape", "pooling", "classes"),
    *("classifier_activation", "name", "include_preprocessing"),
)
IMAGES = numbers((2, 16, 16, 3))
pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("family", FAMILIES)
def test_signature_of_a_family(family):
    constructor = getattr(kv, family)
    parameters = inspect.signature(constructor).parameters
    first, *own = inspect.signature(constructor.list_layers).parameters
    shared = list(inspect.signature(ModelArguments).parameters)
    assert first == "args" and list(parameters) == [*own, *shared]
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in shared)
    groups = re.findall(r"\n    (\w[\w, ]*): ", constructor.__doc__)
    assert set(parameters) <= {name for group in groups for name in group.split(", ")}
    assert constructor.__name__ == family and constructor.__module__.startswith("keras_vitx.models")


def test_signature_of_a_size():
    parameters = inspect.signature(kv.CaiT_Mini).parameters
    assert tuple(parameters) == (*KERAS_ORDER, "overrides")
    assert parameters["classes"].default == 10
    assert inspect.signature(kv.CaiT_S36).parameters["classes"].default == 1000
    application = inspect.signature(keras.applications.EfficientNetV2B0).parameters
    for name in KERAS_ORDER:
        assert parameters[name].kind is application[name].kind


def test_numpy_numbers(tmp_path):
    own = {"dims": np.array((8, 16)), "depths": (np.int64(1), 2), "num_heads": np.array((2, 4))}
    own |= {"input_shape": np.array((16, 24, 3)), "patch_size": np.int64(8)}
    own |= {"classes": np.arange(4).max() + 1, "drop_path": np.linspace(0, 0.5, 3)}
    model = FAMILIES["PiT"](**own)
    plain = {key: np.array(value).tolist() for key, value in own.items()}
    expected = FAMILIES["PiT"](**plain).get_config()
    assert model.get_config() == {**expected, "name": model.name}
    model.class_names = np.array(["a", "b", "c", "d"])
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").class_names == ("a", "b", "c", "d")


def test_released_settings():
    ratios = {"RefinedViT_S": 0.9, "RefinedViT_M": 1.0, "RefinedViT_L": 1.13, "DeepViT_L": 0.9}
    for name, ratio in ratios.items():
        assert getattr(kv, name).preprocessing == IMAGENET_INCEPTION.replace(crop_ratio=ratio)
    released = kv.models.model_input("refined_vit_l_448")
    assert released.preprocessing == IMAGENET_INCEPTION.replace(crop_ratio=1.13)
    for name in kv.list_models("DeepViT_[!M]*") + [f"ViT_{depth}B" for depth in (16, 24, 32)]:
        assert kv.models.MODELS[name].data["drop_path"] == 0.2


# Sizes; tests/test_docs.py compares the numbers of their tables.


# As the paper counts them: CaiT, Tables 3 and 6.
@pytest.mark.parametrize(("name", "published"), [("CaiT_XXS24", 9.6), ("CaiT_S36", 48.0)])
def test_macs_at_384(name, published):
    assert float(gmacs(name, input_shape=(384, 384, 3))) == pytest.approx(published, rel=0.01)


def test_every_size_has_a_row():
    new, gone = set(kv.list_models()) - set(COUNTS), set(COUNTS) - set(kv.list_models())
    assert not new | gone, f"run `make sizes` for {new}; remove {gone} from docs/sizes.md"


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
    assert PATH.with_suffix(".json").read_text() == listed(), "run `make sizes`"


# What any family refuses; arguments of one are in errors/model_errors.py.

MINE = kv.layers.TokenMixing(4, name="mine")
# Arguments of all families that reach the layers by each family's own lines.
WRONG = {
    "`patch_size` must be ... Received: 0": {"patch_size": 0},
    "`rate` must be in [0, 1). Received: rate=1.0": {"drop_path": 1.0},
    "`rate`... Received: rate=2.0": {"dropout": 2.0},
    "`attention` must return a new layer for each block. Received": {
        "attention": lambda index: MINE
    },
    "`mlp` must return a new layer for each block. Received": {"mlp": lambda index: MINE},
}
NEAREST = "`input_shape` must ... Received: input_shape=(20, 16, 3); the nearest is ("
FIRST = (
    "must not read shared maps in the first block... none for block 0. Received: 'SharedAttention'"
)


def rows():
    for family in FAMILIES:
        yield from ((family, *row) for row in WRONG.items())
        if family != "PiT":  # Each of its stages has another grid.
            yield family, NEAREST, {"input_shape": (20, 16, 3)}
        shared = partial(kv.layers.SharedAttention, 4 if family in ("ConViT", "PiT") else 2)
        yield family, FIRST, {"attention": lambda index, shared=shared: shared()}
        # Its own counts and choices.
        wrong = {int: -1, int | None: -1, str: "foo", str | None: "foo"}
        own = inspect.signature(getattr(kv, family).list_layers).parameters
        for name, kind in ((name, argument.annotation) for name, argument in own.items()):
            if kind in wrong:
                yield family, f"`{name}`... Received: ...{wrong[kind]!r}", {name: wrong[kind]}


@pytest.mark.parametrize(("family", "words", "arguments"), list(rows()))
def test_wrong_argument_of_any_family(family, words, arguments):
    pattern = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises(ValueError, match=f"(?s){pattern}"):
        FAMILIES[family](**arguments)


# From outside.


def talker():
    """Define a family and one of its sizes, as a user of the package would."""

    @kv.models.family(
        IMAGENET_INCEPTION.replace(crop_ratio=0.5),
        Table(rows=(Row(r"(.+)/(proj_[lw])/kernel", r"\1/\2/weight"),)),
    )
    def Talker(args, width, layers=2, heads=2):
        """Heads talk.

        Args:
            width: Width.
            layers: Number of blocks.
            heads: Number of heads.
        """
        args.grid(8)
        blocks = args.blocks(lambda i: TalkingHeadsAttention(heads), lambda i: MLP(2.0), layers)
        stem = PatchEmbedding(width, 8, name="patch_embed")
        return [stem, *class_tokens(), *blocks, last_norm(), *args.head()]

    kv.models.variant("Talker_8", Talker, (16, 16, 3), classes=5, crop_ratio=0.75, width=8)
    return Talker


@pytest.fixture
def foreign():
    with patch.dict(build.FAMILIES), patch.dict(build.MODELS), patch.dict(names.TABLES):
        yield talker()


def test_a_family_from_outside(foreign, tmp_path):
    model = foreign(8, input_shape=(16, 16, 3), classes=5)
    assert (model.name, model.family) == ("Talker", "Talker")
    assert model.preprocessing == IMAGENET_INCEPTION.replace(crop_ratio=0.5)
    assert "heads: Number of heads.\n    drop_path: " in foreign.__doc__
    size = kv.create_model("Talker_8", drop_path=0.1, layers=3)
    assert size.preprocessing.crop_ratio == 0.75
    names = [step.name for step in size.layers]
    assert names[:4] == ["patch_embed", "cls_token", "blocks_0", "blocks_1"]
    assert kv.list_models("talk*") == ["Talker_8"]
    assert kv.models.model_input("Talker_8").preprocessing.crop_ratio == 0.75

    randomize(model)
    path = tmp_path / "m.safetensors"
    kv.weights.save_safetensors(model, path)
    loaded = kv.create_model("Talker_8", weights=str(path))
    close(array(loaded(IMAGES)), array(model(IMAGES)))
    assert "blocks.0.attn.proj_l.weight" in load_file(path)
