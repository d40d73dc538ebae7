"""What a killed export leaves: no process, and no copy of the model."""

import os
import signal
import subprocess
import sys
import time

import pytest
from harness import BACKEND, ROOT

SCRIPT = """
import sys
import keras_vitx as kv

model = kv.ViT(24, 1, 2, patch_size=8, input_shape=(16, 16, 3), classes=5)
kv.export(model, sys.argv[1], sys.argv[2], overwrite=True, verify=False)
"""


def processes_of(folder):
    """The processes with a folder in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if os.fsencode(str(folder)) in file.read():
                    found.append(int(entry))
        except (OSError, ValueError):
            continue
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_killed_conversion_leaves_nothing(tmp_path):
    # Written by a second process.
    format, name = ("torch", "model.pt2") if BACKEND != "torch" else ("litert", "model.tflite")
    folder = tmp_path / "out"
    temporary = tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder / name), format],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(processes_of(folder)) > 1 or process.poll() is not None)
        assert process.poll() is None, "the export ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: not processes_of(folder))
    # PyTorch keeps a cache of its own there.
    assert list(folder.iterdir()) == [] and not list(temporary.rglob("*.keras"))
