"""A SavedModel that takes image files, and a client of TensorFlow Serving's REST interface.

    keras-vitx export CaiT_Mini exported --weights cifar10 --preprocessing
    python examples/tensorflow_serving.py prepare exported models/photos/1
    docker run -p 8501:8501 -v "$PWD/models:/models" -e MODEL_NAME=photos tensorflow/serving
    python examples/tensorflow_serving.py localhost:8501/v1/models/photos cat.jpg dog.png

`prepare` adds a signature that takes JPEG and PNG files. The client uses the standard library, and
sends the files as base64 in JSON; the answer has one row of probabilities per image.
"""

import base64
import json
import sys
import urllib.request
from pathlib import Path


def prepare(source, directory):
    """Write a SavedModel of pixels with another default signature, of the contents of files."""
    import tensorflow as tf

    model = tf.saved_model.load(str(source))

    def probabilities(file):
        # It decodes PNG, too; with this inverse cosine transform, as Pillow decodes.
        image = tf.io.decode_jpeg(file, 3, dct_method="INTEGER_ACCURATE")
        return model.serve(image[None])[0]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def classify(image_bytes):
        # The images may differ in size, so they are run one by one.
        outputs = tf.map_fn(probabilities, image_bytes, fn_output_signature=tf.float32)
        return {"probabilities": outputs}

    tf.saved_model.save(model, str(directory), signatures={"serving_default": classify})


def classify(model, files):
    """Return the rows of the server's answer for image files."""
    instances = [{"b64": base64.b64encode(Path(file).read_bytes()).decode()} for file in files]
    body = json.dumps({"instances": instances}).encode()
    with urllib.request.urlopen(f"http://{model}:predict", body) as response:
        return json.load(response)["predictions"]


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(*sys.argv[2:])
    else:
        for file, row in zip(sys.argv[2:], classify(sys.argv[1], sys.argv[2:]), strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            print(f"{file}: class {best}, {row[best]:.1%}")
