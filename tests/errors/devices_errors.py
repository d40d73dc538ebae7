"""Devices that a machine does not have; each backend counts its own."""

import numpy as np

import keras_vitx as kv
from keras_vitx.training.devices import Devices
from keras_vitx.training.devices.replicas import rows_of

ERRORS = {
    ValueError: {
        "`devices` ...Received: 4096": lambda: kv.training.use_devices(4096),
        "`devices` must be 'all' or at least 1": lambda: kv.training.use_devices(0),
        "divisible by the 4 devices ...Received: 6": lambda: rows_of(
            (np.zeros(6), np.zeros(6)), Devices(4, 4, 4, 0)
        ),
    }
}
