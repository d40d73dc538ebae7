"""Weights and their files: faults reported of other projects."""

import os
import sys
from pathlib import Path

import pytest
from harness import FAMILIES

import keras_vitx as kv
from keras_vitx.files import locked

pytestmark = pytest.mark.backend_free


# safetensors/safetensors#782, huggingface/sentence-transformers#4010
@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_files_have_the_permissions_that_the_umask_leaves(umask, tmp_path):
    before = os.umask(umask)
    try:
        kv.save(FAMILIES["ViT"](), tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes
    assert kv.load(os.fsencode(tmp_path / "model")).name == "ViT"


# tox-dev/filelock#60
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_lock_that_cannot_be_made_is_an_error():
    with pytest.raises(OSError, match="/proc"), locked(Path("/proc/model")):
        pass
