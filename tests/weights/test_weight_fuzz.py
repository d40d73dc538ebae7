"""Thousands of damaged or malicious weights files.

Each file format is mutated in a process of its own, which monitors itself: what it
opens and starts, how much memory it takes, and how long.
"""

import codecs
import ctypes
import io
import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

MUTATIONS = 150
KINDS = (".safetensors", ".pth", ".old.pth", ".weights.h5", ".keras")

# Time limit per file in seconds, a hundred times what any takes.
PATIENCE = 20

# Memory allowed for a load besides twice the file size: Python's allocations (it requests
# a MiB at a time), error messages, and buffers of a MiB for unzipping.
SLACK = 8 << 20


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Damage a file's content in one of eight ways."""
    content = bytearray(content)

    def place(length=1):
        # Headers and indexes are at the ends, and short.
        last = max(len(content) - length, 0)
        near = min(last, 3000)
        return draw.choice(
            (draw.randint(0, last), draw.randint(0, near), draw.randint(last - near, last))
        )

    way, length = draw.randrange(8), draw.choice((1, 2, 4, 8, 50, 1000))
    start = place(length)
    if way == 0:
        for _ in range(draw.choice((1, 1, 2, 8))):
            content[place()] ^= 1 << draw.randrange(8)
    elif way == 1:
        del content[place() :]
    elif way == 2:
        del content[start : start + length]
    elif way == 3:
        content[start:start] = draw.randbytes(length)
    elif way == 4:
        content[start : start + length] = draw.randbytes(length)
    elif way == 5:
        other = place(length)
        one, two = content[start : start + length], content[other : other + length]
        content[start : start + length], content[other : other + length] = two, one
    elif way == 6:
        content[start : start + length] = bytes(length)
    else:
        number = draw.choice((2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1))
        start -= start % draw.choice((1, 4, 8))
        content[start : start + 8] = struct.pack("<Q", number)
    return bytes(content)


def resealed(content: bytes, draw: random.Random) -> bytes:
    """Damage one member of an archive and write correct checksums."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        # The members that are more than arrays of numbers.
        chosen = draw.choice([n for n in names if n.endswith((".pkl", ".json", ".h5"))])
        for name in names:
            data = old.read(name)
            new.writestr(name, mutated(data, draw) if name == chosen else data)
    return result.getvalue()


HARMFUL = (
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod"),
    *("subprocess.Popen", "socket", "exec", "compile", "pickle.find_class", "ctypes.dlopen"),
    *("shutil", "tempfile", "webbrowser", "urllib", "http", "ftplib", "import"),
)


class Watch:
    """Records actions of this process that reading a file should never cause."""

    def __init__(self):
        self.seen, self.on = [], False
        sys.addaudithook(self.note)

    def note(self, event, arguments):
        if not self.on:
            return
        if event == "open":
            _, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode or "") & set("wax+")
            if writes:
                self.seen.append(f"{event}{arguments}"[:200])
        elif event.startswith(HARMFUL):
            self.seen.append(f"{event}{arguments}"[:200])


def memory(name: str) -> int:
    """Bytes of memory of this process: VmRSS now, VmHWM the peak since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def forget_peak() -> None:
    # Freed memory that is kept for later would hide new allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def valid_files(model, folder: Path) -> dict[str, bytes]:
    """One valid file per format, by suffix."""
    import torch

    from keras_vitx.weights import save_safetensors, to_checkpoint

    save_safetensors(model, folder / "valid.safetensors")
    state = {name: torch.tensor(np.array(a)) for name, a in to_checkpoint(model).items()}
    torch.save({"model": state, "epoch": 3}, folder / "valid.pth")
    torch.save(state, folder / "valid.old.pth", _use_new_zipfile_serialization=False)
    model.save_weights(folder / "valid.weights.h5")
    keras.saving.save_model(model, folder / "valid.keras")
    return {kind: (folder / f"valid{kind}").read_bytes() for kind in KINDS}


def attempt(model, path: Path, watch: Watch | None = None) -> tuple[BaseException | None, int]:
    """Load a file; return the error and the memory taken by the load."""
    from keras_vitx.weights import load_weights

    error = None
    signal.alarm(PATIENCE)
    forget_peak()
    held = memory("VmRSS")
    if watch:
        watch.on = True
    try:
        load_weights(model, path)
    except BaseException as caught:
        error = caught
    finally:
        if watch:
            watch.on = False
    signal.alarm(0)
    return error, memory("VmHWM") - held


def fuzz(kind: str, content: bytes, source, model, folder: Path, watch: Watch, count: int) -> dict:
    """Load mutations of a file of the model `source` into `model`; return the outcomes."""
    variables = model.weights
    right, before = weights_of(source.weights), weights_of(variables)
    path = folder / f"mutated{kind}"
    result = {"loaded": 0, "as it was": 0, "refused": 0, "wrong": [], "most memory": 0}

    def start_anew():
        for variable in variables:
            variable.assign(before[variable.path])

    # The valid file triggers lazy imports.
    path.write_bytes(content)
    error, _ = attempt(model, path)
    if error is not None or not same(weights_of(variables), right) or same(right, before):
        raise AssertionError(f"the sound {kind} file isn't loaded: {error!r}")
    start_anew()
    for number in range(count):
        # Whoever kills this process can tell which file it was.
        print(f"{kind} {number}", file=sys.stderr, flush=True)
        draw = random.Random(f"{kind}{number}")
        seal = zipfile.is_zipfile(io.BytesIO(content)) and number % 2 == 0
        path.write_bytes((resealed if seal else mutated)(content, draw))
        allowed = 2 * path.stat().st_size + SLACK
        error, taken = attempt(model, path, watch)
        found = weights_of(variables)
        wrong = judge(error, path, watch)
        if error is not None:
            result["refused"] += 1
            if not same(found, before):
                wrong.append("the model is changed")
        else:
            result["loaded"] += 1
            result["as it was"] += same(found, right)
            # Without a checksum, a flipped bit in a number gives a valid number.
            if not seal and kind in (".pth", ".keras") and not same(found, right):
                wrong.append("other weights were loaded")
            start_anew()
        if taken > allowed:
            # The first error in a library loads its error tables.
            error, taken = attempt(model, path)
            if error is None:
                start_anew()
        if taken > allowed:
            wrong.append(f"takes {taken} bytes, {allowed} allowed")
        result["most memory"] = max(result["most memory"], taken)
        result["wrong"] += [f"{number}: {what}" for what in wrong]
    return result


def judge(error: BaseException | None, path: Path, watch: Watch) -> list[str]:
    wrong = [f"does {what}" for what in watch.seen]
    watch.seen.clear()
    if error is not None:
        if type(error) not in (ValueError, OSError, ImportError):
            wrong.append(f"raises {error!r:.300}")
        elif path.name not in str(error) or len(str(error)) > 20_000:
            wrong.append(f"says {error!s:.300}")
    return wrong


def weights_of(variables) -> dict:
    return {v.path: np.array(keras.ops.convert_to_numpy(v.value)) for v in variables}


def same(one: dict, other: dict) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def main(folder: Path, count: int) -> None:
    """Print one line per file format: its name, and the outcomes of its mutations."""
    from conftest import make_tiny

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # With which the names in archives are decoded.
    codecs.lookup("cp437")
    large = make_tiny(dim=512, depth=2, class_depth=1)
    plain = {}
    for kind, content in valid_files(large, folder).items():
        (folder / f"large{kind}").write_bytes(content)
        error, taken = attempt(large, folder / f"large{kind}")
        plain[kind] = {"error": error and repr(error), "memory": taken, "size": len(content)}
    small = {"dim": 8, "depth": 1, "class_depth": 1, "num_heads": 2, "input_shape": (16, 16, 3)}
    source, model = make_tiny(**small), make_tiny(**small)
    watch = Watch()
    for kind, content in valid_files(source, folder).items():
        result = fuzz(kind, content, source, model, folder, watch, count)
        print(json.dumps([kind, {**result, "plain": plain[kind]}]), flush=True)


pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="measures memory as Linux tells it"
    ),
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The outcomes of the mutations of each file format, all from one process."""
    pytest.importorskip("torch")
    here = Path(__file__).resolve()
    finished = subprocess.run(
        [sys.executable, here, tmp_path_factory.mktemp("fuzz"), str(MUTATIONS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(here.parents[2]), *sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    last = finished.stderr[-2000:]
    return dict(json.loads(line) for line in finished.stdout.splitlines()), last


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files(outcome, kind):
    results, last = outcome
    assert kind in results, f"the process ended at {last}"
    result = results[kind]
    assert result["wrong"] == []
    assert result["loaded"] + result["refused"] == MUTATIONS
    assert result["refused"] > MUTATIONS / 4, "the mutations are too tame"
    assert result["loaded"], "the mutations are too wild"


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_sound_files(outcome, kind):
    plain = outcome[0][kind]["plain"]
    assert plain["error"] is None
    assert plain["size"] > 4 * SLACK
    # The file's pages and a few copies of an array at a time; under JAX, new variables
    # beside the old ones, too.
    assert plain["memory"] <= 3 * plain["size"]


# Sizes that a file claims: a GiB or more, which would be noticed and do no harm.
GIANT = 1 << 28


class Bytes:
    """Unpickles to a long bytearray."""

    def __reduce__(self):
        return bytearray, (GIANT,)


def of_giant_claims(name, torch, state, folder):
    """Write a small file that claims to need a GiB or more; return its path."""
    path = folder / f"file{name.partition(' ')[0]}"
    if name == ".safetensors header":
        path.write_bytes((GIANT).to_bytes(8, "little") + b"{}")
    elif name == ".safetensors shape":
        text = json.dumps({"a": {"dtype": "F32", "shape": [GIANT], "data_offsets": [0, 4 * GIANT]}})
        path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(16))
    elif name == ".pth bytearray":
        torch.save({"model": state, "extra": Bytes()}, path)
    elif name == ".pth expanded":
        torch.save({**state, "pos_embed": torch.zeros(1, 1, 24).expand(1, 1 << 24, 24)}, path)
    elif name == ".pth old storage":
        torch.save(state, path, _use_new_zipfile_serialization=False)
        # The number of elements of the patch embedding, in the persistent id.
        old, new = (pickle.dumps(n, 2)[2:-1] for n in (24 * 3 * 8 * 8, GIANT))
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))
    elif name == ".pth zip":
        torch.save(state, folder / "plain.pth")
        with zipfile.ZipFile(folder / "plain.pth") as plain, zipfile.ZipFile(path, "w") as packed:
            for member in plain.namelist():
                packed.writestr(member, plain.read(member), zipfile.ZIP_DEFLATED)
    else:
        with h5py.File(path, "w") as file:
            group = file.create_group("layers/dense/vars")
            group.attrs["name"] = "head"
            space = {"compression": "gzip"} if "compressed" in name else {}
            shape = (1 << 24, 24) if "chunks" in name else (24, 10)
            if "nothing" in name:
                space = {"fillvalue": 1.0}
            group.create_dataset("0", shape, "float32", chunks="chunks" in name or None, **space)
            if "compressed" in name:
                group["0"][:] = 1.0
    assert path.stat().st_size < 1 << 20
    return path


@pytest.mark.parametrize(
    "name",
    [
        ".safetensors header",
        ".safetensors shape",
        ".pth bytearray",
        ".pth expanded",
        ".pth old storage",
        ".pth zip",
        ".weights.h5 nothing",
        ".weights.h5 chunks",
        ".weights.h5 compressed",
    ],
)
def test_small_files_that_claim_much(unused, golden_tensors, tmp_path, name):
    torch = pytest.importorskip("torch")
    state = {name: torch.tensor(array) for name, array in golden_tensors.items()}
    path = of_giant_claims(name, torch, state, tmp_path)
    error, taken = attempt(unused, path)
    assert type(error) is ValueError
    assert path.name in str(error) and "\n" not in str(error)
    assert taken < 2 * path.stat().st_size + SLACK


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
