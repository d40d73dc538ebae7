#!/usr/bin/env bash
# KerasHub: `ImageClassifier.from_preset` of a directory that Transformers wrote, a ViT with another activation and another epsilon.
# Guess: both are taken from config.json, or refused; pixels are normalized as preprocessor_config.json says.
# Found (KerasHub 0.32.0, Keras 3.15.1, Transformers 5.23.0, PyTorch 2.13.0): none of it. Only sizes are read: "relu" or "quick_gelu" becomes
#   GELU and an epsilon of .1 becomes 1e-6, without a message, so the logits are other ones, and the preprocessor returns the
#   pixels as they came. With GELU, the usual epsilon and images normalized by hand the logits are equal to 1e-6.
# Output, largest difference of logits of 1 or so: gelu 1e-6 or less, relu more than .01, epsilon more than .001 / pixels 128 stay 128
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q keras==3.15.1 torch==2.13.0 transformers==5.23.0 numpy==2.4.6 kagglehub sentencepiece
"$room/venv/bin/pip" install -q --no-deps keras-hub==0.32.0  # without TensorFlow, which images do not need
cd "$room"
KERAS_BACKEND=torch KERAS_HOME="$room" venv/bin/python -W ignore - <<'EOF'
import json
from pathlib import Path

import keras
import keras_hub
import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
images = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype("float32")
processor = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5] * 3,
    "image_std": [0.25] * 3,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "rescale_factor": 1 / 255,
    "resample": 2,
}


def difference(**settings):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=3, **settings)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    model.save_pretrained("saved")
    Path("saved/preprocessor_config.json").write_text(json.dumps(processor))
    with torch.no_grad():
        expected = model(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
    classifier = keras_hub.models.ImageClassifier.from_preset("saved")
    logits = keras.ops.convert_to_numpy(classifier(images))
    return float(np.abs(logits - expected).max()), classifier


same, classifier = difference()
relu, epsilon = difference(hidden_act="relu")[0], difference(layer_norm_eps=0.1)[0]
pixels = classifier.preprocessor(np.full((1, 32, 32, 3), 128, "uint8"))
print("gelu", same, "relu", relu, "epsilon", epsilon, "pixels of 128:", np.unique(keras.ops.convert_to_numpy(pixels)))
assert same < 1e-5 and relu > 0.01 and epsilon > 1e-3
assert (keras.ops.convert_to_numpy(pixels) == 128).all()
EOF
