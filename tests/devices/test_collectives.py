"""What eight devices send each other in a training step, by the compiled step (JAX)."""

import json
import os
from pathlib import Path

import pytest
from devices.zoo import run_script
from harness import BACKEND

if BACKEND != "jax":
    pytest.skip("compiled by JAX", allow_module_level=True)


def measured(choice, families):
    script = Path(__file__).with_name("virtual_devices.py")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = run_script(script, choice, ",".join(families), XLA_FLAGS=flags)
    return map(json.loads, done.stdout.splitlines())


def test_copies_of_the_model_reduce_gradients_only():
    # Positions by axes, a depthwise convolution, and statistics of maps.
    for family, found in measured("data", ("ConViT", "PiT", "RefinedViT")):
        assert set(found["collectives"]) == {"all-reduce"}, family
        # Statistics of normalizations and the loss are a few numbers.
        assert found["collectives"]["all-reduce"][1] < 1.02 * found["weights"] + 4096, family


def test_sharded_weights_travel_and_activations_do_not():
    for family, found in measured("shards", ("CaiT",)):
        sent = found["collectives"]
        assert set(sent) <= {"all-gather", "all-reduce", "reduce-scatter"}, family
        # Forward and backward; the loop is written once for all of its blocks.
        assert sent["all-gather"][1] < 2 * found["weights"], family
        assert sent["all-reduce"][1] < 1.02 * found["weights"] + 4096, family
        # The rest are biases and norms of these small models.
        assert max(found["share"]) < 0.5, family
