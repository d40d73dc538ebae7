"""PyTorch's step on a device that computes nothing: waits, casts, kernels and mixed devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices.zoo import TIMM, TINY
from harness import BACKEND, PRECISIONS, ROOT

if BACKEND != "torch":
    pytest.skip("run by PyTorch", allow_module_level=True)

SCRIPT = Path(__file__).with_name("fake_device.py")
# Per weight: a few families cast gates, positions or means, too.
CASTS = 1.25
# What differs in float16 is Keras's scaling of the loss, which knows no family.
CASES = [
    *((family, policy) for policy in PRECISIONS[:2] for family in TINY),
    *((family, "mixed_float16") for family in ("CaiT", "RefinedViT")),
]


@pytest.fixture(scope="module")
def found():
    """What the script prints, {(family, policy): report}."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(":".join, CASES)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = map(json.loads, done.stdout.splitlines())
    return {(family, policy): report for family, policy, report in lines}


@pytest.mark.parametrize(("family", "policy"), CASES)
def test_the_step(found, family, policy):
    report = found[family, policy]
    assert "error" not in report, report
    inference, step = report["inference"], report["step"]
    assert not inference["mixed"] and not step["mixed"]
    assert not inference["waits"]
    # In float16, Keras reads whether all gradients are finite, and whether the scale grows.
    assert sum(step["waits"].values()) <= (2 if policy == "mixed_float16" else 0), step["waits"]
    # Of weights, except those of the head; of the images, and the inputs of the head.
    casts = 0 if policy == "float32" else CASTS * report["weights"] + 2
    assert inference["casts"] <= casts
    if policy == "float32" and family in TIMM:
        assert report["passes"]["kernels"] <= TIMM[family]
