"""Objectives and constraints: values against numpy, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.evaluation.constrained.optimality import kkt
from fedpriv.models import LogisticRegression, MnistCNN, resolve_loss
from fedpriv.strategies.solvers import Newton


def data(seed: int, m: int = 12, dim: int = 3) -> TensorDataset:
    rng = np.random.default_rng(seed)
    x = np.c_[rng.normal(size=(m, dim - 1)), np.arange(m) % 3 == 0]
    return TensorDataset(torch.tensor(x), torch.tensor(np.arange(m) % 2))


def run(problem: fp.Problem, sizes: tuple[int, ...] = (12, 12, 9), rounds: int = 1, **settings) -> fp.Training:
    sets = [data(seed, m) for seed, m in enumerate(sizes)]
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), sets, problem)
    compute = fp.Compute("loop", dtype="float64", device="cpu")
    return fp.Training(clients, fp.proximal_al(**settings), fp.Privacy(noise_on="none"), rounds=rounds, compute=compute)


def logistic(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, -(2 * y - 1) * (x @ w))


def test_built_in_constraints_match_numpy():
    constraints = (fp.LossAtMost(0.5), fp.ClassLossAtMost(1, 0.2), fp.GroupLossGap(-1, 0.1))
    training = run(fp.Problem(fp.class_loss(0), constraints))
    w = np.array([0.3, -0.7, 0.2])
    objective, values = training.oracle.engine.problem(torch.tensor(w).expand(3, -1))
    for i, client in enumerate(training.population.clients):
        x, y = (t.numpy() for t in client.examples())
        losses, women = logistic(w, x, y), x[:, -1] < 0.5
        gap = losses[~women].mean() - losses[women].mean()
        expected = [losses.mean() - 0.5, losses[y == 1].mean() - 0.2, gap - 0.1, -gap - 0.1]
        np.testing.assert_allclose(values[i].numpy(), expected, atol=1e-12)
        assert objective[i] == pytest.approx(losses[y == 0].mean() / 3, abs=1e-12)


def test_alternating_problems_keep_client_order():
    """Two kinds of problems, and clients that share one stand apart: objectives add up to the mean."""
    of_zero = fp.Problem(fp.class_loss(0), (fp.LossAtMost(0.5),))
    of_one = fp.Problem(fp.class_loss(1), (fp.ClassLossAtMost(1, 0.2), fp.LossAtMost(0.1)))
    sets = [data(seed) for seed in range(3)]
    model, loss = LogisticRegression(3), resolve_loss("logistic")
    (first, third), (second,) = (
        fp.make_clients(model, loss, s, p) for s, p in ((sets[::2], of_zero), (sets[1:2], of_one))
    )
    clients = [first, second, third]
    training = fp.Training(
        clients, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=1, compute=fp.Compute("loop", dtype="float64")
    )
    w = np.array([0.3, -0.7, 0.2])
    objective, values = training.oracle.engine.problem(torch.tensor(w).expand(3, -1))
    for i, (x, y) in enumerate((t.numpy() for t in one.tensors) for one in sets):
        losses = logistic(w, x, y)
        assert objective[i] == pytest.approx(losses[y == i % 2].mean() / 3, abs=1e-12)
        wanted = [losses[y == 1].mean() - 0.2, losses.mean() - 0.1] if i == 1 else [losses.mean() - 0.5, 0.0]
        np.testing.assert_allclose(values[i].numpy(), wanted, atol=1e-12)


def test_function_constraint_matches_built_in():
    def class_one(model, inputs, targets):
        return (model.losses(inputs, targets)[targets == 1].mean() - 0.2).view(1)

    ready = run(fp.Problem(fp.class_loss(0), (fp.ClassLossAtMost(1, 0.2),))).oracle.engine.problem
    own = run(fp.Problem(fp.class_loss(0), (fp.Function(class_one),))).oracle.engine.problem
    rows = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for a, b in zip(ready(rows), own(rows), strict=True):
        torch.testing.assert_close(a, b)


def test_constraint_on_cnn_matches_torch():
    torch.manual_seed(0)
    x = torch.randn(8, 1, 4, 4)
    sets = [TensorDataset(x[:4], torch.tensor([0, 1, 0, 1])), TensorDataset(x[4:], torch.tensor([1, 1, 0, 0]))]
    model = MnistCNN((1, 4, 4), 2, (2,))
    problem = fp.Problem(None, (fp.ClassLossAtMost(1, 0.0),))
    clients = fp.make_clients(model, torch.nn.CrossEntropyLoss(), sets, problem)
    compute = fp.Compute("loop", device="cpu")
    training = fp.Training(clients, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=1, compute=compute)
    rows = training.population.params.clone()
    found = training.oracle.engine.problem(rows)[1].detach()
    for i, part in enumerate(sets):
        inputs, targets = part.tensors
        keep = targets == 1
        expected = torch.nn.functional.cross_entropy(model(inputs)[keep], targets[keep]).detach()
        torch.testing.assert_close(found[i, 0], expected)


def test_constraint_empty_group_raises():
    sets = [data(0), TensorDataset(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))]
    clients = fp.make_clients(
        LogisticRegression(3), resolve_loss("logistic"), sets, fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1),))
    )
    training = fp.Training(clients, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=3)
    with pytest.raises(fp.DataError, match=r"client 1: no example with feature -1 > 0\.5"):
        list(training)


def test_constraint_server_without_data_raises():
    server = fp.Problem(None, (fp.GroupLossGap(-1, 0.1),))
    nothing = TensorDataset(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(fp.DataError, match=r"client with constraints .* has no examples.*pass it"):
        fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [nothing], server)


def test_nan_constraint_raises_with_client():
    broken = fp.Function(lambda model, x, y: model.params[:1] * float("nan"))
    with pytest.raises(fp.DataError, match=r"client 0: its constraint value is \[nan\]"):
        list(run(fp.Problem(constraints=(broken,)), rounds=3))


def test_nan_constraint_gradient_raises_with_client():
    """The root of the norm has no derivative at zero, where a run starts: its value is finite, its gradient is not."""
    sets = [data(0), data(1)]
    fine, broken = fp.LossAtMost(0.9), fp.Function(lambda model, x, y: model.params.square().sum().sqrt().view(1) - 1)
    model, loss = LogisticRegression(3), resolve_loss("logistic")
    torch.nn.init.zeros_(next(model.parameters()))
    clients = [
        fp.make_clients(model, loss, [part], fp.Problem(constraints=(one,)))[0]
        for part, one in zip(sets, (fine, broken), strict=True)
    ]
    training = fp.Training(clients, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=3)
    with pytest.raises(fp.DataError, match=r"client 1: the gradient .* is \[nan, nan, nan\]"):
        list(training)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda model, x, y: model.params, r"shape \(3,\).*one value per entry"),
        (lambda model, x, y: model.losses(x, y).mean(), r"shape \(\).*one value per entry"),
        (lambda model, x, y: 0.5, r"shape float.*one value per entry"),
        (lambda model, x, y: model.losses(x, y).mean().detach().view(1), "no gradient.*differentiable"),
    ],
)
def test_constraint_function_bad_result_raises(function, message: str):
    with pytest.raises(fp.ConfigError, match=rf"constraints\..*{message}"):
        list(run(fp.Problem(constraints=(fp.Function(function),)), rounds=3))


def test_invalid_constraint_settings_raise():
    line = fp.LinearEquality(torch.ones(1, 2), torch.ones(1))
    for make, message in (
        (lambda: list(run(fp.Problem(constraints=(line,)))), r"shape \(1, 2\).: must have shape \(1, 3\)"),
        (lambda: fp.Problem(constraints=(lambda model, x, y: model.params[:1],)), r"fedpriv\.Function"),
        (lambda: fp.Problem(constraints=fp.LossAtMost(1)), "a tuple of constraints"),
        (lambda: fp.GroupLossGap(0, -0.1), "at_most = -0.1"),
        (lambda: fp.GroupLossGap(0, 0.1, fraction=1.0), r"fraction = 1\.0: must be a number in \(0, 1\)"),
        (lambda: fp.ClassLossAtMost(1, 0.1, fraction=2.0), r"fraction = 2\.0: must be a number in \(0, 1\]"),
        (
            lambda: list(run(fp.Problem(constraints=(fp.GroupLossGap(3, 0.1),)))),
            "feature = 3: must be a column of the inputs",
        ),
    ):
        with pytest.raises(fp.ConfigError, match=message):
            make()


def test_infeasible_constraints_reported():
    """A logistic loss is never below -0.1."""
    training = run(
        fp.Problem(constraints=(fp.LossAtMost(-0.1),)), rounds=3000, outer=fp.Outer(beta=1.0), solver=Newton()
    )
    list(training)
    result = training.result().to_json()
    assert result["status"] == "infeasible"
    assert not result["converged"]
    assert result["max_violation"] > 0.1


def test_slow_constraints_reported_as_stalled():
    """`w_0 >= 2`, with multipliers that hardly rise: other parameters would lessen the violation."""
    far = fp.Function(lambda model, x, y: 2 - model.params[:1])
    outer = fp.Outer(1e-3, tolerance=10.0)
    training = run(fp.Problem(constraints=(far,)), rounds=300, outer=outer, rho=300.0, solver=Newton())
    list(training)
    result = training.result().to_json()
    assert result["status"] == "stalled"
    assert not result["converged"]
    assert result["infeasible_point"] > 0.5
    assert result["max_violation"] > 1


def test_slowly_falling_violation_is_no_stall():
    outer, rounds, held = fp.Outer(), 0, 1.0
    for k in range(100):
        rounds, held = outer.stalls(rounds, held, 0.998**k)
        assert rounds <= 6
    for _ in range(20):
        rounds, held = outer.stalls(rounds, held, 0.998**99)
    assert rounds >= 20


def test_exact_queries_in_private_run_raise():
    with pytest.raises(fp.ConfigError, match=r"privacy\.noise_on.*exact query results.*set privacy.noise_on to 'none'"):
        fp.Training(
            fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [data(0)]),
            fp.proximal_al(),
            fp.Privacy(epsilon=1),
            rounds=3,
        )


def test_exact_run_recorded_as_non_private():
    training = run(fp.Problem(constraints=(fp.LossAtMost(0.5),)), rounds=4)
    list(training)
    records = training.ledger.records
    assert [record.round for record in records] == list(range(len(records)))
    assert all(record.non_private and record.query == "exact" for record in records)
    assert training.result().to_json()["epsilon"] == "inf"


def test_kkt_residual_matches_hand_computation():
    """min (w0^2 + w1^2) / 2 - w0 s.t. w0 + w1 = 1: solution (1, 0), multiplier 0."""
    objective = fp.Function(lambda model, x, y: (model.params.square().sum() / 2 - model.params[0]).view(1))
    line = fp.LinearEquality(torch.tensor([[1.0, 1.0]]), torch.tensor([-1.0]))
    model = torch.nn.Linear(2, 1, bias=False)
    one = [TensorDataset(torch.zeros(1, 2), torch.zeros(1))]
    clients = fp.make_clients(model, torch.nn.MSELoss(), one, fp.Problem(objective, (line,)))
    compute = fp.Compute(dtype="float64", device="cpu")
    problem = fp.Training(
        clients, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=1, compute=compute
    ).oracle.engine.problem
    at = kkt(problem, torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    assert (at.objective, at.stationarity, at.feasibility) == (-0.5, 0, 0)
    off = kkt(problem, torch.tensor([1.0, 0.5], dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64))
    assert (off.stationarity, off.feasibility) == (2.5, 0.5)


def test_function_constraint_on_model_outputs():
    """The mean score of a client's examples, by hand."""
    problem = fp.Problem(constraints=(fp.Function(lambda model, inputs, targets: model(inputs).mean().view(1)),))
    training = run(problem)
    w = np.array([0.3, -0.7, 0.2])
    _, values = training.oracle.engine.problem(torch.tensor(w).expand(3, -1))
    for i, client in enumerate(training.population.clients):
        x, _ = (t.numpy() for t in client.examples())
        assert float(values[i, 0]) == pytest.approx(float((x @ w).mean()))
