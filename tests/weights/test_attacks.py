"""Malicious files: each is one clear error, runs nothing, and takes little memory."""

import collections
import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from functools import partial

import h5py
import keras
import numpy as np
import pytest
from harness import FAMILIES
from test_mutations import LIMITS_MEMORY, SLACK, attempt

import keras_vitx as kv
from keras_vitx.weights import load_weights

pytestmark = [pytest.mark.backend_free, LIMITS_MEMORY]

# Sizes that a file claims: 128 MiB or more, which would be noticed and do no harm.
GIANT = 1 << 28
LARGE = (1 << 27) + 0x12345  # A size that occurs nowhere else in the file.
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


class Harm:
    """Calls something when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def write_torch(path, how):
    """Write a PyTorch file, some of which make a directory when they are unpickled."""
    import torch

    kind, _, what = how.partition(" ")
    made, state = str(path.parent / "harmed"), {"a": torch.zeros(1, 4608)}
    nested = Harm(eval, f"__import__('os').mkdir({made!r})")
    content = {
        "mkdir": Harm(os.mkdir, made),
        "system": Harm(os.system, f"mkdir {made}"),
        "eval in an allowed type": Harm(collections.OrderedDict, [("a", nested)]),
        "bytearray": Harm(bytearray, GIANT),
        "expanded": {"a": torch.zeros(1, 24).expand(1 << 24, 24)},
    }.get(what, state)
    if what == "itself":
        state["model"] = state
    elif what == "laughs":
        content = {}
        for _ in range(99):
            content = {"a": content, "b": content}
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"weight": [1.0]} if content is state else content))
        return
    torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    if what == "compressed":
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as plain:
            packed(path, {name: plain.read(name) for name in plain.namelist()})
    elif what == "claims":
        # The number of elements, in the persistent id.
        old, new = (pickle.dumps(number, 2)[2:-1] for number in (4608, GIANT))
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))


def write_safetensors(path, how):
    """Write a safetensors file with a giant header or a giant array."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [GIANT], "data_offsets": [0, 4 * GIANT]}})
    length = GIANT if how == "header" else len(text)
    path.write_bytes(length.to_bytes(8, "little") + text.encode() + bytes(16))


def write_h5(path, how):
    """Write a Keras weights file that leads elsewhere, or claims an array of any size."""
    with h5py.File(path.parent / "secret.h5", "w") as file:
        file["0"] = np.zeros((24, 10), "float32")
    (path.parent / "secret.bin").write_bytes(bytes(960))
    virtual = h5py.VirtualLayout((24, 10), "float32")
    virtual[:] = h5py.VirtualSource(path.parent / "secret.h5", "0", (24, 10))
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.attrs["name"] = "head"
        shape = (24, 10), "float32"
        match how:
            case "soft link":
                group["0"] = h5py.SoftLink("/layers")
            case "external link":
                group["0"] = h5py.ExternalLink("secret.h5", "0")
            case "circle":
                file["layers/dense/again"] = file["layers"]
            case "external data":
                data = [(str(path.parent / "secret.bin"), 0, 960)]
                group.create_dataset("0", *shape, external=data)
            case "virtual data":
                group.create_virtual_dataset("0", virtual)
            case "no data":
                group.create_dataset("0", *shape, fillvalue=1.0)
            case "chunks":
                group.create_dataset("0", (1 << 24, 24), "float32", chunks=True)
            case "compressed":
                group.create_dataset("0", data=np.ones((24, 10), "float32"), compression="gzip")


def packed(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)


def h5_of(location, **storage):
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_dataset(location, **storage)
    return content.getvalue()


# An array that is not allocated, and is 128 MiB of zeros.
CHUNKED = {"shape": (LARGE // 4,), "dtype": "float32", "chunks": (1 << 20,), "compression": "gzip"}
BOMBS = {
    "config": {CONFIG: b"[" + b" " * LARGE},
    "weights": {WEIGHTS: bytes(LARGE)},
    "asset": {"assets/words.txt": bytes(LARGE)},
    "understated weights": {WEIGHTS: bytes(LARGE)},
    "array": {WEIGHTS: h5_of("layers/a/vars/0", **CHUNKED)},
    "array of the optimizer": {WEIGHTS: h5_of("optimizer/vars/0", **CHUNKED)},
    "unusual compression": {"x": bytes(1 << 20)},
}


def write_keras(path, how):
    """Write a small `.keras` file with a member or an array that expands to 128 MiB."""
    compression = zipfile.ZIP_LZMA if how.startswith("unusual") else zipfile.ZIP_DEFLATED
    sound = {
        CONFIG: b'{"class_name": "Functional", "config": {"layers": []}}',
        WEIGHTS: h5_of("layers/dense/vars/0", data=np.ones((2, 2), "float32")),
    }
    packed(path, {**sound, **BOMBS[how]}, compression)
    if how.startswith("understated"):
        # 100 bytes are declared, with the checksum of these.
        content = path.read_bytes()
        with zipfile.ZipFile(path) as file:
            crc = file.getinfo(WEIGHTS).CRC
        for old, new in ((LARGE, 100), (crc, zlib.crc32(bytes(100)))):
            assert content.count(old.to_bytes(4, "little")) == 2
            content = content.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little"))
        path.write_bytes(content)


ATTACKS = [
    *(
        (".pth", f"{kind} {harm}", "refused.*code")
        for kind in ("zip", "old", "pickle")
        for harm in ("mkdir", "system", "eval in an allowed type")
    ),
    (".pth", "pickle", "refused"),
    (".pth", "zip bytearray", "bytearray"),
    (".pth", "zip itself", "not a plain checkpoint"),
    (".pth", "zip laughs", "not a plain checkpoint"),
    (".pth", "zip expanded", "claims"),
    (".pth", "zip compressed", "is compressed"),
    (".pth", "old claims", ""),
    (".safetensors", "header", ""),
    (".safetensors", "shape", ""),
    *((".weights.h5", f"{how} link", "holds a link") for how in ("soft", "external")),
    (".weights.h5", "circle", ""),
    *((".weights.h5", f"{how} data", "refused") for how in ("external", "virtual", "no")),
    *((".weights.h5", how, "refused") for how in ("chunks", "compressed")),
    *((".keras", how, "") for how in BOMBS),
]
WRITERS = {
    ".pth": write_torch,
    ".safetensors": write_safetensors,
    ".weights.h5": write_h5,
    ".keras": write_keras,
}


@pytest.mark.parametrize(("suffix", "how", "words"), ATTACKS)
def test_a_malicious_file_is_one_error(unused, tmp_path, suffix, how, words):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"file{suffix}"
    WRITERS[suffix](path, how)
    assert path.stat().st_size < 1 << 20
    before = set(tmp_path.iterdir())
    loads = [partial(load_weights, unused), kv.load][: 1 + (suffix == ".keras")]
    for load in loads:
        error, taken = attempt(partial(load, path))
        assert type(error) is ValueError and path.name in str(error)
        assert re.search(words, str(error)) and "\n" not in str(error)
        assert taken < 2 * path.stat().st_size + SLACK
    assert set(tmp_path.iterdir()) == before


@keras.saving.register_keras_serializable(package="tests")
class Registered(keras.layers.Layer):
    """A layer that the user has registered, but not named in `custom_objects`."""


def entry(module, name, config=None, **more):
    return {"module": module, "class_name": name, "config": config or {}, **more}


HOSTILE = [
    (entry("keras.layers", "Lambda", {"function": "x"}, registered_name=None), "Lambda"),
    (entry("keras.layers", "TFSMLayer", {"filepath": "x"}, registered_name=None), "TFSMLayer"),
    (entry("keras.layers", "TorchModuleWrapper", {}), "TorchModuleWrapper"),
    (entry("keras.layers", "StringLookup", {"vocabulary": "/etc/passwd"}), "StringLookup"),
    (entry("keras.layers", "__class__"), "__class__"),
    (entry("keras.initializers", "__class__"), "__class__"),
    (entry("keras", "Sequential", {"layers": []}), "Sequential"),
    (entry("keras.models", "load_model", {}), "load_model"),
    (entry("keras.saving", "load_model", {}), "load_model"),
    (entry("keras.saving", "function", "load_model"), "load_model"),
    (entry("builtins", "function", "eval"), "eval"),
    (entry("os", "system", {"command": "true"}), "system"),
    (entry(None, "__lambda__", {"value": "x"}), "__lambda__"),
    *(
        (entry(None, "__numpy__", {"value": [0], "dtype": dtype}), "__numpy__")
        for dtype in (f"S{GIANT}", f"({GIANT},)u1", "O", ["f4"])
    ),
    (entry("os", "__typespec__", [], spec_name="system", registered_name=None), "__typespec__"),
    (entry("keras_vitx.layers", "Attention", registered_name="os>system"), "os>system"),
    (entry(None, "Registered", registered_name="tests>Registered"), "tests>Registered"),
    (entry("tests", "function", "tests>Registered"), "tests>Registered"),
    ("tests>Registered", "tests>Registered"),
    (entry(["os"], ["system"]), "system"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    kv.save(FAMILIES["CaiT"](), path)
    return path


@pytest.mark.parametrize(("intruder", "name"), HOSTILE)
@pytest.mark.parametrize("where", ["layer", "argument", "model"])
def test_a_config_with_other_objects_is_refused(directory, tmp_path, intruder, name, where):
    directory = shutil.copytree(directory, tmp_path / "model")
    content = json.loads((directory / CONFIG).read_text())
    layers = content["model"]["config"]["layers"]
    if where == "layer":
        layers.append(intruder)
    elif where == "argument":
        layers[1]["config"]["name"] = [{"deep": intruder}]
    else:
        content["model"] = intruder
    (directory / CONFIG).write_text(json.dumps(content))
    words = rf"config\.json can't be used.*{re.escape(name)}.*neither of keras_vitx nor"
    with pytest.raises(ValueError, match=words):
        kv.load(directory)


def layer(name, config, module="keras.layers", **more):
    return {"module": module, "class_name": name, "config": {"name": "added", **config}, **more}


ORTHOGONAL = entry("keras.initializers", "Orthogonal", registered_name=None)
# What takes 1 GB or more if it is believed, as a replacement in the config's text or a layer.
CLAIMS = [
    *[
        ('"dim": 8', '"dim": 6144'),
        ('"dim": 8', '"dim": 1000000000'),
        ('"units": 5', '"units": 1000000000'),
    ],
    *[('"mlp_ratio": 2.0', '"mlp_ratio": 1e9'), ('"count": 1', '"count": 1000000000')],
    ('"input_shape": [16, 16, 3]', '"input_shape": [20000, 20000, 3]'),
    ('"grid": [2, 2]', '"grid": [20000, 20000]'),
    ('"patch_size": 8', '"patch_size": 1'),
    layer("Dense", {"units": 10**8}),
    layer("Dense", {"units": 10**5, "kernel_initializer": ORTHOGONAL}),
    layer("Dense", {"units": 10**5}, build_config={"input_shape": [None, 10**5]}),
    layer("Embedding", {"input_dim": 10**7, "output_dim": 100}),
]


@pytest.mark.parametrize("kind", ["directory", "archive"])
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_what_a_config_claims_is_not_made(directory, tmp_path, claim, kind):
    path = shutil.copytree(directory, tmp_path / "model")
    values = json.loads((path / CONFIG).read_text())
    config = values["model"]
    if isinstance(claim, dict):
        config["config"]["layers"].append({"registered_name": None, **claim})
    else:
        text = json.dumps(config)
        config = json.loads(text.replace(*claim))
    (path / CONFIG).write_text(json.dumps({**values, "model": config}))
    if kind == "archive":
        whole, path = kv.load(directory), tmp_path / "model.keras"
        whole.save(path)
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        packed(path, {**members, CONFIG: json.dumps(config)}, zipfile.ZIP_STORED)
    image = np.zeros((40, 40, 3), "uint8")
    error, taken = attempt(lambda: kv.preprocess_input(image, kv.load(path)))
    assert type(error) is ValueError and (path.name in str(error) or "20000" in str(claim))
    assert taken < 150 << 20, taken >> 20


def test_a_long_config_is_refused(directory, tmp_path):
    path = shutil.copytree(directory, tmp_path / "model")
    (path / CONFIG).write_text('{"model": [' + "[]," * 700_000 + "[]]}")
    error, taken = attempt(partial(kv.load, path))
    assert "must have at most 2,097,152 bytes" in str(error) and taken < SLACK


def test_overlapping_heaps_of_text_do_not_hang(unused, tmp_path):
    path, count = tmp_path / "file.weights.h5", 1 << 15
    # Each entry holds the head of a heap whose entries are all that follow.
    units = [
        struct.pack("<H6xQ8sQH14x", 1, 32, b"GCOL\x01", 48 * (count - i), 1) for i in range(count)
    ]
    path.write_bytes(b"".join(units) + struct.pack("<H14x", 1))
    error, _ = attempt(partial(load_weights, unused, path))
    assert type(error) is ValueError and "heap" in str(error)


@pytest.mark.parametrize("name", [CONFIG, "model.safetensors", "model.keras"])
def test_a_pipe_is_not_waited_for(directory, tmp_path, name):
    path = shutil.copytree(directory, tmp_path / "model")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    error, _ = attempt(partial(kv.load, path / name if name.endswith("keras") else path))
    assert type(error) in (ValueError, FileNotFoundError) and str(path) in str(error)
