import pytest
from stub import PATH, stub


@pytest.mark.backend_free
def test_editors_see_the_parameters_of_today():
    assert PATH.read_text() == stub(), "run python tests/models/stub.py"
