"""Networks are compared over paired seeds."""

import numpy as np
import pytest

import keras_vitx as kv
from keras_vitx.training import compare as module

pytestmark = pytest.mark.backend_free


def test_gains_are_those_of_scipy(monkeypatch, capsys):
    """Of three networks: gains, intervals and p by Holm's step-down method, by hand."""
    stats = pytest.importorskip("scipy.stats")
    accuracies = {"a": [0.50, 0.52, 0.51], "b": [0.55, 0.58, 0.54], "c": [0.51, 0.51, 0.52]}

    def fit(model, source, recipe, seed, **settings):
        assert settings == {"epochs": 1}
        return type("History", (), {"test": {"accuracy": accuracies[model][seed]}})

    monkeypatch.setitem(module.__globals__, "fit", fit)
    networks = {name: lambda classes, name=name: name for name in accuracies}
    a, b, c = kv.training.compare(networks, "fashion_mnist", seeds=3, epochs=1)
    assert a["accuracies"] == pytest.approx([50, 52, 51]) and "gain" not in a
    p = {}
    for row in (b, c):
        gains = 100 * np.subtract(accuracies[row["network"]], accuracies["a"])
        test = stats.ttest_1samp(gains, 0)
        assert row["gain"] == pytest.approx(gains.mean())
        assert (row["low"], row["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
        p[row["network"]] = test.pvalue
    assert b["p"] == pytest.approx(2 * p["b"]) and c["p"] == pytest.approx(max(p["c"], b["p"]))
    assert "b, seed 1: training 5 of 9" in capsys.readouterr().out
