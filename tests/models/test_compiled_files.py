"""The file of a compiled model can be loaded, and trained further, by another backend."""

import keras
import numpy as np
import pytest
from harness import BACKEND, BACKENDS, FAMILIES, close, numbers, run_python

from keras_vitx.losses import PerHead, SmoothedCrossentropy, SoftDistillation

IMAGES = numbers((4, 16, 16, 3))
LABELS = {"head": np.array([0, 1, 2, 3])}
LABELS["teacher"] = np.random.default_rng(0).dirichlet(np.ones(5), 4).astype("float32")


def compiled():
    keras.utils.set_random_seed(0)
    model = FAMILIES["ViT"](drop_path=0.0, depth=1)
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, 10)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0)
    loss = PerHead({"head": SmoothedCrossentropy(0.1), "teacher": SoftDistillation(2.0)})
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


# Once Keras and SciPy have started, the backend that wrote the file is not importable.
CONTINUE = """
import sys
directory, wrote = sys.argv[1:]
import keras, numpy as np
import keras_vitx
sys.modules[wrote] = None
model = keras.saving.load_model(f"{directory}/model.keras")
data = np.load(f"{directory}/data.npz")
print(int(keras.ops.convert_to_numpy(model.optimizer.iterations)))
print(model.jit_compile)
labels = {"head": data["head"], "teacher": data["teacher"]}
loss = model.train_on_batch(data["images"], labels)
history = model.fit(data["images"], labels, verbose=0).history
assert np.isfinite(history["loss"][0]) and "accuracy" in history
np.savez(f"{directory}/continued.npz", loss[0], *model.get_weights())
"""


def test_another_backend_goes_on(tmp_path):
    # Each backend reads what one other has written, after one step, and takes two more.
    other = BACKENDS[BACKENDS.index(BACKEND) - 1]
    pytest.importorskip(other)
    model = compiled()
    model.train_on_batch(IMAGES, LABELS)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "data.npz", images=IMAGES, **LABELS)
    loss, _ = (model.train_on_batch(IMAGES, LABELS)[0] for _ in range(2))
    said = run_python(CONTINUE, tmp_path, BACKEND, backend=other).stdout.split()
    # "auto" compiles under JAX, but not under the others on a CPU.
    assert said[-2:] == ["1", str(other == "jax")]
    found_loss, *found = np.load(tmp_path / "continued.npz").values()
    close(found_loss, loss, 1e-4)
    for one, expected in zip(found, model.get_weights(), strict=True):
        # The optimizer's momenta and its position in the schedule are restored.
        np.testing.assert_allclose(one, expected, atol=2e-4)
