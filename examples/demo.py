"""The main workflow on real images: fine-tune a checkpoint, look at its attention, export it.

    KERAS_BACKEND=torch python examples/demo.py

`make demo BACKEND=torch` also installs what it needs. Trains for one epoch on the bundled
Fashion-MNIST sample, from a checkpoint for CIFAR-10 and from random weights. The file is one that
the backend alone can write: a SavedModel, a program of `torch.export`, or under JAX Keras's own.
"""

import time
from pathlib import Path

import keras_vitx as kv

import keras
import numpy as np

EPOCHS = 1
PICTURES = 6
OUTPUT = Path("runs", time.strftime("demo-%Y%m%d-%H%M%S"))


def finetuned(weights, directory):
    """Train CaiT_Mini from a checkpoint, or from random weights; return it and its accuracies."""
    model = kv.CaiT_Mini(weights=weights)
    batches = kv.data.pipelines(dataset, model)
    # By index: the checkpoint's classes have other names.
    predictions = model.predict(batches.test, verbose=0).argmax(-1)
    before = np.mean(predictions == dataset.test.labels)
    history = kv.fit(model, batches, "finetune", output=directory, epochs=EPOCHS)
    return model, before, history.test["accuracy"]


keras.utils.set_random_seed(0)
dataset = kv.data.load_dataset("fashion_mnist")
print(
    f"CaiT_Mini on {keras.backend.backend()}: {len(dataset.train)} training and "
    f"{len(dataset.test)} test images of Fashion-MNIST"
)
model, *accuracies = finetuned("cifar10", OUTPUT / "finetuned")
_, *others = finetuned(None, OUTPUT / "from_scratch")
print("\ntest accuracy        before    after")
for start, (before, after) in {"CIFAR-10": accuracies, "random weights": others}.items():
    print(f"from {start:<15} {before:6.1%}   {after:6.1%}")

# The attention on one test image per class, titled with its class and the predicted one.
labels = dataset.test.labels
images = [dataset.test.images[np.argmax(labels == label)] for label in range(PICTURES)]
best = kv.predictor(model)(images, top=1)
titles = [
    f"{dataset.class_names[label]}\npredicted: {name} {probability:.0%}"
    for label, ((_, name, probability),) in enumerate(best)
]
inputs = kv.preprocess_input(images, model)
picture = OUTPUT / "class_attention.png"
kv.analysis.plot_class_attention(model, inputs, picture, np.stack(images), titles)

FILES = {"tensorflow": "saved_model", "torch": "model.pt2"}
if (name := FILES.get(keras.backend.backend())) is not None:
    exported = kv.export(model, OUTPUT / name)
    print(f"{name}, run without Keras: outputs within {exported.difference:.1e} of Keras's")
else:
    model.save(OUTPUT / "model.keras")
print(f"Model, history, attention and export: {OUTPUT}")
