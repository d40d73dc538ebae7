"""Models in directories, hub repositories and `.keras` files: `kv.save`, `kv.load`, `kv.push`."""

import copy
import functools
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import warnings
from unittest import mock

import keras
import numpy as np
import pytest
from harness import (
    BACKEND,
    FAMILIES,
    array,
    close,
    numbers,
    precision,
    randomize,
    run_python,
    same_weights,
)
from huggingface_hub import ModelCard
from PIL import Image
from tiny import COMMIT, NAMES, PREPROCESSING, edit

import keras_vitx as kv
from keras_vitx.layers import (
    MLP,
    Attention,
    ContextBroadcasting,
    GatedPositionalAttention,
    HeadMixing,
    MapLayer,
    ReAttention,
)
from keras_vitx.weights import save_safetensors, saving

backend_free = pytest.mark.backend_free

IMAGES = numbers((2, 16, 16, 3))
FILES = {"README.md", "config.json", "preprocessor_config.json"}


@keras.saving.register_keras_serializable(package="tests")
class Doubled(keras.layers.Layer):
    """A user-defined layer over attention maps."""

    def call(self, maps):
        return 2 * maps


def outputs(model):
    return array(model(IMAGES, training=False))


def adapted(how):
    """Make a model some of whose variables have no name in PyTorch's checkpoints."""
    model = FAMILIES["CaiT"]()
    randomize(model, 0.3)
    if how == "lora":
        dense = model.get_layer("blocks_0").attention.qkv
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(numbers(dense.lora_kernel_b.shape))
    else:
        # Keras runs the garbage collector after each layer, which takes half a second.
        with warnings.catch_warnings(), mock.patch("gc.collect"):
            # Keras warns about each layer that it can't quantize.
            warnings.simplefilter("ignore")
            model.quantize(how)
    return model


def crossed():
    """Make a model with layers of other families."""
    mix = {"on_weights": [ReAttention()], "name": "attn"}
    return FAMILIES["CaiT"](
        attention=lambda i: GatedPositionalAttention(2, conv_start=False, **copy.deepcopy(mix)),
        mlp=lambda i: MLP(2.0, on_output=[ContextBroadcasting(scale=0.1)]),
    )


def with_layer(make):
    """Make a ViT with a layer over attention maps."""
    return FAMILIES["ViT"](attention=lambda i: Attention(2, on_weights=[make()]))


def mixed(policy):
    with precision(policy):
        return FAMILIES["RefinedViT"]()


MODELS = {
    **FAMILIES,
    "no head": lambda: FAMILIES["CaiT"](include_top=False),
    "function": lambda: FAMILIES["ViT"](classifier_activation=keras.ops.sigmoid),
    "mixed": lambda: mixed("mixed_bfloat16"),
    "half": lambda: mixed("bfloat16"),
    "mixing": lambda: FAMILIES["ViT"](
        attention=lambda i: Attention(2, on_logits=[HeadMixing()]), name="mine"
    ),
    "crossed": crossed,
    "lora": lambda: adapted("lora"),
    "int8": lambda: adapted("int8"),
}
IN_KERAS_FORMAT = {"crossed", "lora", "int8"}
MODELS_HERE = tuple(MODELS) if BACKEND == "torch" else ("RefinedViT", "mixed", "lora", "int8")
"""Models that are saved on this backend: one of each format and precision, and all on PyTorch."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A function that saves a model of a name, once, and returns the model and the directory."""
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def saved(name):
        model = MODELS[name]()
        if name not in IN_KERAS_FORMAT:
            randomize(model, 0.3)
        if name != "no head":
            model.class_names = NAMES
        model.preprocessing = PREPROCESSING
        kv.save(model, root / name)
        return model, root / name

    return saved


def edit_model(**values):
    return lambda content: content["model"]["config"].update(values)


FRESH = """
import json, sys
import keras_vitx as kv
import keras, numpy as np
images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
for directory in sys.argv[1:]:
    model = kv.load(directory)
    outputs = keras.ops.cast(model(images, training=False), "float32")
    about = model.name, model.family, model.class_names, model.preprocessing.to_dict()
    variables = [(variable.path, variable.dtype) for variable in model.weights]
    found = keras.ops.convert_to_numpy(outputs).tolist()
    print("loaded", json.dumps([found, *about, variables]))
"""


@pytest.fixture(scope="module")
def loaded(directories):
    """What a fresh process loads."""
    said = run_python(FRESH, *(directories(name)[1] for name in MODELS_HERE)).stdout
    return dict(zip(MODELS_HERE, map(json.loads, re.findall("loaded (.*)", said)), strict=True))


@pytest.mark.parametrize("name", MODELS_HERE)
def test_a_model_comes_back_in_a_fresh_process(directories, loaded, name):
    model, directory = directories(name)
    weights = "model.weights.h5" if name in IN_KERAS_FORMAT else "model.safetensors"
    assert {path.name for path in directory.iterdir()} == {*FILES, weights}
    found, *about = loaded[name]
    close(found, outputs(model), 1e-6)
    variables = [[variable.path, variable.dtype] for variable in model.weights]
    names = model.class_names and list(model.class_names)
    assert about == [model.name, model.family, names, PREPROCESSING.to_dict(), variables]


def test_lora_goes_on(directories):
    model = kv.load(directories("lora")[1])
    model.compile("sgd", "sparse_categorical_crossentropy")
    dense = model.get_layer("blocks_0").attention.qkv
    before = [np.array(array(v)) for v in (dense._kernel, dense.lora_kernel_b)]
    model.fit(IMAGES, np.zeros(2), verbose=0)
    np.testing.assert_array_equal(array(dense._kernel), before[0])
    assert np.abs(array(dense.lora_kernel_b) - before[1]).max() > 0


def card_of(directory):
    return ModelCard.load(directory / "README.md")


def recipe_in(card):
    return json.loads(re.search(r"```json\n(.*?)```", card.text, re.DOTALL)[1])


@backend_free
def test_the_card(directories, tmp_path):
    model, directory = FAMILIES["CaiT"](name="mine"), tmp_path / "model"
    model.class_names = NAMES
    model.compile("adam", loss=lambda y, p: keras.ops.mean(p))
    recipe = kv.training.Recipe("short").replace(epochs=3)
    dataset = "<img src=x>\n\n# Not a heading | not a cell"
    kv.save(model, directory, recipe=recipe, accuracy=0.7135, dataset=dataset, license="mit")
    card = card_of(directory)
    (result,) = card.data.eval_results
    assert (card.data.license, card.data.pipeline_tag) == ("mit", "image-classification")
    assert (result.metric_value, result.dataset_name) == (0.7135, dataset)
    assert "5 classes" in card.text and "71.35%" in card.text
    assert "<img" not in card.text and "\n# Not" not in card.text
    # The recipe in the files can be read back; how the model was compiled is not saved.
    config = json.loads((directory / "config.json").read_text())
    for read in (recipe_in(card), config["recipe"]):
        assert kv.training.Recipe.from_dict(read) == recipe
    assert not kv.load(directory).compiled

    for recipe in ({"name": "```\n<script>"}, "<script>"):
        kv.save(model, directory, recipe=recipe, overwrite=True)
        text = card_of(directory).text
        assert text.count("```") == (4 if isinstance(recipe, dict) else 2)
        assert ("<script" in text) == isinstance(recipe, dict)
    data = card_of(directories("no head")[1]).data.to_dict()
    assert not {"license", "datasets", "metrics", "model-index"} & set(data)
    assert data["pipeline_tag"] == "image-feature-extraction"


def test_the_card_says_what_fit_did(tmp_path, write_pictures):
    make = functools.partial(FAMILIES["ViT"], input_shape=(16, 16, 3), classes=3)
    make().save_weights(tmp_path / "start.weights.h5")
    model, data = make(weights=tmp_path / "start.weights.h5"), tmp_path / "photos"
    write_pictures(*(f"photos/{'abc'[i % 3]}/{i}.png" for i in range(12)))
    kv.fit(model, data, epochs=1, output=tmp_path / "run", verbose=0, validation_split=0.25)
    accuracy = model.training_record["validation"]["accuracy"]

    again = kv.load(tmp_path / "run" / "best.keras")
    for name, each in (("live", model), ("again", again)):
        kv.save(each, tmp_path / name)
        again = kv.load(tmp_path / name)
        card = card_of(tmp_path / name)
        for said in ("photos", "start.weights.h5", "3 classes: a, b, c", f"{accuracy:.2%}"):
            assert said in card.text
        assert str(tmp_path) not in card.content
        assert recipe_in(card)["name"] == "finetune"

    # Neither the recipe's optimizer nor, of own batches, its augmentation was used.
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    kv.fit(model, data, epochs=1, verbose=0)
    kv.save(model, tmp_path / "own")
    assert "of the user's own" in card_of(tmp_path / "own").text

    # The accuracy was that of other weights.
    again.layers[-1].kernel.assign(again.layers[-1].kernel + 1)
    kv.save(again, tmp_path / "changed")
    card = card_of(tmp_path / "changed")
    assert "Accuracy | not stated" in card.text and "changed afterwards" in card.text
    assert again.new_head(2).training_record == {"base": "start.weights.h5, then photos"}


@backend_free
@pytest.mark.parametrize("name", ["CaiT", "no head"])
def test_the_code_of_the_card_runs(directories, write_pictures, capsys, name):
    _, directory = directories(name)
    write_pictures("photo.jpg")
    (code,) = re.findall(r"```python\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)
    made = {}
    exec(code.replace("hf://owner/repo", str(directory)), made)
    assert made["outputs"].shape == ((1, 5) if name == "CaiT" else (1, 5, 8))
    assert ("'a'" in capsys.readouterr().out) == (name == "CaiT")


@backend_free
def test_the_image_processor_of_a_directory(saved, tmp_path):
    read = json.loads((saved / "preprocessor_config.json").read_text())
    assert read["size"] == {"shortest_edge": 18}  # 16 / 0.875, rounded down as in timm
    assert read["crop_size"] == {"height": 16, "width": 16}
    assert (read["image_mean"], read["image_std"]) == ([0.1, 0.2, 0.3], [0.5, 0.5, 0.25])
    assert read["resample"] == Image.Resampling.BILINEAR
    kv.save(FAMILIES["CaiT"](input_shape=(16, 32, 3)), tmp_path / "wide")
    assert not (tmp_path / "wide" / "preprocessor_config.json").exists()


@backend_free
def test_what_a_directory_holds_stays(tmp_path, monkeypatch):
    model, directory = FAMILIES["Mixer"](), tmp_path / "model"
    (directory / "notes").mkdir(parents=True)
    (directory / "notes" / "README.md").write_text("precious")
    (directory / "link").symlink_to("notes")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        kv.save(model, directory)
    with pytest.raises(NotADirectoryError, match=r"README\.md"):
        kv.save(model, directory / "notes" / "README.md", overwrite=True)
    assert {path.name for path in directory.iterdir()} == {"notes", "link"}
    kv.save(adapted("lora"), directory, overwrite=True)
    kv.save(model, directory, overwrite=True)
    close(outputs(kv.load(directory)), outputs(model), 1e-6)
    names = {path.name for path in directory.iterdir()}
    assert names == {*FILES, "model.safetensors", "notes", "link"}
    assert (directory / "link").is_symlink()
    assert (directory / "link" / "README.md").read_text() == "precious"

    def content():
        return {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}

    def fail(model, path):
        path.write_text("half")
        raise OSError("the disk is full")

    before = content()
    monkeypatch.setattr("keras_vitx.weights.saving.save_safetensors", fail)
    with pytest.raises(OSError, match="the disk is full"):
        kv.save(FAMILIES["CaiT"](), directory, overwrite=True)
    assert content() == before


@backend_free
def test_objects_of_your_own(tmp_path):
    model, path = with_layer(Doubled), tmp_path / "mine.keras"
    kv.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match=r"tests>Doubled.*custom_objects"):
        kv.load(tmp_path / "model")
    loaded = kv.load(tmp_path / "model", custom_objects={"tests>Doubled": Doubled})
    close(outputs(loaded), outputs(model), 1e-6)
    assert 'custom_objects={"tests>Doubled": Doubled})' in card_of(tmp_path / "model").text

    model.save(path)
    close(outputs(kv.load(path)), outputs(model), 1e-6)
    code = f"import keras_vitx as kv; kv.load({str(path)!r})"
    last = run_python(code, check=False).stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError") and str(path) in last
    assert "tests>Doubled, unknown here. Import the module of yours" in last


@keras.saving.register_keras_serializable(package="tests")
class Holding(MapLayer):
    """A user-defined layer with any argument."""

    def __init__(self, value, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def call(self, maps):
        return maps


HELD = [
    np.tri(5, dtype=bool),
    np.arange(3, dtype="float16"),
    keras.ops.ones((2, 3), "bfloat16"),
    np.array([np.nan, np.inf]),
    np.float32(0.5),
    {"a": [np.ones(2), {"b": np.int64(3)}], "c": (1, 2), "d": "tests > none"},
    b"abc",
    slice(1, None, 2),
    ...,
]


def test_plain_data_as_an_argument_of_your_layer(tmp_path):
    layer = Holding(HELD, name="mine")
    kv.save(with_layer(lambda: layer), tmp_path / "model")
    loaded = kv.load(tmp_path / "model", custom_objects={"tests>Holding": Holding})
    (found,) = loaded.get_layer("blocks_0").attention.on_weights
    before, after = (keras.tree.flatten(one) for one in (HELD, found.value))
    for one, other in zip(before, after, strict=True):
        if hasattr(one, "dtype"):
            np.testing.assert_array_equal(array(one), array(other))
            assert np.ndim(one) == 0 or one.dtype == other.dtype
        else:
            assert one == other


@pytest.mark.parametrize("names", [np.array(NAMES), np.arange(5), [*map(np.str_, NAMES)]], ids=str)
def test_class_names_as_numpy_arrays(tmp_path, names):
    model = FAMILIES["CaiT"]()
    model.class_names = names
    kv.save(model, tmp_path / "model")
    model.save(tmp_path / "model.keras")
    for path in (tmp_path / "model", tmp_path / "model.keras"):
        assert kv.load(path).class_names == model.class_names == tuple(np.array(names).tolist())
    loaded = FAMILIES["CaiT"](weights=tmp_path / "model")
    assert loaded.class_names == tuple(map(str, model.class_names))


class Unregistered(MapLayer):
    """A layer that is not registered with Keras."""

    def call(self, maps):
        return maps


def unregistered(x):
    """Stand for a function of the user's."""
    return x


def with_activation(function):
    return FAMILIES["ViT"](mlp=lambda i: MLP(2.0, activation=function))


UNREGISTERED = {
    "Unregistered": lambda: with_layer(Unregistered),
    "unregistered": lambda: with_activation(unregistered),
    "a lambda": lambda: with_activation(lambda x: x),
}


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("name", UNREGISTERED)
def test_what_is_not_registered_is_noticed_when_it_is_saved(tmp_path, caplog, name):
    model = UNREGISTERED[name]()
    words = rf"`model` must be .*registered with Keras.*Received: {name}, not registered\. Decorate"
    with pytest.raises(ValueError, match=words):
        kv.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match=words):
        kv.fit(model, (IMAGES, np.zeros(2)), output=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    model.save(tmp_path / "model.keras")
    assert f"Received: {name}, not registered" in caplog.text


@backend_free
def test_weights_that_do_not_fit_are_told(directories, directory):
    weights = directory / "model.safetensors"
    kv.save(FAMILIES["CaiT"](classes=7), directory, overwrite=True)
    for name, words in (("CaiT", "5 classes"), ("ViT", "doesn't fit")):
        shutil.copyfile(directories(name)[1] / "model.safetensors", weights)
        with pytest.raises(ValueError, match=f"spoilt: .*{words}"):
            kv.load(directory)
    for file in (weights, directory / "config.json"):
        file.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(file.name)):
            kv.load(directory)


@backend_free
@pytest.mark.parametrize("name", ["CaiT", "int8"])
def test_a_model_from_the_hub(hub, directories, name, monkeypatch):
    model, directory = directories(name)
    branch = hub("someone/model", directory) / "refs" / "main"
    download = saving.download

    def and_then_the_branch_moves(address):
        path = download(address)
        branch.write_text("f" * 40)
        return path

    for revision in ("@main", f"@{COMMIT}"):
        same_weights(kv.load(f"hf://someone/model{revision}"), model)
    with pytest.raises(OSError, match="someone/model@v2"):
        kv.load("hf://someone/model@v2")
    # Config and weights are of one version.
    monkeypatch.setattr(saving, "download", and_then_the_branch_moves)
    same_weights(kv.load("hf://someone/model"), model)


@backend_free
def test_a_source_of_the_catalog(hub, tmp_path):
    name = "deit_tiny_distilled_patch16_224.fb_in1k"
    expected = kv.ViT_Ti(distillation_token=True)
    save_safetensors(expected, tmp_path / "model.safetensors")
    hub(f"timm/{name}", tmp_path / "model.safetensors")
    model = kv.load(f"hf://timm/{name}")
    assert (model.name, model.preprocessing.crop_ratio) == ("ViT_Ti", 0.9)
    same_weights(model, expected)


@backend_free
def test_repositories_of_others(hub, tmp_path):
    (tmp_path / "config.json").write_text('{"architecture": "resnet18"}')
    hub("timm/resnet18", tmp_path / "config.json", "config.json")
    for address, error, words in (
        ("hf://timm/resnet18", ValueError, r"hf://timm/resnet18: .*create_model"),
        ("hf://timm/absent", OSError, "absent"),
        ("hf://timm", ValueError, "hf://owner/repo"),
    ):
        with pytest.raises(error, match=words):
            kv.load(address)


class Api:
    """Stands in for `huggingface_hub.HfApi`; keeps what is uploaded."""

    uploaded = None

    def create_repo(self, repository, **options):
        if repository == "someone/elses":
            raise RuntimeError("no")

    def upload_folder(self, repo_id, folder_path, allow_patterns, **options):
        names = {path.name for path in folder_path.iterdir()} & set(allow_patterns)
        type(self).uploaded = repo_id, names
        return mock.Mock(oid="abc123")


@backend_free
def test_push(directory, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    (directory / "thesis.txt").write_text("private")
    assert kv.push(directory, "someone/model") == "hf://someone/model@abc123"
    assert Api.uploaded == ("someone/model", {*FILES, "model.safetensors"})
    with pytest.raises(OSError, match=r"someone/elses.*RuntimeError.*hf auth login"):
        kv.push(directory, "someone/elses")
    for wrong in ("someone", "someone/model@v1", "../model"):
        with pytest.raises(ValueError, match="must"):
            kv.push(directory, wrong)
    (directory / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"spoilt: config\.json"):
        kv.push(directory, "someone/model")


@backend_free
def test_a_directory_as_weights(directories, monkeypatch, caplog):
    saved, directory = directories("CaiT")
    monkeypatch.chdir(directory.parent)
    model = FAMILIES["CaiT"](weights="CaiT")
    same_weights(model, saved)
    assert (model.class_names, model.preprocessing) == (NAMES, PREPROCESSING)
    assert not caplog.records


@backend_free
def test_a_directory_as_weights_is_strict(directories, directory):
    load = functools.partial(FAMILIES["CaiT"], weights=directory)
    for name, words in (("ViT", "doesn't fit"), ("int8", r"(?s)weights=.*not floating-point")):
        with pytest.raises(ValueError, match=words):
            load(weights=directories(name)[1])
    for values, words in (
        ({"class_names": ["a"]}, "names 1 classes"),
        ({"preprocessing": {"std": [1.0]}}, r"spoilt.*config\.json.*`mean`"),
    ):
        edit(directory, edit_model(**values))
        with pytest.raises(ValueError, match=words):
            load()
    edit(directory, edit_model(preprocessing=None))
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .*model\.safetensors"):
        load()


@pytest.mark.parametrize("how", ["compiled", "int8"])
def test_keras_files_that_keras_wrote(tmp_path, how):
    model = adapted("int8") if how == "int8" else FAMILIES["RefinedViT"](drop_path=0.1)
    if how == "compiled":
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(IMAGES, np.zeros(2), verbose=0)
    model.save(tmp_path / "mine.keras")
    loaded = kv.load(tmp_path / "mine.keras")
    assert not loaded.compiled
    close(outputs(loaded), outputs(model), 1e-6)


@backend_free
def test_weights_that_are_not_finite_are_noticed(tmp_path, caplog):
    model = FAMILIES["CaiT"]()
    model.get_layer("head").kernel.assign(np.full((8, 5), np.nan))
    kv.save(model, tmp_path / "model")
    model.save(tmp_path / "m.keras")
    for load in (kv.load, lambda path: FAMILIES["CaiT"](weights=path)):
        for path in (tmp_path / "model", tmp_path / "m.keras"):
            caplog.clear()
            load(path)
            assert "1 variables hold NaN or infinite values" in caplog.text
            assert "head/kernel" in caplog.text


SAVE_ON = """
import os, sys
import keras_vitx as kv
models = [kv.load(path) for path in sys.argv[2:]]
print("saving", flush=True)
while not os.path.exists(sys.argv[2] + "/stop"):
    for model in models:
        kv.save(model, sys.argv[1], overwrite=True)
"""


@backend_free
def test_what_is_loaded_during_saves_is_of_one_version(tmp_path):
    paths = [tmp_path / name for name in ("model", "one", "two")]
    for path, value in zip(paths[1:], (1.0, 2.0), strict=True):
        model = FAMILIES["CaiT"]()
        model.class_names = [f"{path.name} {index}" for index in range(5)]
        for variable in model.weights:
            variable.assign(np.full(variable.shape, value))
        kv.save(model, path)
    shutil.copytree(tmp_path / "one", tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("precious")
    seen, loads = set(), (kv.load, lambda path: FAMILIES["CaiT"](weights=path))
    command = [sys.executable, "-c", SAVE_ON, *map(str, paths)]
    savers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [saver.stdout.readline() for saver in savers] == ["saving\n"] * 2
        # Thirty loads, and more where the savers get less of the processor than the loader.
        for turn in range(600):
            if turn >= 30 and len(seen) >= 2:
                break
            model = loads[turn % 2](tmp_path / "model")
            values = {float(value) for v in model.weights for value in np.unique(array(v.value))}
            seen.add((model.class_names[0], *values))
    finally:
        (tmp_path / "one" / "stop").touch()
        assert [saver.wait(100) for saver in savers] == [0, 0]
    assert seen == {("one 0", 1.0), ("two 0", 2.0)}
    # Each saver keeps what else the directory holds, and leaves nothing beside it.
    assert (tmp_path / "model" / "notes.txt").read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == paths


IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import keras
import keras_vitx as kv
models = [kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5) for _ in range(4)]
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda i: kv.save(models[i], f"{sys.argv[1]}/{i}"), range(4)))
keras.layers.StringLookup(vocabulary=["a"])
import tensorflow as tf
drawn = [keras.utils.set_random_seed(1) or float(tf.random.uniform(())) for _ in range(2)]
assert drawn[0] == drawn[1], drawn
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_saving_in_threads_changes_nothing_of_keras(tmp_path):
    run_python(IN_THREADS, tmp_path)
    assert len(list(tmp_path.glob("*/config.json"))) == 4
