"""PyTorch's step on a device that computes nothing: waits, casts, kernels and mixed devices."""

import json
from pathlib import Path

import pytest
from devices.zoo import TIMM, TINY
from harness import BACKEND, run_python

if BACKEND != "torch":
    pytest.skip("run by PyTorch", allow_module_level=True)

# In float32, kernels are compared with timm's. What differs in float16 is Keras's scaling of the
# loss, which knows no family.
CASES = [*((family, "mixed_bfloat16") for family in TINY if family not in ("ViT", "CBViT"))]
CASES += [*((name, "float32") for name in TIMM), ("CaiT", "mixed_float16")]


@pytest.fixture(scope="module")
def found():
    """What the script prints, {(family, policy): report}."""
    done = run_python(Path(__file__).with_name("fake_device.py"), *map(":".join, CASES))
    lines = map(json.loads, done.stdout.splitlines())
    return {(family, policy): report for family, policy, report in lines}


@pytest.mark.parametrize(("family", "policy"), CASES)
def test_the_step_neither_waits_nor_mixes_devices(found, family, policy):
    report = found[family, policy]
    assert "error" not in report, report
    inference, step = report["inference"], report["step"]
    assert not inference["mixed"] and not step["mixed"] and not inference["waits"]
    # In float16, Keras reads whether all gradients are finite, and whether the scale grows.
    assert sum(step["waits"].values()) <= (2 if policy == "mixed_float16" else 0), step["waits"]
    # Of weights, except those of the head; of the images, and the inputs of the head.
    # A few families cast gates, positions or means, too.
    assert inference["casts"] <= (policy != "float32") * (1.25 * report["weights"] + 2)
    # For kernels of large maps, PyTorch's gradient of a depthwise convolution is far too slow.
    assert not (family == "RefinedViT" and step["depthwise"])
    if policy == "float32":
        assert report["passes"]["kernels"] <= TIMM[family]
