import sys

import pytest

from keras_vitx.cli import __main__ as command


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["keras-vitx", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            command.main()
        written = capsys.readouterr()
        return stopped.value.code, written.out, written.err

    return run
