"""A word of many meanings is translated where it has that meaning: `alpha` of a partition is no learning rate."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from error_texts import error_of

import fedpriv
from fedpriv.config import load_config
from fedpriv.settings.translations import find_settings_called

RUN = Path(__file__).parents[1] / "run.yaml"

NOT_TRANSLATED = [
    "data.alpha=0.5",
    "data.momentum=0.9",
    "model.momentum=0.1",
    "model.alpha=0.5",
    "model.weight_decay=0.1",
    "loss={name: cross_entropy, beta: 0.5}",
    "loss={name: cross_entropy, delta: 1.0}",
    "loss={name: cross_entropy, gamma: 2.0}",
    "loss={name: cross_entropy, epsilon: 0.1}",
    "network.alpha=0.1",
    "network.topology={name: ring, k: 4}",
    "network.activity={name: always, q: 0.5}",
    "problem.delta=0.1",
    "log.sigma=1.0",
]


@pytest.mark.parametrize("setting", NOT_TRANSLATED)
def test_ambiguous_word_in_other_section_untranslated(setting: str) -> None:
    message = error_of(lambda: load_config(RUN, [setting]))
    assert re.match(r"[a-z_.]+ = [0-9.]+: is unknown", message)
    assert "it is a setting of another part" not in message and "it is called" not in message


TRANSLATED = {
    "alpha=0.1": "write strategy.learning_rate=0.1",
    "strategy.alpha=0.1": "unknown",
    "strategy={name: fedavg, alpha: 0.1}": "it is called learning_rate here: write strategy.learning_rate: 0.1",
    "strategy={name: dp_gd, learning_rate: 0.1, beta: 0.9}": "it is called momentum here: write strategy.momentum: 0.9",
    "data.partition.alpha=0.5": "write 'data.partition={kind: dirichlet, n_clients: 10, alpha: 0.5}'",
    "data.partition={kind: dirichlet, n_clients: 10, beta: 0.5}": "it is called alpha here: write",
    "privacy.sigma=1.1": "write privacy.noise_multiplier=1.1",
    "model.batch_size=64": "it is a setting of another part: write",
    "client_num_per_round=3": "write 'network.cohort={fixed: 3}'",
    "sample_ratio=0.3": "write 'network.cohort={poisson: 0.3}'",
    "network.min_fit_clients=3": "all clients are simulated, so there is no waiting",
}


@pytest.mark.parametrize("setting", TRANSLATED)
def test_ambiguous_word_translated_in_its_section(setting: str) -> None:
    assert TRANSLATED[setting] in error_of(lambda: load_config(RUN, [setting]))


def dirichlet(**options: float) -> object:
    generator = torch.Generator().manual_seed(0)
    return fedpriv.data.partition("dirichlet", torch.arange(40) % 2, 4, generator, **options)


IN_PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "partition": (lambda: dirichlet(beta=0.5), "it is called alpha here: write alpha=0.5"),
    "star": (lambda: fedpriv.Star(4, alpha=0.5), "network.alpha = 0.5: is unknown; choose one of"),
    "flower's star": (lambda: fedpriv.Star(4, min_fit_clients=2), "so there is no waiting"),
    "clip": (lambda: fedpriv.Clip(1.0, momentum=0.9), "is unknown; choose one of bound, norm"),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_ambiguous_word_translated_in_python(name: str) -> None:
    call, message = IN_PYTHON[name]
    assert message in error_of(call)


def test_ambiguous_word_settings_by_section() -> None:
    def meant(place: str) -> list[str]:
        return [setting.parameter for setting in find_settings_called("alpha", place)]

    assert meant("") == ["learning_rate", "alpha"]
    assert meant("partition") == meant("data.partition") == ["alpha"]
    assert meant("strategy") == ["learning_rate"]
    assert not meant("strategy_of_mine")
