"""Each command once in a process of its own, where it is the first to import the package."""

import os
import subprocess
import sys

import pytest
from harness import ROOT
from PIL import Image

pytestmark = pytest.mark.backend_free

CHECKPOINT = ROOT / "weights" / "cait_mini_cifar10.safetensors"
COMMANDS = {
    "list": "list",
    "predict": "predict tiny.keras gray.png",
    "evaluate": "evaluate tiny.keras small.npz",
    "train": "train tiny.keras small.npz --smoke --output run",
    "export": "export tiny.keras tiny.pt2",
    "convert": f"convert {CHECKPOINT} --model CaiT_Mini -o a.weights.h5",
    "explore": "explore tiny.keras gray.png -o page.html",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_as_the_first_import(command, tiny_file, small_set, tmp_path):
    Image.new("RGB", (40, 30), "gray").save(tmp_path / "gray.png")
    done = subprocess.run(
        [sys.executable, "-m", "keras_vitx.cli", *COMMANDS[command].split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
