"""Damaged and malicious files: each is one clear error or a sound result.

None runs anything, writes anything, hangs, or takes more memory than its size explains.
"""

import collections
import ctypes
import functools
import io
import json
import os
import pickle
import re
import signal
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from harness import FAMILIES, FORMATS, array, save
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import edit, make_tiny

import keras_vitx as kv
from keras_vitx.training.resume import read_last_state, write_state
from keras_vitx.training.run import read_run
from keras_vitx.weights import load_weights, to_checkpoint

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux tells it"
    ),
]
EXAMPLES = 100
# Seconds for a file, a hundred times what any takes.
PATIENCE = 20
# Memory that a load may take besides twice the size of the file: Python's own (it asks for a MiB at
# a time), error messages, and buffers for unzipping.
SLACK = 8 << 20
# Sizes that a file claims: 128 MiB or more, which would be noticed and do no harm.
GIANT = 1 << 28
LARGE = (1 << 27) + 0x12345  # A size that occurs nowhere else in the file.
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


def memory(name):
    """Bytes of memory of this process: VmRSS now, VmHWM the peak since it was reset."""
    (line,) = re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(line) * 1024


def attempt(load, *arguments):
    """Call a function; return the error and the memory that it took."""
    error = None
    signal.alarm(PATIENCE)
    # Freed memory that is kept for later would hide new allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held = memory("VmRSS")
    try:
        load(*arguments)
    except BaseException as caught:
        error = caught
    signal.alarm(0)
    return error, memory("VmHWM") - held


# Damaged bytes.


def write_weights(model, path):
    if path.name.endswith(".old.pth"):
        torch = pytest.importorskip("torch")
        state = {name: torch.tensor(np.array(a)) for name, a in to_checkpoint(model).items()}
        torch.save({"model": state, "epoch": 3}, path, _use_new_zipfile_serialization=False)
    elif path.suffix == ".json":
        model.save_weights(path, max_shard_size=1e-5)
    else:
        save(model, path)
    return path


def read_weights():
    """Return a model, and a function that loads weights into another, which it then restores."""
    size = {"dim": 8, "depth": 1, "class_depth": 1, "num_heads": 2, "input_shape": (16, 16, 3)}
    source, model = make_tiny(**size), make_tiny(**size)
    right, before = ([array(v.value).copy() for v in one.weights] for one in (source, model))

    def holds(wanted):
        found = (array(variable.value) for variable in model.weights)
        return all(one.tobytes() == other.tobytes() for one, other in zip(found, wanted, strict=1))

    def read(path):
        try:
            load_weights(model, path)
        except (ValueError, OSError):
            assert holds(before), "the model is changed"
            raise
        # Without a checksum, a flipped bit in a number gives a valid number.
        assert holds(right) or path.name not in ("file.pth", "file.keras"), "other weights"
        for variable, values in zip(model.weights, before, strict=True):
            variable.assign(values)

    return source, read


def write_npz(path):
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), "uint8")
    np.savez(path, x_train=images, y_train=np.arange(12) % 2, class_names=["cat", "dog"])


def write_image(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), "uint8")).save(path)


def read_source(path):
    train = kv.data.load_dataset(str(path), validation_split=0).train
    for index in range(train.size):
        train.images[index]


def write_model(path):
    model = FAMILIES["Mixer"]()
    if path.name == WEIGHTS:
        model.get_layer("head").enable_lora(2)
    kv.save(model, path.parent, overwrite=True)


def write_recipe(path):
    path.write_text(json.dumps({"recipe": kv.training.Recipe("short").to_dict()}))


def write_checkpoint(path):
    state = {"values": [np.zeros(9, "float32")] * 2, "random": {"numpy": list(range(50))}}
    assert write_state(path.parent, 3, state) == path


IN_DIRECTORIES = (CONFIG, WEIGHTS, "model.safetensors")
OTHERS = {
    "file.npz": (write_npz, read_source),
    **{name: (write_model, lambda path: kv.load(path.parent)) for name in IN_DIRECTORIES},
    "archive.keras": (lambda path: FAMILIES["Mixer"]().save(path), kv.load),
    "recipe.json": (write_recipe, kv.training.Recipe.read),
    "run.json": (write_recipe, lambda path: read_run(path.parent)),
    "run/step-000000003.safetensors": (
        write_checkpoint,
        lambda path: read_last_state(path.parent),
    ),
    **{
        f"image.{suffix}": (write_image, kv.data.decode_image)
        for suffix in ("png", "jpg", "gif", "webp", "tif", "bmp", "ppm", "tga", "jp2")
    },
}
"""Functions that write and read a file of this name."""


@st.composite
def damaged(draw, content):
    """Bytes that are flipped, cut, left out, inserted or replaced, mostly near the ends."""
    length = draw(st.sampled_from((1, 2, 4, 8, 50, 1000)))
    last = max(len(content) - length, 0)
    # Headers and indexes are at the ends, and short.
    near = draw(st.integers(0, min(last, 3000)))
    start = draw(st.sampled_from((near, last - near)) | st.integers(0, last))
    start -= start % draw(st.sampled_from((1, 4, 8)))
    numbers = st.sampled_from((2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1))
    flipped = bytes([content[start] ^ 1 << draw(st.integers(0, 7))])
    new = draw(
        st.sampled_from((b"", bytes(length), flipped))
        | st.binary(min_size=length, max_size=length)
        | numbers.map(functools.partial(struct.pack, "<Q"))
    )
    end = draw(st.sampled_from((start + (len(new) or length), start, len(content))))
    return content[:start] + new + content[end:]


@st.composite
def resealed(draw, content):
    """An archive with one damaged member and correct checksums."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        # The members that are more than arrays of numbers.
        chosen = draw(st.sampled_from([n for n in names if n.endswith((".pkl", ".json", ".h5"))]))
        for name in names:
            data = old.read(name)
            new.writestr(name, draw(damaged(data)) if name == chosen else data)
    return result.getvalue()


@pytest.mark.parametrize("name", [*FORMATS, ".old.pth", ".weights.json", *OTHERS])
def test_damaged_bytes_are_one_clear_error_or_the_same_tensors(tmp_path, name):
    is_weights = name not in OTHERS
    path = tmp_path / "here" / (f"file{name}" if is_weights else name)
    path.parent.mkdir(parents=True)
    if is_weights:
        source, read = read_weights()
        write_weights(source, path)
    else:
        write, read = OTHERS[name]
        write(path)
    content, outcomes = path.read_bytes(), collections.Counter()
    read(path)
    archive = path.suffix in (".pth", ".keras") and ".old" not in name
    target = path.with_stem("sealed") if archive else path
    target.write_bytes(content)
    before = set(tmp_path.rglob("*"))

    def check(path, changed):
        path.write_bytes(changed)
        error, taken = attempt(read, path)
        allowed = 2 * len(changed) + SLACK
        if is_weights and taken > allowed:
            # The first error in a library loads its error tables.
            _, taken = attempt(read, path)
            assert taken <= allowed
        if error is not None:
            # An error about weights lists all that doesn't fit.
            assert type(error) in (ValueError, OSError) and len(str(error)) < 20_000
            assert str(tmp_path) in str(error)
        assert set(tmp_path.rglob("*")) == before
        outcomes[error is None] += 1

    halved = archive or name in IN_DIRECTORIES
    examples = settings(max_examples=EXAMPLES // 2 if halved else EXAMPLES)

    @examples
    @given(damaged(content))
    def check_damaged(changed):
        check(path, changed)

    @examples
    @given(resealed(content))
    def check_resealed(changed):
        check(target, changed)

    check_damaged()
    if archive:
        check_resealed()
    assert outcomes[False] > EXAMPLES / 10, "the damages are too tame"
    assert outcomes[True] or not is_weights, "the damages are too wild"


def places_in(content, place=()):
    """Yield the keys that lead to every value in JSON data."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from places_in(value, (*place, key))


VALUES = (None, True, 0, -1, 3, 10**12, 0.5, float("inf"), "x", "../x", "[" * 2000)
JSON = st.sampled_from((*VALUES, *([value] for value in VALUES), [], {}, {"a": 1}, "left out"))


def test_any_other_value_in_a_config_is_one_error_or_a_model(directory):
    content = json.loads((directory / CONFIG).read_text())

    @settings(max_examples=150)
    @given(st.sampled_from(sorted(places_in(content), key=str)), JSON)
    def check(place, value):
        changed = json.loads(json.dumps(content))
        *parents, key = place
        holder = functools.reduce(lambda inside, key: inside[key], parents, changed)
        holder[key] = value
        if value == "left out":
            del holder[key]
        (directory / CONFIG).write_text(json.dumps(changed))
        error, taken = attempt(kv.load, directory)
        assert taken < 100 << 20
        if error is not None:
            assert type(error) in (ValueError, FileNotFoundError), repr(error)
            assert "spoilt" in str(error) and len(str(error)) < 1000

    check()


@pytest.mark.parametrize("suffix", [*FORMATS, ".old.pth"])
def test_sound_weights_are_read_one_array_at_a_time(tmp_path, suffix):
    model = make_tiny(dim=512, depth=2, class_depth=1)
    path = write_weights(model, tmp_path / f"file{suffix}")
    error, taken = attempt(load_weights, model, path)
    assert error is None
    # The file's pages and a few copies of an array at a time; under JAX, new variables beside the
    # old ones, too.
    assert path.stat().st_size > 4 * SLACK and taken <= 3 * path.stat().st_size


# Malicious files.


class Harm:
    """Calls something when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def write_torch(path, how):
    """Write a PyTorch file, some of which make a directory when they are unpickled."""
    torch = pytest.importorskip("torch")
    kind, _, what = how.partition(" ")
    made, state, laughs = str(path.parent / "harmed"), {"a": torch.zeros(1, 4608)}, {}
    for _ in range(99):
        laughs = {"a": laughs, "b": laughs}
    itself = dict(state)
    itself["model"] = itself
    nested = Harm(eval, f"__import__('os').mkdir({made!r})")
    content = {
        "mkdir": Harm(os.mkdir, made),
        "system": Harm(os.system, f"mkdir {made}"),
        "eval in an allowed type": Harm(collections.OrderedDict, [("a", nested)]),
        "bytearray": Harm(bytearray, GIANT),
        "expanded": {"a": torch.zeros(1, 24).expand(1 << 24, 24)},
        "itself": itself,
        "laughs": laughs,
        "list": {"weight": [1.0]},
    }.get(what, state)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content))
        return
    torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    if what == "compressed":
        packed(path, members_of(path))
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
    secret = path.with_name("secret.h5")
    with h5py.File(secret, "w") as file:
        file["0"] = np.zeros((24, 10), "float32")
    shape = (24, 10), "float32"
    virtual = h5py.VirtualLayout(*shape)
    virtual[:] = h5py.VirtualSource(secret, "0", (24, 10))
    with h5py.File(path, "w") as file:
        group = file.create_group("layers/dense/vars")
        group.attrs["name"] = "head"
        match how:
            case "soft link":
                group["0"] = h5py.SoftLink("/layers")
            case "external link":
                group["0"] = h5py.ExternalLink("secret.h5", "0")
            case "circle":
                file["layers/dense/again"] = file["layers"]
            case "external data":
                group.create_dataset("0", *shape, external=[(str(secret), 0, 960)])
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


def members_of(path):
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as file:
        return {name: file.read(name) for name in file.namelist()}


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


HARMS = ("mkdir", "system", "eval in an allowed type")
ATTACKS = {
    (".pth", write_torch): {
        **{f"{kind} {h}": "refused.*code" for kind in ("zip", "old", "pickle") for h in HARMS},
        **{"pickle list": "refused", "zip bytearray": "bytearray", "zip expanded": "claims"},
        **dict.fromkeys(("zip itself", "zip laughs"), "not a plain checkpoint"),
        **{"zip compressed": "is compressed", "old claims": ""},
    },
    (".safetensors", write_safetensors): {"header": "", "shape": ""},
    (".weights.h5", write_h5): {
        **{"soft link": "holds a link", "external link": "holds a link", "circle": ""},
        **{"external data": "refused", "virtual data": "refused", "no data": "refused"},
        **{"chunks": "refused", "compressed": "refused"},
    },
    (".keras", write_keras): dict.fromkeys(BOMBS, ""),
}


@pytest.mark.parametrize(
    ("suffix", "write", "how", "words"),
    [(*kind, how, words) for kind, rows in ATTACKS.items() for how, words in rows.items()],
)
def test_a_malicious_file_is_one_error(unused, tmp_path, suffix, write, how, words):
    path = tmp_path / f"file{suffix}"
    write(path, how)
    assert path.stat().st_size < 1 << 20
    before = set(tmp_path.iterdir())
    for load in [functools.partial(load_weights, unused), kv.load][: 1 + (suffix == ".keras")]:
        error, taken = attempt(load, path)
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


@pytest.mark.parametrize(("intruder", "name"), HOSTILE)
@pytest.mark.parametrize("where", ["layer", "argument", "model"])
def test_a_config_with_other_objects_is_refused(directory, intruder, name, where):
    def intrude(content):
        layers = content["model"]["config"]["layers"]
        if where == "layer":
            layers.append(intruder)
        elif where == "argument":
            layers[1]["config"]["name"] = [{"deep": intruder}]
        else:
            content["model"] = intruder

    edit(directory, intrude)
    words = rf"config\.json can't be used.*{re.escape(name)}.*neither of keras_vitx nor"
    with pytest.raises(ValueError, match=words):
        kv.load(directory)


def added(name, config, **more):
    config = {"name": "added", **config}
    return entry("keras.layers", name, config, registered_name=None, **more)


ORTHOGONAL = entry("keras.initializers", "Orthogonal", registered_name=None)
# What takes 1 GB or more if it is believed, as a replacement in the config's text or a layer.
CLAIMS = [
    *[('"dim": 8', '"dim": 6144'), ('"dim": 8', '"dim": 1000000000')],
    *[('"units": 5', '"units": 1000000000'), ('"count": 1', '"count": 1000000000')],
    *[('"mlp_ratio": 2.0', '"mlp_ratio": 1e9'), ('"patch_size": 8', '"patch_size": 1')],
    ('"input_shape": [16, 16, 3]', '"input_shape": [20000, 20000, 3]'),
    ('"grid": [2, 2]', '"grid": [20000, 20000]'),
    added("Dense", {"units": 10**8}),
    added("Dense", {"units": 10**5, "kernel_initializer": ORTHOGONAL}),
    added("Dense", {"units": 10**5}, build_config={"input_shape": [None, 10**5]}),
    added("Embedding", {"input_dim": 10**7, "output_dim": 100}),
]


@pytest.mark.parametrize("kind", ["directory", "archive"])
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_what_a_config_claims_is_not_made(saved, directory, tmp_path, claim, kind):
    def change(content):
        config = content["model"]
        if isinstance(claim, dict):
            config["config"]["layers"].append(claim)
        else:
            content["model"] = json.loads(json.dumps(config).replace(*claim))

    edit(directory, change)
    path = directory
    if kind == "archive":
        path = tmp_path / "model.keras"
        kv.load(saved).save(path)
        config = json.dumps(json.loads((directory / CONFIG).read_text())["model"])
        packed(path, {**members_of(path), CONFIG: config}, zipfile.ZIP_STORED)
    image = np.zeros((40, 40, 3), "uint8")
    error, taken = attempt(lambda: kv.preprocess_input(image, kv.load(path)))
    assert type(error) is ValueError and (path.name in str(error) or "20000" in str(claim))
    assert taken < 150 << 20, taken >> 20


def test_a_long_config_is_refused(directory):
    (directory / CONFIG).write_text('{"model": [' + "[]," * 700_000 + "[]]}")
    error, taken = attempt(kv.load, directory)
    assert "must have at most 2,097,152 bytes" in str(error) and taken < SLACK


def test_overlapping_heaps_of_text_do_not_hang(unused, tmp_path):
    path, count = tmp_path / "file.weights.h5", 1 << 15
    # Each entry holds the head of a heap whose entries are all that follow.
    units = [
        struct.pack("<H6xQ8sQH14x", 1, 32, b"GCOL\x01", 48 * (count - i), 1) for i in range(count)
    ]
    path.write_bytes(b"".join(units) + struct.pack("<H14x", 1))
    error, _ = attempt(load_weights, unused, path)
    assert type(error) is ValueError and "heap" in str(error)


@pytest.mark.parametrize("name", [CONFIG, "model.safetensors", "model.keras"])
def test_a_pipe_is_not_waited_for(directory, name):
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    error, _ = attempt(kv.load, directory / name if name.endswith("keras") else directory)
    assert type(error) in (ValueError, FileNotFoundError) and str(directory) in str(error)
