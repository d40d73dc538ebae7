"""Files of the hub, from a cache with the layout of the hub's client, and shipped files."""

import dataclasses
import hashlib
import http.server
import importlib
import os
import shutil
import threading
from pathlib import Path

import keras
import pytest
from harness import run_python
from safetensors.numpy import save_file

import keras_vitx as kv
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import catalog, hub, load_weights, resolve, to_checkpoint

pytestmark = pytest.mark.backend_free

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
S36 = "timm/cait_s36_384.fb_dist_in1k"
# A function of the package shadows the module.
load_module = importlib.import_module("keras_vitx.weights.load")


@pytest.fixture
def cache(tmp_path, monkeypatch, golden_file):
    """An offline hub; returns a function that puts the golden weights into its cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository, file="model.safetensors", blob="abc123"):
        directory = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (directory / "refs").mkdir(parents=True)
        (directory / "refs" / "main").write_text(COMMIT)
        (directory / "blobs").mkdir()
        blob = directory / "blobs" / blob
        shutil.copyfile(golden_file, blob)
        snapshot = directory / "snapshots" / COMMIT / file
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(blob)
        return blob

    return put


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return sha256(content)


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs%2Fpr%2F1", COMMIT])
@pytest.mark.parametrize("file", ["model.safetensors", "sub/other.safetensors"])
def test_a_revision_from_the_cache(cache, golden_file, revision, file):
    blob = cache("someone/cait", file)
    directory = blob.parents[1]
    assert resolve(f"hf://someone/cait/{file}").path.resolve() == blob
    if revision != COMMIT:
        # The branch now points to another commit.
        ref = directory / "refs" / revision.replace("%2F", "/")
        ref.parent.mkdir(parents=True, exist_ok=True)
        (directory / "refs" / "main").write_text("f" * 40)
        ref.write_text(COMMIT)
    assert resolve(f"hf://someone/cait@{revision}/{file}").path.resolve() == blob
    if revision not in ("main", COMMIT):
        with pytest.raises(OSError, match=f"hf://someone/cait/{file}.*isn't in the cache"):
            resolve(f"hf://someone/cait/{file}")
    with pytest.raises(OSError, match=r"cait/resolve/refs%2Fpr%2F2/model\.safetensors"):
        resolve("hf://someone/cait@refs%2Fpr%2F2")


def test_a_catalog_entry_from_the_cache(cache, tiny, golden_model, same_weights, caplog):
    cache(S36)
    for name in ("imagenet", "cait_s36_384.fb_dist_in1k", f"hf://{S36}", f"hf://{S36}@{COMMIT}"):
        resolved = resolve(name, "CaiT_S36", (384, 384))
        assert resolved.path.is_file()
        assert resolved.checkpoint.name == "cait_s36_384.fb_dist_in1k"
    # Not of a revision that the user names.
    assert len(caplog.records) == 3
    assert "neither the revision nor the SHA-256" in caplog.text
    assert f"commit {COMMIT}, hash abc123" in caplog.text and f"'hf://{S36}@" in caplog.text
    model = tiny()
    model.preprocessing = IMAGENET_INCEPTION
    load_weights(model, f"hf://{S36}")
    same_weights(model, golden_model)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    with pytest.raises(OSError, match=r"can't be downloaded.*timm/cait_xxs24_224\.fb_dist_in1k"):
        resolve("imagenet", "CaiT_XXS24")


def test_a_checkpoint_is_loaded_at_its_revision(cache, caplog, monkeypatch, golden_file):
    entry = catalog.find("cait_s36_384.fb_dist_in1k", None)
    digest = sha256(golden_file.read_bytes())
    pinned = dataclasses.replace(entry, revision=COMMIT, sha256=digest)
    blob = cache(S36, blob=digest)
    (blob.parents[1] / "refs" / "main").write_text("f" * 40)
    monkeypatch.setattr(load_module, "find", lambda *_: pinned)
    assert resolve("imagenet", "CaiT_S36").path.parent.name == COMMIT
    assert not caplog.records
    # A file of another name is another file.
    other = dataclasses.replace(pinned, sha256="0" * 64)
    monkeypatch.setattr(load_module, "find", lambda *_: other)
    with pytest.raises(ValueError, match=f"damaged or another.*{digest}.*0000"):
        resolve("imagenet", "CaiT_S36")


@pytest.mark.parametrize("named", [True, False])
def test_the_hash_of_a_file_is_checked(cache, golden_file, monkeypatch, named):
    # In the cache, large files are named by their hash, and are hashed when they are downloaded.
    right = sha256(golden_file.read_bytes())
    blob = cache("someone/cait", blob=right if named else "abc123")
    address, hashed = hub.parse("hf://someone/cait"), []
    hash_of = hub.hash_of
    monkeypatch.setattr(hub, "hash_of", lambda path: hashed.append(path) or hash_of(path))
    for known in (right, right[:8], right.upper(), None):
        assert hub.download(address, known).resolve() == blob
    assert len(hashed) == (0 if named else 3)
    if not named:
        found = damage(blob)
        said = f"weights='hf://someone/cait/.*{found}.*{right}.*Delete {blob} "
        with pytest.raises(ValueError, match=said):
            hub.download(address, right)


def test_a_file_is_hashed_again_only_if_it_changes(tmp_path, golden_file, monkeypatch):
    path, hashed = Path(shutil.copy(golden_file, tmp_path)), []
    right, digest = sha256(path.read_bytes()), hub.hashlib.file_digest
    monkeypatch.setattr(
        hub.hashlib, "file_digest", lambda *given: hashed.append(given) or digest(*given)
    )
    for _ in range(3):
        hub.check_hash(path, right)
    assert len(hashed) == 1
    damage(path)
    with pytest.raises(ValueError, match="damaged"):
        hub.check_hash(path, right)


def test_a_truncated_file_in_the_cache_is_named(cache, unused):
    os.truncate(cache("someone/cait"), 1000)
    with pytest.raises(ValueError, match=r"models--someone--cait.*damaged"):
        load_weights(unused, "hf://someone/cait")


@pytest.fixture
def online(tmp_path, monkeypatch, golden_file):
    """A local hub and an empty cache; returns its address, and the answer to change."""
    content = golden_file.read_bytes()
    answer = {"status": 200, "ETag": f'"{sha256(content)}"', "X-Repo-Commit": COMMIT}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(answer["status"])
            for name in ("ETag", "X-Repo-Commit"):
                self.send_header(name, answer[name])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield address, answer
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_and_hashed_once(online, golden_file, monkeypatch):
    hashed, hash_of = [], hub.hash_of
    monkeypatch.setattr(hub, "hash_of", lambda path: hashed.append(path) or hash_of(path))
    path = resolve("hf://someone/cait").path
    assert path.read_bytes() == golden_file.read_bytes()
    online[1]["status"] = 500
    assert resolve("hf://someone/cait").path == path
    assert hashed == [path]


def test_a_download_with_another_hash_is_refused(online):
    online[1]["ETag"] = f'"{"0" * 64}"'
    for _ in range(2):
        with pytest.raises(ValueError, match=r"damaged or another one.*not kept"):
            resolve("hf://someone/cait")


@pytest.mark.parametrize("status", [403, 404, 429, 500])
def test_the_status_and_the_endpoint_are_said(online, monkeypatch, status):
    from huggingface_hub import file_download

    # Without the pauses before the library asks again.
    monkeypatch.setattr(file_download, "_ETAG_RETRY_TIMEOUT", 0.1, raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    address, answer = online
    answer["status"] = status
    with pytest.raises(OSError, match=f"status {status}, from {address}") as caught:
        resolve("hf://someone/cait")
    assert f"{address}/someone/cait/resolve/main/" in str(caught.value)


@pytest.mark.parametrize("header", ["ETag", "X-Repo-Commit"])
@pytest.mark.parametrize("name", ["../../../stolen", "abc.txt", "g" * 64])
def test_a_hub_that_names_files_by_no_hash_is_refused(online, tmp_path, header, name):
    online[1][header] = f'"{name}"' if header == "ETag" else name
    with pytest.raises(ValueError, match=f"weights='hf:.*{header} must be hexadecimal"):
        resolve("hf://someone/cait")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
import keras
import keras_vitx as kv
model = kv.CaiT_XXS24(weights="imagenet")
print(keras.backend.backend(), float(keras.ops.sum(model.get_layer("norm").gamma)))
"""


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="is about JAX")
def test_imagenet_offline_on_jax_without_torch(cache, tmp_path, monkeypatch):
    tensors = to_checkpoint(kv.CaiT_XXS24())
    tensors["norm.weight"][:] = range(192)
    save_file(tensors, cache("timm/cait_xxs24_224.fb_dist_in1k"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert run_python(WITHOUT_TORCH).stdout.split()[-2:] == ["jax", str(sum(range(192)) / 1)]


def test_addresses_are_read_and_written():
    address = hub.parse("hf://owner/repo@refs%2Fpr%2F1/sub/m.pth")
    assert address == ("owner/repo", "sub/m.pth", "refs/pr/1")
    assert hub.parse(str(address)) == address
    assert hub.parse("hf://owner/repo@refs/pr/1/sub/m.pth") == address
    assert hub.parse("hf://owner/repo/") == ("owner/repo", "model.safetensors", None)


@pytest.mark.parametrize(
    "address",
    [
        *("hf://", "hf://owner", "hf:///x", "hf://a b/c", "hf://-a/c", "hf://a/b@", "hf://a/b@/c"),
        *("hf://../b", "hf://a/..", "hf://a/b/../c.pth", "hf://a/b/./c.pth", "hf://a/b//c.pth"),
        *("hf://a/b//etc/passwd", "hf://a/b/c\\..\\d.pth", "hf://a/b/C:/d.pth"),
        *("hf://a/b/%2e%2e/c", "hf://a/b@../c.pth", "hf://a/b@..%2F..%2Fx", "hf://a/b@%2Fetc"),
        *("hf://a/b@x\0/c.pth", "hf://owner/repo/model.onnx"),
        *("hf://datasets/a/b/c.pth", "hf://spaces/a/b/c.pth", "hf://buckets/a/b/c.pth"),
    ],
)
def test_addresses_that_are_none(cache, address):
    with pytest.raises(ValueError, match="weights='hf://"):
        resolve(address)


@pytest.mark.parametrize("directory", ["keras_vitx/weights/files", "weights"])
def test_shipped_files(tmp_path, monkeypatch, golden_file, tiny, directory):
    directory = tmp_path / directory
    monkeypatch.setattr(hub, "__file__", str(tmp_path / "keras_vitx" / "weights" / "hub.py"))
    with pytest.raises(FileNotFoundError, match=r"cait_mini_cifar10\.safetensors"):
        resolve("cifar10", "CaiT_Mini")
    directory.mkdir(parents=True)
    shutil.copyfile(golden_file, directory / "cait_mini_cifar10.safetensors")
    assert resolve("cifar10", "CaiT_Mini").path.parent == directory
    model = tiny(weights="cait_mini_cifar10")
    assert tuple(model.class_names) == catalog.find("cifar10", "CaiT_Mini").class_names
    assert model.preprocessing.std == (0.229, 0.224, 0.225)
    assert tiny(weights="cait_mini_cifar10", classes=3).class_names is None
