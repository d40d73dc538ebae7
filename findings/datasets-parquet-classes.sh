#!/usr/bin/env bash
# Hugging Face datasets: two Parquet files with the same classes in another order, loaded together.
# Guess: an error, as `concatenate_datasets` of the two gives.
# Found (datasets 5.2.0): the first file's names count for both, so every label of the second one is another class. Streaming does the
#   same, and `cast_column` to another order keeps the numbers, too. `align_labels_with_mapping` changes them.
# Output: Parquet: cat dog dog cat became cat dog cat dog; concatenate_datasets: ValueError
set -euo pipefail
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv"
"$room/venv/bin/pip" install -q datasets==5.2.0
cd "$room"
HF_HOME="$room/cache" venv/bin/python - <<'EOF'
import datasets
from datasets import ClassLabel, Dataset, Features

datasets.disable_progress_bars()


def made(*names):
    return Dataset.from_dict({"label": [0, 1]}, features=Features({"label": ClassLabel(names=list(names))}))


first, second = made("cat", "dog"), made("dog", "cat")
truth = [data.features["label"].int2str(label) for data in (first, second) for label in data["label"]]
first.to_parquet("1.parquet")
second.to_parquet("2.parquet")
files = {"data_files": ["1.parquet", "2.parquet"], "split": "train"}
for streaming in (False, True):
    data = datasets.load_dataset("parquet", streaming=streaming, **files)
    read = [data.features["label"].int2str(row["label"]) for row in data]
    print("Parquet:", *truth, "became", *read)
    assert truth == ["cat", "dog", "dog", "cat"] and read == ["cat", "dog", "cat", "dog"]
try:
    datasets.concatenate_datasets([first, second])
    raise SystemExit("concatenated")
except ValueError:
    print("concatenate_datasets: ValueError")
order = {"dog": 0, "cat": 1}
aligned = first.align_labels_with_mapping(order, "label")
assert list(aligned["label"]) == [1, 0]
EOF
