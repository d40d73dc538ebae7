"""The top classes of photographs, by a SavedModel and TensorFlow alone.

    keras-vitx export CaiT_Mini served/1 --weights cifar10 --serving 3
    python examples/exported/with_tensorflow.py served/1 cat.jpg dog.png

The SavedModel decodes and preprocesses the files, and holds the names of the classes.
"""

import sys
from pathlib import Path

import tensorflow as tf

folder, *photographs = sys.argv[1:]
serve = tf.saved_model.load(folder).signatures["serving_default"]
outputs = serve(image_bytes=tf.constant([Path(path).read_bytes() for path in photographs]))
for path, *row in zip(photographs, outputs["classes"], outputs["probabilities"], strict=True):
    print(path)
    for name, probability in zip(*(column.numpy() for column in row), strict=True):
        print(f"  {name.decode():20} {probability:6.1%}")
