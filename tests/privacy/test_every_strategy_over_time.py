"""Every strategy that asks one gradient a round runs with noise that cancels over time and between pairs.

A new strategy is in `STRATEGIES` and so in this test. Those that ask more, or share the budget in
their own way, are named here, and refused.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from privacy_worlds import clients_of, digits_of

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.privacy.correlated import CorrelatedNoise

SIZES, ROUNDS = (12, 9, 15), 6
OPTIONS = {
    **dict.fromkeys(("fedavg", "fedopt", "scaffold"), "learning_rate: 0.5"),
    "fedprox": "learning_rate: 0.5, proximal_mu: 0.1",
    "dp_svrg": "epoch_length: 2",
    "dp_svrg_plus_plus": "epoch_length: 1",
    "dp_accmd": "radius: 2",
}
REFUSED = {
    # anchors and differences have different noise
    "dp_svrg": "the matrix determines the noise, and every round has the same share",
    "dp_svrg_plus_plus": "the matrix determines the noise, and every round has the same share",
    # the noise shrinks with the step sizes
    "iadmm_output": "the matrix determines the noise, and every round has the same share",
    "dpop": "the matrix determines the noise, and every round has the same share",
    "private_al": "one gradient or message per round",
    "proximal_al": "the strategy needs exact query results, which are not private",
}
PRIVACY = (
    "{epsilon: 3, sampling: {cyclic: {blocks: 3}}, noise: {correlated: {banded: {band: 3}}}, "
    "trust: {pairwise: {colluders: 1, ratio: 3}}}"
)


def training_of(name: str, folder: Path | None = None, *, resume: bool = False) -> fp.Training:
    settings = [f"strategy={{name: {name}, {OPTIONS.get(name, '')}}}", f"privacy={PRIVACY}", f"rounds={ROUNDS}"]
    config = load_config(Path(__file__).parents[1] / "run.yaml", settings)
    clients = clients_of(digits_of(SIZES))
    if name in {"private_al", "proximal_al"}:
        for client in clients:
            client.problem = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    seeds = {"seed": 5, "secret_seed": 5, "checkpoint_every": 1}
    strategy = config.recipe().strategy
    return fp.Training(clients, strategy, config.promise(), rounds=ROUNDS, folder=folder, resume=resume, **seeds)


@pytest.mark.parametrize("name", sorted({*STRATEGIES} - {*REFUSED}))
def test_resumed_strategy_epsilon_equals_plan(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for resume in (False, True):
            training = training_of(name, tmp_path, resume=resume)
            assert isinstance(training.plan.privacy.noise, CorrelatedNoise)
            for report in training:
                if report.round == 4 and not resume:
                    break
            training.folder.close()  # pyright: ignore
    assert [record.round for record in training.ledger.records] == [*range(ROUNDS)]
    assert training.result().spent.epsilon == training.plan.spent().epsilon


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsupported_strategy_raises(name: str) -> None:
    with pytest.raises(fp.ConfigError, match=REFUSED[name]):
        training_of(name)
