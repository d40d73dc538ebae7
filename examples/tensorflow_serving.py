"""A client of TensorFlow Serving's REST interface, and a stand-in for the server.

    keras-vitx export CaiT_Mini models/photos/1 --weights cifar10 --serving 3
    python examples/tensorflow_serving.py serve models/photos    # or TensorFlow Serving itself
    python examples/tensorflow_serving.py localhost:8501/v1/models/photos cat.jpg dog.png

The client uses the standard library; one in C does the same with a socket: it sends the files as
base64 in JSON. The stand-in uses TensorFlow only. Like TensorFlow Serving, it runs the newest
version in the directory, and returns one row per image, of all outputs by name or of the only one.
"""

import base64
import json
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def classify(model, files):
    """Return the rows of the server's answer for image files."""
    instances = [{"b64": base64.b64encode(Path(file).read_bytes()).decode()} for file in files]
    body = json.dumps({"instances": instances}).encode()
    with urllib.request.urlopen(f"http://{model}:predict", body) as response:
        return json.load(response)["predictions"]


def predict(model, request):
    """Run a signature of a SavedModel on the instances of a request; return the answer's rows."""
    import tensorflow as tf

    signature = model.signatures[request.get("signature_name", "serving_default")]
    ((name, spec),) = signature.structured_input_signature[1].items()
    values = []
    for value in request["instances"]:
        # The name of the input may be left out, as it is the only one.
        value = value.get(name, value) if isinstance(value, dict) else value
        values.append(base64.b64decode(value["b64"]) if isinstance(value, dict) else value)
    outputs = signature(**{name: tf.constant(values, spec.dtype)})
    texts = {key: output.numpy().tolist() for key, output in outputs.items()}
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    return rows if len(texts) > 1 else [value for row in rows for value in row.values()]


def server(directory, port=8501):
    """Return an HTTP server of the newest version in a directory."""
    import tensorflow as tf

    versions = [path for path in Path(directory).iterdir() if path.name.isdigit()]
    model = tf.saved_model.load(str(max(versions, key=lambda path: int(path.name))))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                if self.path != f"/v1/models/{Path(directory).name}:predict":
                    raise ValueError(f"Unknown path {self.path}")
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = 200, {"predictions": predict(model, request)}
            except Exception as error:
                status, answer = 400, {"error": str(error)}
            body = json.dumps(answer, default=bytes.decode).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("localhost", port), Handler)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        server(sys.argv[2]).serve_forever()
    for file, row in zip(sys.argv[2:], classify(sys.argv[1], sys.argv[2:]), strict=True):
        best = zip(row["classes"], row["probabilities"], strict=True)
        print(file, *(f"{name} {probability:.1%}" for name, probability in best))
