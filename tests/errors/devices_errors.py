"""Devices that a machine does not have; each backend counts its own."""

from training.test_devices import batch_of, shards_of

import keras_vitx as kv

ERRORS = {
    ValueError: {
        "`devices` ...Received: 4096": lambda: kv.training.use_devices(4096),
        "`devices` must be 'all' or at least 1": lambda: kv.training.use_devices(0),
        "divisible by the 4 devices ...Received: 6": lambda: shards_of(batch_of(6), 4),
    }
}
