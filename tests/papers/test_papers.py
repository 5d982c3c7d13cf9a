"""The papers' claims by name: known prices, and noise that is enough."""

from __future__ import annotations

import json
import math

import pytest
from matplotlib import image
from typer.testing import CliRunner

import fedpriv
from fedpriv.cli import app
from fedpriv.config.strategies import STRATEGIES
from fedpriv.errors import ConfigError
from fedpriv.papers.checking import check
from fedpriv.papers.claims.papers import ALGORITHMS, PAPERS, paper
from fedpriv.privacy.accounting import bounds

SMALL = {
    "dual_averaging": {"rounds": 200, "examples": 50},
    "dp_svrg": {"n_examples": 500, "epochs": 2, "epoch_length": 20},
    "dp_svrg_plus_plus": {"n_examples": 500, "epochs": 2},
    "iadmm": {"rounds": 200},
}


def run_claims(*words: str):
    return CliRunner().invoke(app, ["claims", *words])


def test_known_paper_epsilons():
    admm = check("iadmm", {}).claim
    assert (admm.basic_total, admm.tight_total) == (pytest.approx(1000), pytest.approx(53.7, abs=0.05))
    claim = check("gradient_tracking", {"rounds": 2000}).claim
    assert claim.basic_total == pytest.approx(1 / 0.99)  # epsilon / q2
    svrg = paper("dp_svrg")
    assert svrg.claim(**svrg.filled({})).tight_total == pytest.approx(1.9e4, rel=0.03)
    averaging = paper("dual_averaging")
    views = dict(averaging.claim(**averaging.filled({})).views)
    assert views["observer of messages, replace one"] == pytest.approx(6405, rel=2e-3)
    assert views["observer of messages, add or remove"] == pytest.approx(1508, rel=2e-3)


@pytest.mark.parametrize("name", [name for name, row in PAPERS.items() if row.history is not None])
def test_more_noise_factor_meets_stated_epsilon(name: str):
    row = paper(name)
    settings = row.filled(SMALL.get(name, {}))
    factor = row.more_noise(settings)
    assert factor is not None and row.history is not None
    history, delta = row.history(**settings)
    stated = row.claim(**settings).stated_epsilon
    more = {event._replace(noise=factor * event.noise): count for event, count in history.items()}
    less = {event._replace(noise=0.25 * factor * event.noise): count for event, count in history.items()}
    assert min(bounds.compute_tight_epsilons(more, delta).values()) <= stated * (1 + 1e-9)
    assert min(bounds.compute_tight_epsilons(less, delta).values()) > stated


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.variants.published])
def test_published_algorithm_name_has_claim(name: str):
    source = paper(name)
    assert source.filled({})[source.rounds] >= 1


def test_python_algorithm_name_has_claim():
    assert paper("inexact_admm") is paper("iadmm_trust") is paper("iadmm")
    assert paper("svrg") is paper("dp_svrg")
    for algorithm in ALGORITHMS:
        assert algorithm in STRATEGIES or callable(getattr(fedpriv, algorithm))


def test_claims_without_sufficient_noise():
    for name in ("dp_accmd", "proximal_al"):
        found = check(name, {})
        assert math.isinf(found.claim.tight_total) and found.more_noise is None
        assert "no finite amount" in found.rows()["noise needed"]


def test_claims_command_output_and_errors(tmp_path):
    picture = tmp_path / "claim.png"
    done = run_claims("iadmm", "rounds=200", "epsilon_bar=0.1", "--out", str(picture), "--json")
    facts = json.loads(done.stdout)
    assert facts["stated_epsilon"] == 0.1 and facts["basic_total"] == pytest.approx(20)
    assert 0.1 < facts["tight_total"] < 20 and facts["more_noise"] > 10
    assert image.imread(picture)[..., :3].std() > 0.05
    text = run_claims("proximal_al").stdout
    assert "stated epsilon  inf" in text and "no message has noise" in text
    for words, said in (
        (["nobody"], "choose one of iadmm"),
        (["iadmm", "rounds=2.5"], "whole number"),
        (["iadmm", "rho=1"], "is unknown; choose one of epsilon_bar"),
        (["iadmm", "delta=2"], "below 1"),
        (["dp_accmd", "--out", str(picture)], "the true epsilon is infinite: leave it out"),
        (["iadmm", "rounds=10", "--out", "a.pdf"], "ends in .png"),
    ):
        refused = run_claims(*words)
        assert refused.exit_code == 2 and said in " ".join(refused.stderr.split())


def test_true_epsilon_grows_over_rounds():
    row = paper("iadmm")
    points = row.over_rounds(row.filled({"rounds": 500}), 4)
    assert [number for number, _ in points] == [1, 8, 63, 500]
    totals = [claim.tight_total for _, claim in points]
    assert totals == sorted(totals) and totals[-1] > 5 * totals[0]
    assert {claim.stated_epsilon for _, claim in points} == {0.05}
    with pytest.raises(ConfigError):
        row.filled({"epsilon_bar": True})
