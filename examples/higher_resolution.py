"""Continue a training at a higher resolution, as DeiT and CaiT do.

    python examples/higher_resolution.py

A checkpoint for 32 x 32 pixels is opened for 48 x 48: there are 144 patches of 4 x 4 pixels in
place of 64, for which the position embeddings are resampled; all other weights fit as they are.
A short training with a low learning rate adapts them.
"""

import keras_vitx as kv

import keras

SIDE = 48

# At the resolution of the checkpoint.
small = kv.CaiT_Mini(weights="cifar10")
source = kv.data.load_dataset("fashion_mnist", validation_split=0.1)
kv.fit(small, source, "finetune", epochs=2)
kv.weights.save_safetensors(small, "fashion-32.safetensors")

# From its weights, with resampled positions.
large = kv.CaiT_Mini(weights="fashion-32.safetensors", input_shape=(SIDE, SIDE, 3))
before = kv.evaluate(large, source, "validation")
history = kv.fit(
    large,
    source,
    "higher_resolution",
    epochs=1,
    batch_size=64,
    learning_rate=1e-4,
)
after = history.history["val_accuracy"][-1]
print(f"on {keras.backend.backend()}, validation accuracy at {SIDE} x {SIDE}:")
print(f"{before['accuracy']:.1%} with resampled positions, {after:.1%} after training")
