"""What bad input raises. The tables are in the other files here, one per part of the package:

    ERRORS = {
        ValueError: {
            "`batch_size` must be ... Received: 0": lambda classifier: fit(classifier, 0),
        },
    }

A row is what the message says ("..." stands for any words) and a call, whose parameters are
fixtures. A table with `BACKEND_FREE = True` above it is tested once, not with each backend.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest


def rows():
    for path in sorted(Path(__file__).parent.glob("*_errors.py")):
        if path.name == Path(__file__).name:
            continue
        table = importlib.import_module(path.stem)
        marks = [pytest.mark.backend_free] if getattr(table, "BACKEND_FREE", False) else []
        for error, calls in table.ERRORS.items():
            for words, call in calls.items():
                yield pytest.param(error, words, call, marks=marks, id=f"{path.stem}: {words[:70]}")


@pytest.mark.parametrize(("error", "words", "call"), list(rows()))
def test_one_clear_error(error, words, call, request):
    given = {name: request.getfixturevalue(name) for name in inspect.signature(call).parameters}
    pattern = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises(error, match=f"(?s){pattern}") as raised:
        call(**given)
    assert type(raised.value) is error
