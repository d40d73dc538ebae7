"""Fine-tune a checkpoint on the bundled Fashion-MNIST sample.

    python examples/finetune.py

Takes about one minute per epoch on two cores.
"""

import keras_vitx as kv

model = kv.CaiT_Mini(weights="cifar10")
history = kv.fit(model, "fashion_mnist", epochs=1)
print(f"accuracy {history.history['val_accuracy'][-1]:.1%}")
model.save("fashion.keras")
