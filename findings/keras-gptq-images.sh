#!/usr/bin/env bash
# Keras's GPTQ with images as calibration data: flat arrays of one image each, `sequence_length` numbers long, `num_samples` of them.
# Guess: the network sees the images that it is given, in each process the same; `group_size=-1` is one scale per output of any layer.
# Found (Keras 3.15.1, JAX 0.10.2): the images are joined to one row of integers, and cut where a hash of a string says, which differs
#   from process to process: samples are the end of an image and the beginning of the next (keras-team/keras#23514 mends the hash).
#   Images in [0, 1) are all zeros. With `group_size=-1`, as with any that does not divide 128, a layer of more than 128 inputs is an
#   error about shapes.
# Output: samples that are images: 0 or 1 of 8, and their sum, another in each process / in [0, 1): 0.0 / 128 inputs: ok / 129: ValueError
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q keras==3.15.1 jax==0.10.2 numpy==2.4.6
cat > "$room/calibrate.py" <<'EOF2'
import sys

import keras
import numpy as np


def seen(images, inputs):
    """Return the samples that the first block of a network of one block sees."""
    samples, block = [], keras.layers.Dense(4, name="block")
    model = keras.Sequential([keras.Input((inputs,)), block])

    def before(sample):
        samples.append(np.asarray(sample))
        return keras.ops.cast(sample, "float32")

    config = keras.quantizers.GPTQConfig(
        dataset=list(images),
        tokenizer=object(),
        num_samples=8,
        sequence_length=inputs,
        group_size=-1,
        quantization_layer_structure={"pre_block_layers": [before], "sequential_blocks": [block]},
    )
    model.quantize("gptq", config=config)
    return np.concatenate(samples)


images = np.random.default_rng(0).integers(0, 256, (64, 128))
samples = seen(images, 128)
are_images = (samples[:, None] == images).all(-1).any(-1)
print("RESULT", are_images.sum(), samples.sum(), np.abs(seen(images / 256, 128)).max())
try:
    seen(np.zeros((64, 129)), 129)
    print("RESULT", "ok")
except ValueError as error:
    print("RESULT", type(error).__name__)
EOF2
for _ in 1 2; do
  KERAS_BACKEND=jax "$room/venv/bin/python" -W ignore "$room/calibrate.py" 2> /dev/null | grep --text -o "RESULT.*" | tee -a "$room/results"
done
"$room/venv/bin/python" - "$room/results" <<'EOF'
import sys

lines = [line.split()[1:] for line in open(sys.argv[1])]
(first, wide, second, again) = lines
assert max(first[0], second[0]) <= "1" and first[1] != second[1] and float(first[2]) == 0
assert wide == again == ["ValueError"]
EOF
