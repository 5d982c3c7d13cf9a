"""FedAvg, FedProx, FedOpt and SCAFFOLD with clients of unequal sizes, against the papers' algorithms in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from erm_worlds import EXACT, logistic_data, logistic_objective, run, split
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.oracle.dry_run import recording_oracle
from fedpriv.oracle.synthetic import random_oracle
from fedpriv.planning.compatibility import check_linear

SIZES = (5, 20, 95)
DATA = split(*logistic_data(sum(SIZES)), SIZES)
RATE, STEPS, ROUNDS, MU = 2.0, 4, 6, 0.5
SHARES = {"examples": np.array(SIZES) / sum(SIZES), "clients": np.full(len(SIZES), 1 / len(SIZES))}

# hardly any noise, and bounds that nothing reaches: the algorithm is the same wherever the boundary stands
WIDE = {"noise_multiplier": 1e-12, "clip": fp.Clip(100.0)}
BOUNDARIES = {
    "none": EXACT,
    "gradient": fp.Privacy(**WIDE),
    "gradient, client": fp.Privacy(unit="client", **WIDE),
    "message": fp.Privacy(noise_on="message", unit="client", **WIDE),
}


def local_steps(w: np.ndarray, client: int, mu: float = 0.0, correction: float | np.ndarray = 0.0) -> np.ndarray:
    """`STEPS` gradient steps on a client's own mean loss; the change."""
    x = w.copy()
    for _ in range(STEPS):
        x = x - RATE * (logistic_objective(x, *DATA[client])[1] + mu * (x - w) + correction)
    return x - w


def averaged(shares: np.ndarray, mu: float = 0.0) -> list[np.ndarray]:
    """FedAvg (McMahan et al., algorithm 1), and FedProx (Li et al., algorithm 2) with gradient steps inside."""
    w, path = np.zeros(5), []
    for _ in range(ROUNDS):
        w = w + sum(p * local_steps(w, i, mu) for i, p in enumerate(shares))
        path.append(w)
    return path


def adam(shares: np.ndarray) -> list[np.ndarray]:
    """FedAdam (Reddi et al., algorithm 2)."""
    w, m, v, path = np.zeros(5), np.zeros(5), np.full(5, 1e-6), []
    for _ in range(ROUNDS):
        change = sum(p * local_steps(w, i) for i, p in enumerate(shares))
        m, v = 0.9 * m + 0.1 * change, 0.99 * v + 0.01 * change**2
        w = w + 0.1 * m / (np.sqrt(v) + 1e-3)
        path.append(w)
    return path


def with_controls(shares: np.ndarray) -> list[np.ndarray]:
    """SCAFFOLD (Karimireddy et al., algorithm 1, option II), its means weighted."""
    w, controls, path = np.zeros(5), np.zeros((len(SIZES), 5)), []
    for _ in range(ROUNDS):
        mean = shares @ controls
        changes = np.array([local_steps(w, i, correction=mean - controls[i]) for i in range(len(SIZES))])
        controls = controls - mean - changes / (STEPS * RATE)
        w = w + shares @ changes
        path.append(w)
    return path


METHODS: dict[str, tuple[Callable[[str], fp.Strategy], Callable[[np.ndarray], list[np.ndarray]]]] = {
    "fedavg": (lambda by: fp.fedavg(RATE, STEPS, weighting=by), averaged),
    "fedprox": (lambda by: fp.fedprox(RATE, MU, STEPS, weighting=by), lambda shares: averaged(shares, MU)),
    "fedopt": (lambda by: fp.fedopt(RATE, STEPS, server_learning_rate=0.1, weighting=by), adam),
    "scaffold": (lambda by: fp.scaffold(RATE, STEPS, weighting=by), with_controls),
}


@pytest.mark.parametrize("at", BOUNDARIES)
@pytest.mark.parametrize("weighting", SHARES)
@pytest.mark.parametrize("name", METHODS)
def test_unequal_clients_equal_paper_algorithm(name: str, weighting: str, at: str):
    strategy, paper = METHODS[name]
    path = run(strategy(weighting), DATA, ROUNDS, BOUNDARIES[at])
    np.testing.assert_allclose(path, paper(SHARES[weighting]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_default_weighting_is_by_examples(name: str):
    default = {"fedprox": {"proximal_mu": MU}, "fedopt": {"server_learning_rate": 0.1}}.get(name, {})
    path = run(getattr(fp, name)(RATE, local_steps=STEPS, **default), DATA, ROUNDS)
    np.testing.assert_allclose(path, run(METHODS[name][0]("examples"), DATA, ROUNDS), atol=0, rtol=0)
    assert np.abs(path[-1] - run(METHODS[name][0]("clients"), DATA, ROUNDS)[-1]).max() > 1e-3


@pytest.mark.parametrize("weighting", SHARES)
def test_one_local_step_equals_gradient_step(weighting: str):
    """Also under secure aggregation, where the server receives only sums."""
    secure = fp.Privacy(trust=fp.SecureAggregation(3), **WIDE)
    w, expected = np.zeros(5), []
    for _ in range(ROUNDS):
        w = w - RATE * sum(p * logistic_objective(w, *data)[1] for p, data in zip(SHARES[weighting], DATA, strict=True))
        expected.append(w)
    for privacy in (EXACT, secure, *BOUNDARIES.values()):
        path = run(fp.fedavg(RATE, weighting=weighting), DATA, ROUNDS, privacy)
        np.testing.assert_allclose(path, expected, atol=1e-6, rtol=0)


def test_weighted_message_norm_within_clip():
    """95 of 120 examples weigh 2.4 times as much as the mean client, and no message is longer than the bound."""
    bound, sent = 0.3, list[torch.Tensor]()

    class RecordingStar(fp.Star):
        def mean(self, rows: torch.Tensor) -> torch.Tensor:
            sent.append(rows.clone())
            return super().mean(rows)

    for strategy in (fp.fedavg(RATE, STEPS), fp.scaffold(RATE, STEPS)):
        clients = fp.make_clients(LogisticRegression(5), resolve_loss("logistic"), [TensorDataset(*d) for d in DATA])
        privacy = fp.Privacy(noise_on="message", unit="client", noise_multiplier=1e-9, clip=fp.Clip(bound))
        fp.train(clients, strategy, privacy, rounds=2, network=RecordingStar(3), compute=fp.Compute(dtype="float64"))
    lengths = torch.stack([rows.norm(dim=1) for rows in sent if rows.shape[1] == 5])
    assert float(lengths.max()) == pytest.approx(bound, abs=1e-6)
    assert float(lengths[0, 0]) < bound  # the smallest client's first message is shorter


def test_scaffold_cohorts_reach_optimum_of_all():
    """The control variates of absent clients count, so the fixed point does not depend on the cohorts."""
    network = fp.Star(3, fp.FixedCohort(2))
    clients = fp.make_clients(
        nn.Linear(1, 1, bias=False).double(),
        nn.MSELoss(),
        [
            TensorDataset(torch.full((m, 1), a).double(), torch.full((m, 1), b).double())
            for m, a, b in zip((1, 2, 5), (1.0, 2.0, 0.5), (1.0, -1.0, 2.0), strict=True)
        ],
    )
    strategy = fp.scaffold(0.05, 5)
    training = fp.Training(
        clients, strategy, EXACT, rounds=60, network=network, compute=fp.Compute(dtype="float64"), seed=0
    )
    for _ in training:
        pass
    m, a, b = np.array([1, 2, 5]), np.array([1.0, 2.0, 0.5]), np.array([1.0, -1.0, 2.0])
    optimum = (m * a * b).sum() / (m * a * a).sum()
    assert float(training.progress.models[0]) == pytest.approx(optimum, abs=1e-6)
    weighted = 3 * m / m.sum() * 2 * a * (a * optimum - b)
    np.testing.assert_allclose(training.progress.server.controls[:, 0].numpy(), weighted, atol=1e-5)


def test_unknown_weighting_raises():
    for make in (lambda: fp.fedavg(0.1, weighting="size"), lambda: fp.scaffold(0.1, weighting="size")):  # pyright: ignore[reportArgumentType]
        with pytest.raises(fp.ConfigError, match=r"strategy\.weighting = .*'examples' or 'clients'"):
            make()


@pytest.mark.parametrize("weighting", SHARES)
def test_secure_aggregation_local_steps_raise(weighting: str):
    for strategy in (fp.fedavg(RATE, 2, weighting=weighting), fp.scaffold(RATE, weighting=weighting)):
        with pytest.raises(fp.ConfigError, match=r"privacy\.trust"):
            run(strategy, DATA, 2, fp.Privacy(epsilon=3, trust=fp.SecureAggregation(3)))


def test_weights_inside_linear_step_raise():
    class Weighted(type(fp.fedavg(0.1).local_step)):
        linear = True

        def __call__(self, received, state, oracle):
            return -oracle.weights.unsqueeze(1) * oracle.client_gradient(received), state

    made = fp.Strategy(Weighted(0.1), fp.fedavg(0.1).aggregator)
    check_linear(fp.fedavg(0.1), 3, fp.Star(3))
    with pytest.raises(fp.ConfigError, match="declares linear = True"):
        check_linear(made, 3, fp.Star(3))


def test_random_oracle_result_shapes() -> None:
    oracle, params = random_oracle(3, 1, 1.0), torch.zeros(3, 2, dtype=torch.float64)
    objective, constraints = oracle.exact(params)
    assert oracle.gradient(params).shape == params.shape
    assert (objective.shape, constraints.shape) == ((3,), oracle.equality.shape)
    assert oracle.statistic(params, "constraints").shape == oracle.equality.shape


def test_plan_counts_gradient_evaluations() -> None:
    oracle, params = recording_oracle(fp.Privacy(noise_multiplier=1.0), SIZES), torch.zeros(3, 2)
    oracle.begin_round(0, torch.arange(3))
    oracle.gradient(params)
    assert list(oracle.engine.evaluations) == [sum(SIZES)]
    oracle.begin_round(1, torch.arange(3))
    oracle.gradient_difference(params, params)
    assert list(oracle.engine.evaluations) == [sum(SIZES), 2 * sum(SIZES)]
