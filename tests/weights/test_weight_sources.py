"""Files of the hub, from a cache with the layout of the hub's client, and shipped files."""

import contextlib
import dataclasses
import hashlib
import http.server
import importlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import keras
import pytest

from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import catalog, hub, load_weights, resolve

pytestmark = pytest.mark.backend_free

constants = pytest.importorskip("huggingface_hub.constants")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch, golden_file):
    """An offline hub whose cache holds the golden weights of some repositories."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, file="model.safetensors", blob="abc123"):
        commit = COMMIT
        folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
        (folder / "blobs").mkdir()
        blob = folder / "blobs" / blob
        shutil.copyfile(golden_file, blob)
        snapshot = folder / "snapshots" / commit / file
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(blob)
        return blob

    return put


@pytest.mark.parametrize("file", ["", "/model.safetensors", "/sub/folder/other.safetensors"])
def test_from_the_cache(cache, tiny, golden_model, same_weights, file):
    cache("someone/cait", file.lstrip("/") or "model.safetensors")
    same_weights(tiny(weights=f"hf://someone/cait{file}"), golden_model)


def test_a_catalogue_entry_from_the_cache(cache, tiny):
    cache("timm/cait_s36_384.fb_dist_in1k")
    for name in ("imagenet", "cait_s36_384.fb_dist_in1k", "hf://timm/cait_s36_384.fb_dist_in1k"):
        resolved = resolve(name, "CaiT_S36", (384, 384))
        assert resolved.path.is_file()
        assert resolved.checkpoint.name == "cait_s36_384.fb_dist_in1k"
        assert resolved.checkpoint.image_size == 384
    model = tiny()
    model.preprocessing = IMAGENET_INCEPTION
    load_weights(model, "hf://timm/cait_s36_384.fb_dist_in1k")
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_checkpoint_that_nothing_identifies_is_told(cache, caplog, monkeypatch):
    load = importlib.import_module("keras_vitx.weights.load")
    monkeypatch.setattr(load, "_warned", set())
    cache("timm/cait_s36_384.fb_dist_in1k")
    for _ in range(2):
        resolve("imagenet", "CaiT_S36")
    (record,) = caplog.records
    assert "neither the revision nor the SHA-256" in record.getMessage()
    assert f"'hf://timm/cait_s36_384.fb_dist_in1k@{COMMIT}'" in record.getMessage()
    # Of a revision that the user names, nothing is to be said.
    monkeypatch.setattr(load, "_warned", set())
    resolve(f"hf://timm/cait_s36_384.fb_dist_in1k@{COMMIT}", "CaiT_S36")
    assert len(caplog.records) == 1


def test_a_checkpoint_is_loaded_at_its_revision(cache, caplog, monkeypatch, golden_file):
    load = importlib.import_module("keras_vitx.weights.load")
    entry = catalog.find("cait_s36_384.fb_dist_in1k", None)
    digest = sha256(golden_file.read_bytes())
    pinned = dataclasses.replace(entry, revision=COMMIT, sha256=digest)
    blob = cache("timm/cait_s36_384.fb_dist_in1k", blob=digest)
    (blob.parents[1] / "refs" / "main").write_text("f" * 40)
    monkeypatch.setattr(load, "find", lambda *_: pinned)
    assert resolve("imagenet", "CaiT_S36").path.parent.name == COMMIT
    assert not caplog.records
    damage(blob)
    with pytest.raises(ValueError, match=f"damaged or another.*{digest}"):
        resolve("imagenet", "CaiT_S36")


def test_offline_with_nothing_cached(cache, tmp_path):
    with pytest.raises(OSError, match=r"cait_xxs24_224\.fb_dist_in1k") as caught:
        resolve("imagenet", "CaiT_XXS24")
    message = str(caught.value)
    assert "https://huggingface.co/timm/cait_xxs24_224.fb_dist_in1k/resolve/main/" in message
    assert str(tmp_path / "hub") in message


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return bytes(content)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_a_file_with_the_hash_that_it_should_have(cache, golden_file):
    right = sha256(golden_file.read_bytes())
    blob = cache("someone/cait", blob=right)
    for known in (right, right[:8], right.upper(), None):
        assert hub.download("hf://someone/cait", known).resolve() == blob
    assert hub.verified(golden_file, right) == golden_file


@pytest.mark.parametrize("told", [True, False])
def test_another_hash_names_the_file_and_both_hashes(cache, golden_file, told):
    # In the cache, large files are named by their hash.
    right = sha256(golden_file.read_bytes())
    blob = cache("someone/cait", blob="abc123" if told else right)
    found = sha256(damage(blob))
    with pytest.raises(ValueError, match=f"(?s){found}.*{right}.*Delete {blob} ") as caught:
        hub.download("hf://someone/cait", right if told else None)
    assert "weights='hf://someone/cait/" in str(caught.value)
    with pytest.raises(ValueError, match=f"{blob} is damaged.*{found}.*{right}"):
        hub.verified(blob, right)


def test_a_truncated_file_in_the_cache_is_named(cache, unused):
    blob = cache("someone/cait")
    os.truncate(blob, 1000)
    with pytest.raises(ValueError, match=r"models--someone--cait.*damaged"):
        load_weights(unused, "hf://someone/cait")


class Hub:
    """A local hub whose connections can break.

    Attributes:
        content: Content of its one file.
        breaks: Number of further downloads to break off halfway.
        ranges: The ranges requested; None for the whole file.
        half: Set when half of a download has been sent and its connection is left open.
        hangs: Whether connections are left open halfway.
        gone: Whether the file no longer exists.
        status: Status of the answer to each request, instead of the file.
        headers: Headers that replace those of an answer.
    """

    def __init__(self, content):
        self.content, self.breaks, self.ranges = content, 0, []
        self.half, self.hangs, self.gone = threading.Event(), False, False
        self.status, self.headers = None, {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                if hub.gone or hub.status:
                    return self.send_error(hub.status or 404)
                self.answer()

            def do_GET(self):
                if self.path.startswith("/api"):
                    return self.send_error(404)
                asked = self.headers.get("Range")
                hub.ranges.append(asked)
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
                self.answer(start)
                middle = (start + len(hub.content)) // 2
                self.wfile.write(hub.content[start:middle])
                self.wfile.flush()
                if hub.hangs:
                    hub.half.set()
                    with contextlib.suppress(ConnectionError):
                        self.rfile.read(1)
                    self.close_connection = True
                elif hub.breaks:
                    hub.breaks -= 1
                    self.close_connection = True
                else:
                    self.wfile.write(hub.content[middle:])

            def answer(self, start=0):
                self.send_response(206 if start else 200)
                headers = {"ETag": f'"{sha256(hub.content)}"', "X-Repo-Commit": COMMIT}
                for name, value in {**headers, **hub.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(hub.content) - start))
                if start:
                    last = len(hub.content) - 1
                    self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def online(tmp_path, monkeypatch, golden_file):
    """A local hub and an empty cache."""
    online = Hub(golden_file.read_bytes() * 50)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", online.address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        online.address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    # Downloads resume at the last whole piece, and these files are smaller than real ones.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield online
    online.server.shutdown()
    online.server.server_close()


def test_a_download_goes_on_where_it_broke_off(online):
    online.breaks = 1
    path = hub.download("hf://someone/cait", sha256(online.content))
    assert path.read_bytes() == online.content
    start = int(online.ranges[1].removeprefix("bytes=").rstrip("-"))
    assert len(online.ranges) == 2
    assert 0 < start <= len(online.content) // 2
    assert hub.download("hf://someone/cait") == path
    assert len(online.ranges) == 2, "the cache asks nobody"


def test_a_killed_download_leaves_no_file(online, tmp_path):
    online.hangs = True
    code = "from keras_vitx.weights.hub import download; download('hf://someone/cait')"
    environment = {"HF_ENDPOINT": online.address, "HF_HUB_CACHE": str(tmp_path / "hub")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(PROJECT)},
    )
    assert online.half.wait(100)
    process.kill()
    process.wait()
    online.hangs = False
    folder = tmp_path / "hub" / "models--someone--cait"
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    assert [name for name in names if not name.endswith(".incomplete")] == ["main"]
    assert len(names) == 2
    path = hub.download("hf://someone/cait")
    assert path.read_bytes() == online.content


@pytest.mark.parametrize("status", [403, 404, 429, 500])
def test_the_status_and_the_endpoint_are_said(online, monkeypatch, status):
    from huggingface_hub import file_download

    # Without the pauses before the library asks again.
    monkeypatch.setattr(file_download, "_ETAG_RETRY_TIMEOUT", 0.1, raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    online.status = status
    with pytest.raises(OSError, match=f"status {status}, from {online.address}") as caught:
        hub.download("hf://someone/cait")
    assert f"{online.address}/someone/cait/resolve/main/" in str(caught.value)


@pytest.mark.parametrize("header", ["ETag", "X-Repo-Commit"])
@pytest.mark.parametrize("name", ["../../../stolen", "abc.txt", "g" * 64])
def test_a_hub_that_names_files_by_no_hash_is_refused(online, tmp_path, header, name):
    online.headers[header] = f'"{name}"' if header == "ETag" else name
    with pytest.raises(ValueError, match=f"weights='hf:.*{header} must be hexadecimal"):
        hub.download("hf://someone/cait")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


PROJECT = Path(__file__).resolve().parents[2]

WITHOUT_TORCH = """
    import sys


    class NoTorch:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "torch":
                raise ModuleNotFoundError(f"No module named {name!r}")


    sys.meta_path.insert(0, NoTorch())
    import keras
    import numpy as np

    import keras_vitx as kv

    model = kv.CaiT_XXS24(weights="imagenet")
    gamma = keras.ops.convert_to_numpy(model.get_layer("norm").gamma.value)
    np.testing.assert_array_equal(gamma, np.arange(192))
    assert keras.backend.backend() == "jax" and "torch" not in sys.modules
    print("loaded")
"""


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="is about JAX")
def test_imagenet_offline_on_jax_without_torch(tmp_path):
    from safetensors.numpy import save_file

    import keras_vitx as kv
    from keras_vitx.weights import to_checkpoint

    tensors = to_checkpoint(kv.CaiT_XXS24())
    tensors["norm.weight"][:] = range(192)
    folder = tmp_path / "hub" / "models--timm--cait_xxs24_224.fb_dist_in1k"
    for name in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (folder / name).mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    save_file(tensors, tmp_path / "file")
    name = sha256((tmp_path / "file").read_bytes())
    (tmp_path / "file").rename(folder / "blobs" / name)
    (folder / "snapshots" / COMMIT / "model.safetensors").symlink_to(f"../../blobs/{name}")
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH)],
        env={**os.environ, **environment, "KERAS_BACKEND": "jax", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.stdout.strip().endswith("loaded"), finished.stderr[-3000:]


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs%2Fpr%2F1", COMMIT])
@pytest.mark.parametrize("file", ["model.safetensors", "sub/other.safetensors"])
def test_a_revision_from_the_cache(cache, golden_file, revision, file):
    blob = cache("someone/cait", file)
    folder = blob.parents[1]
    if revision != COMMIT:
        # The branch now points to another commit.
        ref = folder / "refs" / revision.replace("%2F", "/")
        ref.parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text("f" * 40)
        ref.write_text(COMMIT)
    resolved = resolve(f"hf://someone/cait@{revision}/{file}")
    assert resolved.path.read_bytes() == golden_file.read_bytes()
    if revision not in ("main", COMMIT):
        with pytest.raises(OSError, match=f"hf://someone/cait/{file}.*isn't in the cache"):
            resolve(f"hf://someone/cait/{file}")


def test_a_revision_that_is_not_cached(cache):
    cache("someone/cait")
    with pytest.raises(OSError, match=r"cait/resolve/refs%2Fpr%2F2/model\.safetensors"):
        resolve("hf://someone/cait@refs%2Fpr%2F2")


def test_a_revision_of_a_checkpoint_keeps_its_facts(cache):
    cache("timm/cait_s36_384.fb_dist_in1k")
    resolved = resolve(f"hf://timm/cait_s36_384.fb_dist_in1k@{COMMIT}", "CaiT_S36")
    assert resolved.checkpoint.name == "cait_s36_384.fb_dist_in1k"


def test_addresses_are_read_and_written():
    address = hub.parse("hf://owner/repo@refs%2Fpr%2F1/sub/m.pth")
    assert address == ("owner/repo", "sub/m.pth", "refs/pr/1")
    assert hub.parse(str(address)) == address
    assert hub.parse("hf://owner/repo/") == ("owner/repo", "model.safetensors", None)


@pytest.mark.parametrize(
    "address",
    [
        *("hf://", "hf://owner", "hf:///x", "hf://a b/c", "hf://-a/c", "hf://a/b@", "hf://a/b@/c"),
        *("hf://../b", "hf://a/..", "hf://a/b/../c.pth", "hf://a/b/./c.pth", "hf://a/b//c.pth"),
        *(
            "hf://a/b//etc/passwd",
            "hf://a/b/c\\..\\d.pth",
            "hf://a/b/C:/d.pth",
            "hf://a/b/%2e%2e/c",
        ),
        *("hf://a/b@../c.pth", "hf://a/b@..%2F..%2Fx", "hf://a/b@%2Fetc", "hf://a/b@x\0/c.pth"),
    ],
)
def test_addresses_that_are_none(cache, address):
    with pytest.raises(ValueError, match="weights='hf://"):
        resolve(address)


def test_a_hub_file_of_unknown_kind(cache):
    with pytest.raises(ValueError, match=r"\.safetensors, \.pth"):
        resolve("hf://owner/repo/model.onnx")


@pytest.mark.parametrize("place", ["package", "checkout"])
def test_shipped_files(tmp_path, monkeypatch, golden_file, place):
    root = tmp_path / "repository"
    monkeypatch.setattr(hub, "__file__", str(root / "keras_vitx" / "weights" / "hub.py"))
    folder = root / ("keras_vitx/weights/files" if place == "package" else "weights")
    with pytest.raises(FileNotFoundError, match=r"cait_mini_cifar10\.safetensors"):
        resolve("cifar10", "CaiT_Mini")
    folder.mkdir(parents=True)
    shutil.copyfile(golden_file, folder / "cait_mini_cifar10.safetensors")
    assert resolve("cifar10", "CaiT_Mini").path.parent == folder


def test_a_shipped_checkpoint_names_the_classes(tmp_path, monkeypatch, golden_file, tiny):
    monkeypatch.setattr(hub, "__file__", str(tmp_path / "keras_vitx" / "weights" / "hub.py"))
    (tmp_path / "weights").mkdir()
    shutil.copyfile(golden_file, tmp_path / "weights" / "cait_mini_cifar10.safetensors")
    model = tiny(weights="cait_mini_cifar10")
    assert tuple(model.class_names) == catalog.find("cifar10", "CaiT_Mini").class_names
    assert model.preprocessing.std == (0.229, 0.224, 0.225)
    assert tiny(weights="cait_mini_cifar10", classes=3).class_names is None
