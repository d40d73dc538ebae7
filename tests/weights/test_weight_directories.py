"""Models in directories, hub repositories and `.keras` files: `kv.save`, `kv.load`, `kv.push`."""

import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

import keras
import numpy as np
import pytest
from harness import BACKEND, FAMILIES, array, close, numbers, precision, randomize, run_python
from PIL import Image

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

constants = pytest.importorskip("huggingface_hub.constants")

backend_free = pytest.mark.backend_free

IMAGES = numbers((2, 16, 16, 3))
NAMES = tuple("abcde")
PREPROCESSING = kv.Preprocessing([0.1, 0.2, 0.3], [0.5, 0.5, 0.25], 0.875, "bilinear")
FILES = {"README.md", "config.json", "preprocessor_config.json"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


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


def with_own_layer():
    return FAMILIES["ViT"](attention=lambda i: Attention(2, on_weights=[Doubled()]))


def mixed(policy):
    with precision(policy):
        return FAMILIES["RefinedViT"]()


MODELS = {
    **FAMILIES,
    "distilled": lambda: FAMILIES["ViT"](distillation_token=True),
    "dense head": lambda: FAMILIES["RefinedViT"](dense_head=True),
    "no head": lambda: FAMILIES["CaiT"](include_top=False),
    "pooled": lambda: FAMILIES["CaiT"](include_top=False, pooling="avg"),
    "logits": lambda: FAMILIES["ConViT"](classifier_activation=None),
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


def weights_file(name):
    return "model.weights.h5" if name in IN_KERAS_FORMAT else "model.safetensors"


class Directories:
    """Directories of saved models, each made when it is first needed, and the models' outputs."""

    def __init__(self, root):
        self.root = root
        self.models = {}
        self.outputs = {}

    def __getitem__(self, name):
        if name not in self.models:
            self.models[name] = model = MODELS[name]()
            if name not in IN_KERAS_FORMAT:
                randomize(model, 0.3)
            if name not in ("no head", "pooled"):
                model.class_names = NAMES
            model.preprocessing = PREPROCESSING
            self.outputs[name] = outputs(model)
            kv.save(model, self.root / name)
        return self.root / name


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return Directories(tmp_path_factory.mktemp("models"))


@pytest.fixture
def directory(directories, tmp_path):
    """A copy of a saved model, for tests that change it."""
    return shutil.copytree(directories["CaiT"], tmp_path / "spoilt")


def edit(directory, change):
    """Change the config in a directory."""
    path = directory / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def edit_model(**values):
    return lambda content: content["model"]["config"].update(values)


FRESH = """
import json, pathlib, sys
import keras_vitx as kv
import keras, numpy as np
images, target, *directories = sys.argv[1:]
images = np.load(images)
for directory in directories:
    model = kv.load(directory)
    outputs = keras.ops.cast(model(images, training=False), "float32")
    base = f"{target}/{pathlib.Path(directory).name}"
    np.save(f"{base}.npy", keras.ops.convert_to_numpy(outputs))
    variables = [(variable.path, variable.dtype) for variable in model.weights]
    about = model.name, model.family, model.class_names, model.preprocessing.to_dict(), variables
    pathlib.Path(f"{base}.json").write_text(json.dumps(about))
"""


@pytest.fixture(scope="module")
def loaded(directories, tmp_path_factory):
    """The directory where a fresh process writes what it loads."""
    path = tmp_path_factory.mktemp("loaded")
    np.save(path / "images.npy", IMAGES)
    run_python(FRESH, path / "images.npy", path, *(directories[name] for name in MODELS_HERE))
    return path


@pytest.mark.parametrize("name", MODELS_HERE)
def test_comes_back_in_a_fresh_process(directories, loaded, name):
    assert {path.name for path in directories[name].iterdir()} == {*FILES, weights_file(name)}
    close(np.load(loaded / f"{name}.npy"), directories.outputs[name], 1e-6)
    model = directories.models[name]
    variables = [[variable.path, variable.dtype] for variable in model.weights]
    names = model.class_names and list(model.class_names)
    found = json.loads((loaded / f"{name}.json").read_text())
    assert found == [model.name, model.family, names, PREPROCESSING.to_dict(), variables]


def test_lora_goes_on(directories):
    model = kv.load(directories["lora"])
    model.compile("sgd", "sparse_categorical_crossentropy")
    dense = model.get_layer("blocks_0").attention.qkv
    before = [np.array(array(v)) for v in (dense._kernel, dense.lora_kernel_b)]
    model.fit(IMAGES, np.zeros(2), verbose=0)
    np.testing.assert_array_equal(array(dense._kernel), before[0])
    assert np.abs(array(dense.lora_kernel_b) - before[1]).max() > 0


def card_of(directory):
    from huggingface_hub import ModelCard

    return ModelCard.load(directory / "README.md")


@backend_free
def test_the_card(directories, tmp_path):
    model = FAMILIES["CaiT"](name="mine")
    model.class_names = NAMES
    model.compile("adam", loss=lambda y, p: keras.ops.mean(p))
    recipe = kv.training.Recipe("short").replace(epochs=3)
    dataset = "<img src=x>\n\n# Not a heading | not a cell"
    about = {"accuracy": np.float64(0.7135), "dataset": dataset, "license": "mit"}
    kv.save(model, tmp_path / "model", recipe=recipe, **about)
    card = card_of(tmp_path / "model")
    data = card.data.to_dict()
    assert (data["license"], data["datasets"]) == ("mit", [dataset])
    assert (data["library_name"], data["pipeline_tag"]) == ("keras_vitx", "image-classification")
    (result,) = card.data.eval_results
    found = result.metric_type, result.metric_value, result.dataset_name
    assert found == ("accuracy", 0.7135, dataset)
    for said in (f"{model.count_params():,}", "16 x 16 x 3", "5 classes", "71.35%", "| mit |"):
        assert said in card.text
    assert "<img" not in card.text and "\n# Not" not in card.text
    # The recipe in the files can be read back; how the model was compiled is not saved.
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for read in (recipe_in(card), config["recipe"]):
        assert kv.training.Recipe.from_dict(read) == recipe
    assert config["library_version"] == kv.__version__
    assert not kv.load(tmp_path / "model").compiled

    kv.save(model, tmp_path / "model", recipe={"name": "```\n<script>"}, overwrite=True)
    card = card_of(tmp_path / "model")
    assert card.text.count("```") == 4 and recipe_in(card) == {"name": "```\n<script>"}
    kv.save(model, tmp_path / "model", recipe="<script>", overwrite=True)
    assert "<script" not in card_of(tmp_path / "model").text

    card = card_of(directories["no head"])
    data = card.data.to_dict()
    assert not {"license", "datasets", "metrics", "model-index"} & set(data)
    assert data["pipeline_tag"] == "image-feature-extraction"
    assert card.text.count("not stated") == 3


def test_the_card_says_what_fit_did(tmp_path):
    model = FAMILIES["ViT"](input_shape=(16, 16, 3), classes=3)
    model.save_weights(tmp_path / "start.weights.h5")
    model = FAMILIES["ViT"](
        input_shape=(16, 16, 3), classes=3, weights=tmp_path / "start.weights.h5"
    )
    images = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), "uint8")
    data = tmp_path / "photos"
    for index, image in enumerate(images):
        (data / "abc"[index % 3]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(data / "abc"[index % 3] / f"{index}.png")
    kv.fit(model, data, epochs=1, output=tmp_path / "run", verbose=0, validation_split=0.25)
    accuracy = model.training_record["validation"]["accuracy"]

    again = kv.load(tmp_path / "run" / "best.keras")
    for name, each in (("live", model), ("again", again)):
        kv.save(each, tmp_path / name)
        again = kv.load(tmp_path / name)
    kv.save(again, tmp_path / "thrice")
    for name in ("live", "again", "thrice"):
        card = card_of(tmp_path / name)
        for said in ("photos", "start.weights.h5", "3 classes: a, b, c", f"{accuracy:.2%}"):
            assert said in card.text
        assert str(tmp_path) not in card.content
        assert recipe_in(card)["name"] == "finetune"
        assert [result.metric_value for result in card.data.eval_results] == [accuracy]

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


def recipe_in(card):
    return json.loads(re.search(r"```json\n(.*?)```", card.text, re.DOTALL)[1])


@backend_free
@pytest.mark.parametrize("name", ["CaiT", "no head"])
def test_the_code_of_the_card_runs(directories, tmp_path, monkeypatch, capsys, name):
    directory = directories[name]
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((20, 30, 3), "uint8")).save("photo.jpg")
    (code,) = re.findall(r"```python\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)
    made = {}
    exec(code.replace("hf://owner/repo", str(directory)), made)
    assert made["outputs"].shape == ((1, 5) if name == "CaiT" else (1, 5, 8))
    assert ("'a'" in capsys.readouterr().out) == (name == "CaiT")


@backend_free
def test_the_image_processor_of_a_directory(directories, tmp_path):
    read = json.loads((directories["CaiT"] / "preprocessor_config.json").read_text())
    assert read["size"] == {"shortest_edge": 18}  # 16 / 0.875, rounded down as in timm
    assert read["crop_size"] == {"height": 16, "width": 16}
    assert (read["image_mean"], read["image_std"]) == ([0.1, 0.2, 0.3], [0.5, 0.5, 0.25])
    assert read["resample"] == Image.Resampling.BILINEAR
    kv.save(FAMILIES["CaiT"](input_shape=(16, 32, 3)), tmp_path / "wide")
    assert not (tmp_path / "wide" / "preprocessor_config.json").exists()


@backend_free
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"accuracy": 71.35, "dataset": "cifar10"}, "accuracy.*0 to 1.*71.35"),
        ({"accuracy": "high", "dataset": "cifar10"}, "accuracy.*high"),
        ({"accuracy": 0.5}, "accuracy.*dataset"),
        ({"license": ["mit"]}, "license.*mit"),
        ({"recipe": 3}, "recipe.*3"),
        ({"recipe": {"model": keras}}, "recipe"),
        ({"directory": "hf://owner/repo"}, "keras_vitx.push"),
        ({"model": keras.Sequential()}, "model.*Sequential"),
    ],
)
def test_wrong_arguments_write_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    given = {"model": FAMILIES["Mixer"](), "directory": tmp_path / "model", **arguments}
    with pytest.raises(ValueError, match=words):
        kv.save(**given)
    assert not list(tmp_path.iterdir())


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
def test_several_savers_of_one_directory_keep_what_else_it_holds(tmp_path):
    directory, models = tmp_path / "model", [FAMILIES["Mixer"](classes=3 + i) for i in range(3)]
    kv.save(models[0], directory)
    (directory / "notes.txt").write_text("precious")

    def save(model):
        for _ in range(8):
            kv.save(model, directory, overwrite=True)

    with ThreadPoolExecutor(len(models)) as pool:
        list(pool.map(save, models))
    assert (directory / "notes.txt").read_text() == "precious"
    assert kv.load(directory).output_shape[-1] in (3, 4, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@backend_free
def test_objects_of_your_own(tmp_path):
    model = with_own_layer()
    kv.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match=r"tests>Doubled.*custom_objects"):
        kv.load(tmp_path / "model")
    loaded = kv.load(tmp_path / "model", custom_objects={"tests>Doubled": Doubled})
    close(outputs(loaded), outputs(model), 1e-6)
    assert 'custom_objects={"tests>Doubled": Doubled})' in card_of(tmp_path / "model").text


@keras.saving.register_keras_serializable(package="tests")
class Holding(MapLayer):
    """A user-defined layer with any argument."""

    def __init__(self, value, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def call(self, maps):
        return maps


HELD = {
    "booleans": np.tri(5, dtype=bool),
    "half": np.arange(3, dtype="float16"),
    "bfloat16": lambda: keras.ops.ones((2, 3), "bfloat16"),
    "integers": np.arange(4, dtype="int64"),
    "tensor": lambda: keras.ops.convert_to_tensor(numbers((2, 3))),
    "not finite": np.array([np.nan, np.inf]),
    "scalar": np.float32(0.5),
    "nested": {"a": [np.ones(2), {"b": np.int64(3)}], "c": (1, 2), "d": "tests > none"},
    "bytes": b"abc",
    "slice": slice(1, None, 2),
    "ellipsis": ...,
}


@pytest.mark.parametrize("value", HELD)
def test_plain_data_as_an_argument_of_your_layer(tmp_path, value):
    value = HELD[value]() if callable(HELD[value]) else HELD[value]
    layer = Holding(value, name="mine")
    model = FAMILIES["ViT"](attention=lambda i: Attention(2, on_weights=[layer]))
    kv.save(model, tmp_path / "model")
    loaded = kv.load(tmp_path / "model", custom_objects={"tests>Holding": Holding})
    (found,) = loaded.get_layer("blocks_0").attention.on_weights
    before, after = (keras.tree.flatten([one]) for one in (value, found.value))
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        if hasattr(one, "dtype"):
            np.testing.assert_array_equal(array(one), array(other))
            assert np.ndim(one) == 0 or one.dtype == other.dtype
        else:
            assert one == other


@pytest.mark.parametrize("kind", ["strings", "integers", "list"])
def test_class_names_as_numpy_arrays(tmp_path, kind):
    names = {"strings": np.array(NAMES), "integers": np.arange(5), "list": [*map(np.str_, NAMES)]}
    model = FAMILIES["CaiT"]()
    model.class_names = names[kind]
    kv.save(model, tmp_path / "model")
    model.save(tmp_path / "model.keras")
    expected = tuple(range(5)) if kind == "integers" else NAMES
    for path in (tmp_path / "model", tmp_path / "model.keras"):
        assert kv.load(path).class_names == model.class_names == expected
    loaded = FAMILIES["CaiT"](weights=tmp_path / "model")
    assert loaded.class_names == tuple(map(str, expected))
    with pytest.raises(ValueError, match=r"`class_names` must be a list.*Received: 'cat'"):
        model.class_names = "cat"


class Unregistered(MapLayer):
    """A layer that is not registered with Keras."""

    def call(self, maps):
        return maps


def unregistered(x):
    """Stand for a function of the user's."""
    return x


UNREGISTERED = {
    "Unregistered": lambda: FAMILIES["ViT"](
        attention=lambda i: Attention(2, on_weights=[Unregistered()])
    ),
    "unregistered": lambda: FAMILIES["ViT"](mlp=lambda i: MLP(2.0, activation=unregistered)),
    "a lambda": lambda: FAMILIES["ViT"](mlp=lambda i: MLP(2.0, activation=lambda x: x)),
}


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize("name", UNREGISTERED)
def test_what_is_not_registered_is_noticed_when_it_is_saved(tmp_path, caplog, name):
    model = UNREGISTERED[name]()
    words = rf"`model` must be .*registered with Keras.*Received: {name}, not registered\. Decorate"
    with pytest.raises(ValueError, match=words):
        kv.save(model, tmp_path / "model")
    before = outputs(model)
    with pytest.raises(ValueError, match=words):
        kv.fit(model, (IMAGES, np.zeros(2)), output=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    np.testing.assert_array_equal(outputs(model), before)
    model.save(tmp_path / "model.keras")
    assert f"Received: {name}, not registered" in caplog.text
    caplog.clear()
    FAMILIES["ViT"]().save(tmp_path / "plain.keras")
    assert not caplog.records


DAMAGES = {
    "empty": b"",
    "cut": b'{"library_name": "keras_vitx", "mod',
    "bytes": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "list": lambda content: [content],
    "no model": lambda content: {"library_name": "keras_vitx"},
    "no layers": lambda content: content["model"]["config"].pop("layers"),
    "layers": edit_model(layers=[3]),
    "images": edit_model(input_shape=[15, 15, 3]),
    "no mean": lambda content: content["model"]["config"]["preprocessing"].update(mean=None),
    "a layer": lambda content: {**content, "model": content["model"]["config"]["layers"][0]},
    "another file": lambda content: content.update(weights="../x.safetensors"),
}


@backend_free
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_config_is_told(directory, damage):
    damage = DAMAGES[damage]
    if callable(damage):
        edit(directory, damage)
    else:
        (directory / "config.json").write_bytes(damage)
    with pytest.raises(ValueError, match="spoilt: ") as error:
        kv.load(directory)
    assert len(str(error.value)) < 700


@backend_free
def test_weights_that_do_not_fit(directories, directory, tmp_path):
    weights = directory / "model.safetensors"
    kv.save(FAMILIES["CaiT"](classes=7), directory, overwrite=True)
    for name, words in (("CaiT", "5 classes"), ("ViT", "doesn't fit")):
        shutil.copyfile(directories[name] / "model.safetensors", weights)
        with pytest.raises(ValueError, match=f"spoilt: .*{words}"):
            kv.load(directory)
    weights.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="spoilt: "):
        kv.load(directory)
    for file in (weights, directory / "config.json"):
        file.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(file.name)):
            kv.load(directory)
    other = shutil.copytree(directories["int8"], tmp_path / "other")
    content = (other / "model.weights.h5").read_bytes()
    (other / "model.weights.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"model\.weights\.h5"):
        kv.load(other)
    for absent in (tmp_path / "absent", "CaiT_S24"):
        with pytest.raises(NotADirectoryError, match=str(absent)):
            kv.load(absent)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An offline hub; returns a function that puts the files of a directory into its cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, directory):
        cache = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (cache / "refs").mkdir(parents=True)
        (cache / "refs" / "main").write_text(COMMIT)
        shutil.copytree(directory, cache / "snapshots" / COMMIT)
        return cache

    return put


@backend_free
@pytest.mark.parametrize("name", ["CaiT", "int8"])
def test_from_the_hub(hub, directories, name, monkeypatch):
    from keras_vitx.weights import saving

    branch = hub("someone/model", directories[name]) / "refs" / "main"
    download = saving.download

    def and_then_the_branch_moves(address):
        path = download(address)
        branch.write_text("f" * 40)
        return path

    for revision in ("@main", f"@{COMMIT}"):
        close(outputs(kv.load(f"hf://someone/model{revision}")), directories.outputs[name], 1e-6)
    with pytest.raises(OSError, match="someone/model@v2"):
        kv.load("hf://someone/model@v2")
    # Config and weights are of one version.
    monkeypatch.setattr(saving, "download", and_then_the_branch_moves)
    close(outputs(kv.load("hf://someone/model")), directories.outputs[name], 1e-6)


@backend_free
@pytest.mark.parametrize(
    ("name", "arguments", "layer"),
    [
        ("deit_tiny_distilled_patch16_224.fb_in1k", {"distillation_token": True}, "dist_token"),
        ("vit_tiny_patch16_224.augreg_in21k", {"classes": 21843}, "head"),
    ],
)
def test_a_source_of_the_catalog(hub, tmp_path, name, arguments, layer):
    expected = kv.ViT_Ti(**arguments)
    (tmp_path / "theirs").mkdir()
    kv.weights.save_safetensors(expected, tmp_path / "theirs" / "model.safetensors")
    hub(f"timm/{name}", tmp_path / "theirs")
    model = kv.load(f"hf://timm/{name}")
    assert (model.name, model.preprocessing.crop_ratio) == ("ViT_Ti", 0.9)
    found, wanted = (array(each.get_layer(layer).weights[0]) for each in (model, expected))
    np.testing.assert_array_equal(found, wanted)


@backend_free
def test_a_repository_of_others(hub, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"architecture": "resnet18"}')
    hub("timm/resnet18", tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"hf://timm/resnet18: .*create_model"):
        kv.load("hf://timm/resnet18")
    with pytest.raises(OSError, match="absent"):
        kv.load("hf://timm/absent")
    with pytest.raises(ValueError, match="hf://owner/repo"):
        kv.load("hf://timm")


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
def test_a_directory_as_weights(directories, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(directories["CaiT"].parent)
    model = FAMILIES["CaiT"](weights="CaiT")
    close(outputs(model), directories.outputs["CaiT"], 1e-6)
    assert (model.class_names, model.preprocessing) == (NAMES, PREPROCESSING)
    assert not caplog.records

    # In Keras's format.
    named = {"conv_start": False, "name": "attn"}
    make = partial(FAMILIES["CaiT"], attention=lambda i: GatedPositionalAttention(2, **named))
    model = make()
    randomize(model, 0.3)
    model.class_names = NAMES
    kv.save(model, tmp_path / "model")
    assert (tmp_path / "model" / "model.weights.h5").exists()
    loaded = make(weights=tmp_path / "model")
    close(outputs(loaded), outputs(model), 1e-6)
    assert loaded.class_names == NAMES


@backend_free
def test_a_directory_as_weights_is_strict(directories, directory, caplog):
    load = partial(FAMILIES["CaiT"], weights=directory)
    fewer = load(classes=3)
    assert fewer.class_names is None and fewer.preprocessing == PREPROCESSING
    assert "except the head's" in caplog.text
    np.testing.assert_array_equal(array(fewer.weights[0]), array(kv.load(directory).weights[0]))
    with pytest.raises(ValueError, match="doesn't fit"):
        load(weights=directories["ViT"])
    with pytest.raises(ValueError, match=r"(?s)weights=.*not floating-point"):
        load(weights=directories["int8"])
    edit(directory, edit_model(class_names=["a"]))
    with pytest.raises(ValueError, match="names 1 classes"):
        load()
    edit(directory, edit_model(preprocessing={"std": [1.0]}))
    with pytest.raises(ValueError, match=r"spoilt.*config\.json.*`mean`"):
        load()
    edit(directory, edit_model(preprocessing=None))
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks .*model\.safetensors"):
        load()


@backend_free
def test_a_keras_file_with_a_class_that_nobody_imported(tmp_path):
    path = tmp_path / "mine.keras"
    model = with_own_layer()
    model.save(path)
    close(outputs(kv.load(path)), outputs(model), 1e-6)
    code = f"import keras_vitx as kv; kv.load({str(path)!r})"
    last = run_python(code, check=False).stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError") and str(path) in last
    assert "tests>Doubled, unknown here. Import the module of yours" in last


@pytest.mark.parametrize("how", ["compiled", "int8"])
def test_keras_files_that_keras_wrote(tmp_path, how):
    path = tmp_path / "mine.keras"
    model = adapted("int8") if how == "int8" else FAMILIES["RefinedViT"](drop_path=0.1)
    if how == "compiled":
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(IMAGES, np.zeros(2), verbose=0)
    model.save(path)
    loaded = kv.load(path)
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
            assert "head/kernel" in caplog.text and str(path) in caplog.text


SAVE_ON = """
import sys
import keras_vitx as kv
models = [kv.load(path) for path in sys.argv[2:]]
print("saving", flush=True)
while True:
    for model in models:
        kv.save(model, sys.argv[1], overwrite=True)
"""


@backend_free
def test_what_is_loaded_during_saves_is_of_one_version(tmp_path):
    for name, value in (("one", 1.0), ("two", 2.0)):
        model = FAMILIES["CaiT"]()
        model.class_names = [f"{name} {index}" for index in range(5)]
        for variable in model.weights:
            variable.assign(np.full(variable.shape, value))
        kv.save(model, tmp_path / name)
    shutil.copytree(tmp_path / "one", tmp_path / "model")
    paths = [str(tmp_path / name) for name in ("model", "one", "two")]
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVE_ON, *paths], stdout=subprocess.PIPE, text=True
    )
    try:
        assert saver.stdout.readline() == "saving\n"
        seen = set()
        # Thirty loads, and more where the saver gets less of the processor than the loader.
        for turn in range(600):
            if turn >= 30 and len(seen) >= 2:
                break
            if turn % 2:
                model = kv.load(tmp_path / "model")
            else:
                model = FAMILIES["CaiT"](weights=tmp_path / "model")
            values = {float(value) for v in model.weights for value in np.unique(array(v.value))}
            seen.add((model.class_names[0], *values))
        assert saver.poll() is None
    finally:
        saver.kill()
        saver.wait()
    assert seen == {("one 0", 1.0), ("two 0", 2.0)}


IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import keras
import keras_vitx as kv
models = [
    kv.ViT(8, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5) for _ in range(4)
]
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
