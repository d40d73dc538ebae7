"""Train a Refined-ViT with labels of its patches and MixToken, as Refiner's advanced recipe.

    python examples/token_labels.py

A convolutional network labels each place of an image beforehand: its classifier is applied
before the pooling, as in ReLabel. The labels then follow the augmentation of their image.
Takes about two minutes on two cores.
"""

import keras
import numpy as np

import keras_vitx as kv

EPOCHS = 5
SHAPE = (28, 28, 1)

keras.utils.set_random_seed(0)
images = keras.Input(SHAPE)
x = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(images)
x = keras.layers.MaxPooling2D(4)(x)
x = keras.layers.Conv2D(64, 3, padding="same", activation="relu")(x)
classifier = keras.layers.Dense(10, name="head")
pooled = keras.layers.GlobalAveragePooling2D()(x)
annotator = keras.Model(images, classifier(pooled), name="annotator")
annotator.preprocessing = kv.Preprocessing(mean=(0.286,), std=(0.353,))

source = kv.data.load_dataset("fashion_mnist")
kv.fit(annotator, source, epochs=EPOCHS, learning_rate=3e-3, verbose=2)

# Logits on a grid of 7 x 7 per image, of which the three highest are kept.
dense = keras.Model(images, classifier(x))
split = source.train
logits = dense.predict(kv.preprocess_input(split.images, annotator), verbose=0)
highest = np.argsort(logits, axis=-1)[..., -3:]
scores = np.take_along_axis(logits, highest, axis=-1)
labels = {split.id(i): (scores[i], highest[i]) for i in range(split.size)}
print(f"labels of {len(labels)} images, a grid of {scores.shape[1]} x {scores.shape[2]} each")

model = kv.RefinedViT(
    dim=48, depth=4, num_heads=3, patch_size=4, input_shape=SHAPE, classes=10, dense_head=True
)
kv.fit(
    model,
    source,
    token_labels=kv.training.TokenLabels(labels, model, from_logits=True),
    mix_token=True,
    learning_rate=2e-3,
    epochs=EPOCHS,
    verbose=2,
)
accuracy = kv.evaluate(model, source, "test")["accuracy"]
print(f"test accuracy {accuracy:.1%}")
