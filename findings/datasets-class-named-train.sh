#!/usr/bin/env bash
# Hugging Face datasets: a directory of images with one directory per class, bus, car and train (a class of CIFAR-100 and COCO).
# Guess: three classes in one split.
# Found (datasets 5.2.0): the directory `train` is taken for a split, the only one; the images of the other classes are not in the
#   dataset and there is no column `label`. No message. `drop_labels=False, data_files="**"` reads all three.
# Output: {'train': 3} ['image'] / with data_files: 9 images, bus car train
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q datasets==5.2.0 pillow==13.0.0 numpy==2.4.6
cd "$room"
HF_HOME="$room/cache" venv/bin/python - <<'EOF'
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
for name in ("bus", "car", "train"):
    Path("photos", name).mkdir(parents=True)
    for index in range(3):
        Image.new("RGB", (8, 8), (index, 0, 0)).save(f"photos/{name}/{index}.png")
found = datasets.load_dataset("imagefolder", data_dir="photos")
print({split: len(data) for split, data in found.items()}, list(found["train"].features))
assert {split: len(data) for split, data in found.items()} == {"train": 3}
assert list(found["train"].features) == ["image"]
whole = datasets.load_dataset("imagefolder", data_files="photos/**", drop_labels=False, split="train")
print("with data_files:", len(whole), whole.features["label"].names)
assert len(whole) == 9 and whole.features["label"].names == ["bus", "car", "train"]
EOF
