"""Where a model's weights come from: what a model card says of them after training.

A record is a dictionary that JSON can hold, the `training_record` of a model:

| key | |
|---|---|
| `base` | the weights that training began with |
| `data`, `images` | name of the training data, and number of its images |
| `recipe`, `seed` | the settings of `keras_vitx.fit` |
| `best_epoch`, `validation`, `test` | epoch of the weights, and their metrics |
| `weights` | digest of the weights of which all this is true |
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import keras


def digest_of(model: keras.Model) -> str:
    """Return a digest of the weights of a model."""
    digest = hashlib.sha256()
    for variable in model.weights:
        digest.update(keras.ops.convert_to_numpy(variable.value).tobytes())
    return digest.hexdigest()[:16]


def base_of(record: Mapping[str, Any] | None) -> str | None:
    """Return what a next training begins with: the base of a record, and what it was trained on."""
    record = record or {}
    return ", then ".join(filter(None, (record.get("base"), record.get("data")))) or None
