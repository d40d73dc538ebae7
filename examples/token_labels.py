"""Train a Refined-ViT with labels of its patches and MixToken, as Refiner's advanced recipe.

    python examples/token_labels.py

Token labeling (Jiang et al., 2021): a convolutional network labels each patch of an image
beforehand, and the labels follow the image's flip. The class head learns the mean over the patches,
as in Refiner's released loss. MixToken exchanges a box of patches behind the patch embedding.
Refiner (Table 7) reaches 83.6 with RefinedViT_S by labels of an NFNet-F6 and the recipe "refiner"
with batch_size=512, drop_path=0.2, similarity=0.1, similarity_depth=12.
Takes about two minutes on two cores.
"""

import keras_vitx as kv

import keras
import numpy as np

EPOCHS, BATCH, SHAPE, GRID, CLASSES = 5, 64, (28, 28, 1), (7, 7), 10


class MixTokenBatches(keras.utils.PyDataset):
    """Batches of ((images, box), labels of both heads), with a new box for each batch."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels, self.random = images, labels, np.random.default_rng(0)

    def __len__(self):
        return len(self.images) // BATCH

    def __getitem__(self, index):
        rows = self.random.permutation(len(self.images))[:BATCH]
        images, labels = self.images[rows], self.labels[rows]  # (batch, rows, columns, classes)
        flip = self.random.random(BATCH) < 0.5
        images[flip], labels[flip] = images[flip, :, ::-1], labels[flip, :, ::-1]
        box = np.zeros(GRID, bool)
        box[kv.data.Mixing(mixup=0.0).draw(GRID, self.random)[1]] = True
        pooled, share = labels.mean((1, 2)), box.mean()
        head = (1 - share) * pooled + share * pooled[::-1]
        boxes = np.repeat(box.reshape(1, -1, 1), BATCH, 0)
        return (images, boxes), {"head": head, "aux_head": labels.reshape(BATCH, -1, CLASSES)}


keras.utils.set_random_seed(0)
images = keras.Input(SHAPE)
x = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(images)
x = keras.layers.MaxPooling2D(4)(x)
x = keras.layers.Conv2D(64, 3, padding="same", activation="relu")(x)
classifier = keras.layers.Dense(CLASSES, activation="softmax")
pooled = keras.layers.GlobalAveragePooling2D()(x)
annotator = keras.Model(images, classifier(pooled))
source = kv.data.load_dataset("fashion_mnist")
model = kv.RefinedViT(
    dim=48, depth=4, num_heads=3, patch_size=4, input_shape=SHAPE, classes=CLASSES, dense_head=True
)
split = source.train
inputs = kv.preprocess_input(split.images, model)
annotator.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
annotator.fit(inputs, split.labels, epochs=EPOCHS, verbose=2)
# The classifier before the pooling, as in ReLabel.
labels = keras.Model(images, classifier(x)).predict(inputs, verbose=0)

# The model's list of layers once more, with the exchange of patches in between.
box = keras.Input((GRID[0] * GRID[1], 1), dtype="bool")
x, (*body, head, _) = model.inputs[0], model.layers  # Without the softmax.
for layer in body:
    x = layer(x)
    if layer.name == "patch_embed":
        x = keras.ops.where(box, keras.ops.flip(x, axis=0), x)
logits, patches = head.head(x[:, 0]), head.aux_head(x[:, 1:])
patches = keras.ops.where(box, keras.ops.flip(patches, axis=0), patches)  # Back again.
mixed = keras.Model([model.inputs[0], box], {"head": logits, "aux_head": patches})
loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
losses, weights = {"head": loss, "aux_head": loss}, {"head": 1.0, "aux_head": 0.5}
mixed.compile(keras.optimizers.AdamW(2e-3), losses, loss_weights=weights)
mixed.fit(MixTokenBatches(inputs, labels), epochs=EPOCHS, verbose=2)
print(f"test accuracy {kv.evaluate(model, source, 'test')['accuracy']:.1%}")
