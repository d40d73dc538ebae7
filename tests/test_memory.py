"""Memory that the C library keeps."""

import platform
from pathlib import Path

import pytest
from harness import run_python

import keras_vitx as kv

# With the C library itself: other live objects may keep memory from being returned.
FAULTS = """
import ctypes, resource
import keras_vitx
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.memset.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
library.free.argtypes = [ctypes.c_void_p]
def faults_of(rounds, size=40 << 20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        blocks = [library.malloc(size) for _ in range(4)]
        for block in blocks:
            library.memset(block, 1, size)
        for block in blocks:
            library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = faults_of(2) and faults_of(4)
assert keras_vitx.keep_memory()
kept = faults_of(2) and faults_of(4)
print(given_back, kept)
"""
GLIBC = platform.libc_ver()[0] == "glibc"
GPU = any(Path("/dev", device).exists() for device in kv.backend.ACCELERATORS)


@pytest.mark.backend_free
@pytest.mark.skipif(not GLIBC or GPU, reason="changes glibc only, and not beside a GPU")
def test_freed_memory_is_kept(monkeypatch):
    given_back, kept = map(int, run_python(FAULTS).stdout.split())
    assert kept < given_back / 4
    monkeypatch.setattr(kv.backend, "ACCELERATORS", ("null",))
    assert not kv.keep_memory(), "beside a GPU"
    monkeypatch.undo()
    monkeypatch.setenv("KERAS_VITX_KEEP_MEMORY", "0")
    assert not kv.keep_memory()
