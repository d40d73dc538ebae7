"""Files of the hub, from a cache with the layout of the hub's client, and shipped files."""

import dataclasses
import hashlib
import http.server
import importlib
import shutil
import threading

import pytest
from harness import run_python, same_weights
from huggingface_hub import constants
from safetensors.numpy import save_file
from tiny import COMMIT, make_tiny

import keras_vitx as kv
from keras_vitx.preprocessing import IMAGENET_INCEPTION
from keras_vitx.weights import catalog, load_weights, resolve, to_checkpoint
from keras_vitx.weights import hub as hub_module

pytestmark = pytest.mark.backend_free

S36 = "timm/cait_s36_384.fb_dist_in1k"
# A function of the package shadows the module.
load_module = importlib.import_module("keras_vitx.weights.load")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs%2Fpr%2F1", COMMIT])
@pytest.mark.parametrize("file", ["model.safetensors", "sub/other.safetensors"])
def test_a_revision_from_the_cache(hub, golden_file, revision, file):
    blob = hub("someone/cait", golden_file, file)
    refs = blob.parents[1] / "refs"
    assert resolve(f"hf://someone/cait/{file}").path.resolve() == blob
    if revision != COMMIT:
        # The branch now points to another commit.
        ref = refs / revision.replace("%2F", "/")
        ref.parent.mkdir(parents=True, exist_ok=True)
        (refs / "main").write_text("f" * 40)
        ref.write_text(COMMIT)
    assert resolve(f"hf://someone/cait@{revision}/{file}").path.resolve() == blob
    if revision not in ("main", COMMIT):
        with pytest.raises(OSError, match=f"hf://someone/cait/{file}.*isn't in the cache"):
            resolve(f"hf://someone/cait/{file}")
    with pytest.raises(OSError, match=r"cait/resolve/refs%2Fpr%2F2/model\.safetensors"):
        resolve("hf://someone/cait@refs%2Fpr%2F2")


def test_a_catalog_entry_from_the_cache(hub, golden_file, golden_model, caplog):
    hub(S36, golden_file)
    for name in ("imagenet", "cait_s36_384.fb_dist_in1k", f"hf://{S36}", f"hf://{S36}@{COMMIT}"):
        resolved = resolve(name, "CaiT_S36", (384, 384))
        assert resolved.path.is_file()
        assert resolved.checkpoint.name == "cait_s36_384.fb_dist_in1k"
    # Not of a revision that the user names.
    assert len(caplog.records) == 3
    assert "neither the revision nor the SHA-256" in caplog.text
    assert f"commit {COMMIT}, hash abc123" in caplog.text and f"'hf://{S36}@" in caplog.text
    model = make_tiny()
    model.preprocessing = IMAGENET_INCEPTION
    load_weights(model, f"hf://{S36}")
    same_weights(model, golden_model)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    with pytest.raises(OSError, match=r"can't be downloaded.*timm/cait_xxs24_224\.fb_dist_in1k"):
        resolve("imagenet", "CaiT_XXS24")


def test_a_checkpoint_is_loaded_at_its_revision(hub, caplog, monkeypatch, golden_file):
    entry, digest = catalog.find("cait_s36_384.fb_dist_in1k", None), sha256(golden_file)
    pinned = dataclasses.replace(entry, revision=COMMIT, sha256=digest)
    blob = hub(S36, golden_file, blob=digest)
    (blob.parents[1] / "refs" / "main").write_text("f" * 40)
    monkeypatch.setattr(load_module, "find", lambda *_: pinned)
    assert resolve("imagenet", "CaiT_S36").path.parent.name == COMMIT
    assert not caplog.records
    # A file of another name is another file.
    other = dataclasses.replace(pinned, sha256="0" * 64)
    monkeypatch.setattr(load_module, "find", lambda *_: other)
    with pytest.raises(ValueError, match=f"damaged or another.*{digest}.*0000"):
        resolve("imagenet", "CaiT_S36")


def test_the_hash_of_a_file_is_checked(hub, golden_file):
    right = sha256(golden_file)
    blob = hub("someone/cait", golden_file)
    address = hub_module.parse("hf://someone/cait")
    for known in (right[:8], right.upper(), None):
        assert hub_module.download(address, known).resolve() == blob
    blob.write_bytes(b"\0" + blob.read_bytes()[1:])
    said = f"weights='hf://someone/cait/.*{sha256(blob)}.*{right}.*Delete {blob} "
    with pytest.raises(ValueError, match=said):
        hub_module.download(address, right)


@pytest.fixture
def online(tmp_path, monkeypatch, golden_file):
    """A local hub and an empty cache; returns its address, and the answer to change."""
    content = golden_file.read_bytes()
    answer = {"status": 200, "ETag": f'"{sha256(golden_file)}"', "X-Repo-Commit": COMMIT}

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


def test_a_file_is_downloaded_once(online, golden_file):
    path = resolve("hf://someone/cait").path
    assert path.read_bytes() == golden_file.read_bytes()
    online[1]["status"] = 500
    assert resolve("hf://someone/cait").path == path


def test_a_download_with_another_hash_is_refused(online):
    online[1]["ETag"] = f'"{"0" * 64}"'
    for _ in range(2):
        with pytest.raises(ValueError, match=r"damaged or another one.*not kept"):
            resolve("hf://someone/cait")


@pytest.mark.parametrize("status", [404, 429])
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
@pytest.mark.parametrize("name", ["../../../stolen", "g" * 64])
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


def test_imagenet_offline_on_jax_without_torch(hub, tmp_path, monkeypatch):
    pytest.importorskip("jax")
    tensors = to_checkpoint(kv.CaiT_XXS24())
    tensors["norm.weight"][:] = range(192)
    save_file(tensors, tmp_path / "model.safetensors")
    hub("timm/cait_xxs24_224.fb_dist_in1k", tmp_path / "model.safetensors")
    for name, value in {"OFFLINE": "1", "CACHE": str(tmp_path / "hub")}.items():
        monkeypatch.setenv(f"HF_HUB_{name}", value)
    assert run_python(WITHOUT_TORCH, backend="jax").stdout.split()[-2:] == ["jax", "18336.0"]


@pytest.mark.parametrize("directory", ["keras_vitx/weights/files", "weights"])
def test_shipped_files(tmp_path, monkeypatch, golden_file, directory):
    directory = tmp_path / directory
    monkeypatch.setattr(hub_module, "__file__", str(tmp_path / "keras_vitx" / "weights" / "hub.py"))
    with pytest.raises(FileNotFoundError, match=r"cait_mini_cifar10\.safetensors"):
        resolve("cifar10", "CaiT_Mini")
    directory.mkdir(parents=True)
    shutil.copyfile(golden_file, directory / "cait_mini_cifar10.safetensors")
    assert resolve("cifar10", "CaiT_Mini").path.parent == directory
