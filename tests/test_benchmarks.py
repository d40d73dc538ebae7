"""benchmarks/exact_claims.py."""

import exact_claims
import pytest

pytestmark = pytest.mark.backend_free


def test_exact_claims():
    for _, _, claim in exact_claims.CLAIMS:
        assert claim() < 1e-6
