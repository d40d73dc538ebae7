"""The collectives of a training step on eight virtual devices, as JSON.

    KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=8 \
        python tests/devices/virtual_devices.py

The layers run as on a GPU or TPU, not as on a CPU.
"""

import json
import math
import re
from collections import Counter

import jax
import keras
import numpy as np
from zoo import TINY, compiled

import keras_vitx as kv

BATCH = 16
KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
WIDTHS = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "s64": 8, "u8": 1}
# Positions by axes, a depthwise convolution, and statistics of maps; a loop over blocks.
FAMILIES = {"data": ("ConViT", "PiT", "RefinedViT"), "shards": ("CaiT",)}


def step_of(model):
    """Return the compiled training step of Keras, and its state."""
    data = np.zeros((BATCH, *model.input_shape[1:]), "float32"), np.zeros(BATCH, "int32")
    compiled(model)._symbolic_build(data_batch=data)
    variables = model.trainable_variables, model.non_trainable_variables
    variables = *variables, model.optimizer.variables, model.metrics_variables
    state = tuple([v.value for v in group] for group in variables)
    split = keras.distribution.distribution().get_data_layout
    data = tuple(keras.distribution.distribute_tensor(x, split(x.shape)) for x in data)
    # As Keras's trainer compiles it: the state stays where it is.
    shardings = jax.tree.map(lambda value: value.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    return step.lower(state, data).compile(), state


def collectives(text):
    """Return the number and the bytes of each kind of collective in a compiled step."""
    counts, sizes = Counter(), Counter()
    for line in text.splitlines():
        if match := re.search(rf"= (.*?) ({KINDS})(?:-start)?\(", line):
            counts[match[2]] += 1
            for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
                size = math.prod(map(int, re.findall(r"\d+", sides)))
                sizes[match[2]] += WIDTHS.get(kind, 0) * size
    return {kind: (counts[kind], sizes[kind]) for kind in counts}


def share(values):
    """Return the share of the bytes that one device holds."""
    held = sum(value.addressable_shards[0].data.nbytes for value in values)
    return held / sum(value.nbytes for value in values)


if __name__ == "__main__":
    for choice, families in FAMILIES.items():
        kv.training.use_devices(8, shard_weights=choice == "shards")
        jax.default_backend = lambda: "tpu"
        for family in families:
            step, state = step_of(TINY[family]())
            found = {
                "collectives": collectives(step.as_text()),
                "weights": sum(value.nbytes for value in state[0]),
                "share": [share(state[0]), share(state[2])],
            }
            print(json.dumps([choice, family, found]), flush=True)
