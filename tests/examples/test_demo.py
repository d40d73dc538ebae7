"""The accuracies that the README gives for `make demo`."""

import re
import runpy

import pytest
from harness import BACKEND, ROOT

pytestmark = pytest.mark.backend_free


@pytest.mark.skipif(BACKEND != "torch", reason="the README has PyTorch's figures")
def test_the_readme_has_the_accuracies_of_a_run(tmp_path, monkeypatch, capsys):
    line = re.search(r"^make demo .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    stated = [float(value) for value in re.findall(r"([\d.]+) %", line)]
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")
    shown = re.findall(r"^from .* ([\d.]+)%$", capsys.readouterr().out, re.MULTILINE)
    # Another processor, or number of threads, sums in another order.
    assert stated == pytest.approx([float(value) for value in shown], abs=2)
    (directory,) = (tmp_path / "runs").iterdir()
    for name in ("finetuned/best.keras", "class_attention.png", "saved_model/saved_model.pb"):
        assert (directory / name).is_file()
