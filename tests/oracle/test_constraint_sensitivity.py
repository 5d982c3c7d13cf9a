"""Private constraint values and gradients of the scalarised loss: what one record can change, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.evaluation.constrained.optimality import compute_half_width
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.constraints import example_losses
from fedpriv.privacy.clipping import ROUNDING
from fedpriv.strategies.solvers import Newton

FRACTION = 0.4
CONSTRAINTS = (fp.GroupLossGap(-1, 0.1, fraction=FRACTION), fp.ClassLossAtMost(1, 0.3, fraction=0.5))
BOUND = 2.0


def training(x: Tensor, y: Tensor, relation: str = "replace_one", backend: str = "loop", **more) -> fp.Training:
    other = TensorDataset(torch.ones(7, x.shape[1], dtype=torch.float64), torch.arange(7) % 2)
    clients = fp.make_clients(
        LogisticRegression(x.shape[1]),
        resolve_loss("logistic"),
        [TensorDataset(x, y), other],
        fp.Problem(constraints=CONSTRAINTS),
    )
    privacy = fp.Privacy(
        epsilon=3.0, relation=relation, statistics=fp.Statistics(BOUND, 0.3), clip=fp.Clip(0.7, more.pop("norm", "l2"))
    )
    compute = fp.Compute(backend, dtype="float64", device="cpu")
    rounds = more.pop("rounds", 6)
    return fp.Training(clients, fp.private_al(**more), privacy, rounds=rounds, seed=0, secret_seed=0, compute=compute)


def examples(seed: int, m: int = 20) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, 3)) * rng.choice([0.1, 1, 30], size=(m, 1))
    x[:, -1] = rng.random(m) < FRACTION
    return torch.tensor(x), torch.tensor((rng.random(m) < 0.5).astype(np.int64))


def answers(run: fp.Training, w: Tensor, pi: Tensor) -> tuple[Tensor, Tensor]:
    run.oracle.begin_round(0, torch.arange(2))
    return run.oracle.statistic(w, "constraints"), run.oracle.lagrangian_gradient(w, pi)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost", "linear"])
def test_release_change_bounded_by_sensitivity(relation: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed fixes the noise, so the change comes from the record, including its group and class."""
    monkeypatch.setattr("fedpriv.privacy.mechanisms.COARSE_GRID_BITS", 30)  # rounding is no part of the change
    rng = np.random.default_rng(0)
    reached = 0.0
    for seed in range(6):
        x, y = examples(seed)
        swapped = x.clone()
        swapped[3] = torch.tensor([*rng.normal(size=2) * 50, 1 - x[3, -1]])
        labels = y.clone()
        labels[3] = 1 - y[3]
        if relation == "add_remove":
            # sizes are public: a record that counts as zero takes its place, as its loss and gradient are not finite
            swapped[3, :2] = 1e308
        point = rng.normal(size=3) * 3
        if relation == "add_remove":
            point[:2] = 3, -3  # of such an input the score is inf - inf
        w, pi = torch.tensor(point).expand(2, -1), torch.tensor(rng.random((2, 3)) * 3)
        one, two = training(x, y, relation, backend), training(swapped, labels, relation, backend)
        (c1, g1), (c2, g2) = answers(one, w, pi), answers(two, w, pi)
        factors = one.oracle.engine.constraints.factors(
            one.oracle.engine._sampled_factors(one.plan.privacy.sampling, torch.arange(2))
        )
        # back from constraint values to the sums that were released: the gap is the first, the class loss the third
        moved = torch.stack([c1[0, 0] - c2[0, 0], c1[0, 2] - c2[0, 2]]).norm()
        assert moved <= one.plan.privacy.sensitivity_of(fp.Clip(1.0)) * factors[0] * (1 + 1e-4)
        reached = max(reached, float(moved / factors[0]))
        gradient_factor = 1 / len(y)
        assert (g1 - g2)[0].norm() <= one.plan.privacy.sensitivity * gradient_factor * (1 + 1e-4)
        torch.testing.assert_close(c1[1], c2[1], rtol=0, atol=0)  # nobody else's answers move
        torch.testing.assert_close(g1[1], g2[1], rtol=0, atol=0)
    assert reached > 0.1  # the bound is not empty


def test_worst_replacement_reaches_sensitivity() -> None:
    """One constraint: a record of the rarer group goes from no loss to the largest loss."""
    x, y = examples(0)
    x[:, -1] = (torch.arange(20) % 5 < 2).double()
    x[0] = torch.tensor([100.0, 0.0, 1.0])
    y[0] = 1
    bad = y.clone()
    bad[0] = 0

    def run(labels: Tensor) -> fp.Training:
        clients = fp.make_clients(
            LogisticRegression(3),
            resolve_loss("logistic"),
            [TensorDataset(x, labels)],
            fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1, fraction=FRACTION),)),
        )
        privacy = fp.Privacy(epsilon=3.0, statistics=fp.Statistics(BOUND, 0.3))
        compute = fp.Compute("loop", dtype="float64", device="cpu")
        return fp.Training(clients, fp.private_al(), privacy, rounds=6, seed=0, secret_seed=0, compute=compute)

    w = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64)
    one, two = run(y), run(bad)
    moved = (one.oracle.statistic(w, "constraints") - two.oracle.statistic(w, "constraints"))[0, 0].abs()
    # B / m_group, with the group's public size
    assert float(moved) == pytest.approx(BOUND / (FRACTION * 20), rel=1e-4)


def run_of_subset(members, x: Tensor, y: Tensor) -> fp.Training:
    clients = fp.make_clients(
        LogisticRegression(3),
        resolve_loss("logistic"),
        [TensorDataset(x, y)],
        fp.Problem(constraints=(fp.SubsetLossAtMost(members, 0.1, fraction=FRACTION),)),
    )
    privacy = fp.Privacy(epsilon=3.0, statistics=fp.Statistics(BOUND, 0.3))
    compute = fp.Compute("loop", dtype="float64", device="cpu")
    return fp.Training(clients, fp.private_al(), privacy, rounds=6, seed=0, secret_seed=0, compute=compute)


def test_subset_worst_replacement_reaches_sensitivity() -> None:
    """A record that enters the subset with the largest loss; the subset is smaller than the declared fraction."""
    x, y = examples(0)
    x[0] = torch.tensor([100.0, 0.0, 0.0])
    y[0] = 0
    joined = x.clone()
    joined[0, 2] = 1.0
    w = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64)
    outside, inside = (run_of_subset(lambda x, y: x[:, 2] > 0.5, rows, y) for rows in (x, joined))
    moved = (outside.oracle.statistic(w, "constraints") - inside.oracle.statistic(w, "constraints"))[0, 0].abs()
    # the centred loss is B / 2 instead of nothing
    assert float(moved) == pytest.approx(BOUND / 2 / (FRACTION * 20), rel=1e-4)


def test_subset_function_sees_one_example_alone() -> None:
    """A function that compares an example with the mean of its batch selects none, whatever the others are."""
    x, y = examples(0)
    one, two = (run_of_subset(lambda x, y: x[:, 0] > x[:, 0].mean(), rows, y) for rows in (x, x.roll(1, 0)))
    w = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(one.oracle.statistic(w, "constraints"), two.oracle.statistic(w, "constraints"))


def test_subset_function_with_memory_of_first_example_selects_by_own_example() -> None:
    """Another first example changes nothing: the function receives no example that it could remember."""

    def at_least_first() -> Callable[[Tensor, Tensor], Tensor]:
        seen = list[Tensor]()

        def members(x: Tensor, y: Tensor) -> Tensor:
            seen.append(x)
            return x[:, 0] >= seen[0][:, 0]

        return members

    x, y = examples(0)
    runs = [run_of_subset(at_least_first(), x.roll(shift, 0), y.roll(shift, 0)) for shift in range(3)]
    w = torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.float64)
    first, *others = [run.oracle.statistic(w, "constraints") for run in runs]
    for other in others:
        torch.testing.assert_close(other, first)


def test_losses_clipped_before_weighting() -> None:
    """Computed by hand, with negligible noise; in the larger group, weights leave room below the bound."""
    x, y = examples(0)
    x[:, -1] = torch.arange(20) % 10 > 0
    problem = fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1, fraction=0.9),))
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [TensorDataset(x, y)], problem)
    privacy = fp.Privacy(noise_multiplier=1e-7, statistics=fp.Statistics(BOUND, 0.3))
    compute = fp.Compute("loop", dtype="float64", device="cpu")
    run = fp.Training(clients, fp.private_al(), privacy, rounds=6, seed=0, secret_seed=0, compute=compute)
    w = torch.tensor([[0.5, -0.5, 0.2]], dtype=torch.float64)
    losses = torch.nn.functional.softplus(-(2 * y - 1) * (x @ w[0]))
    ones, clipped = x[:, -1] > 0.5, losses.clamp(0, BOUND)
    assert bool((losses[ones] > BOUND).any())
    half = BOUND / 2
    gap = (clipped - half)[ones].sum() / (0.9 * 20) - (clipped - half)[~ones].sum() / (0.1 * 20)
    found = run.oracle.statistic(w, "constraints")[0]
    torch.testing.assert_close(found, torch.stack([gap - 0.1, -gap - 0.1]), rtol=0, atol=1e-4)


def test_noise_deviation_matches_declared() -> None:
    run = training(*examples(1), rounds=400)
    w = torch.zeros(2, 3, dtype=torch.float64)
    draws = []
    for t in range(400):
        run.oracle.begin_round(t, torch.arange(2))
        draws.append(run.oracle.statistic(w, "constraints"))
    found = torch.stack(draws).std(0)
    torch.testing.assert_close(found, run.oracle.engine.statistic_deviation(0), rtol=0.15, atol=0)


def test_sampled_batch_deviation_matches_formula() -> None:
    """One in q of 20 losses, each at most B / 2 from the centre over 8 (group 1) or 12 examples (group 0)."""
    x, y = examples(1)
    x[:, -1] = (torch.arange(20) < 8).double()
    problem = fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1, fraction=FRACTION),))
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [TensorDataset(x, y)], problem)
    privacy = fp.Privacy(noise_multiplier=1e-6, sampling=fp.Poisson(0.25), statistics=fp.Statistics(BOUND, 0.3))
    run = fp.Training(clients, fp.private_al(), privacy, rounds=6, seed=0, secret_seed=0)
    expected = ((1 / 0.25 - 1) * 20) ** 0.5 * (BOUND / 2) / 8
    torch.testing.assert_close(
        run.oracle.engine.statistic_deviation(0), torch.full((1, 2), expected, dtype=torch.float64), rtol=1e-4, atol=0
    )


def test_ledger_records_each_query_within_budget() -> None:
    run = training(*examples(2), measurements=3)
    list(run)
    names = [record.query for record in run.ledger.records]
    assert names == ["statistic:constraints", "lagrangian_gradient"] * 5 + ["statistic:constraints"] * 3
    values, gradients = run.ledger.records[:2]
    # 30 % of a round's budget: in squares of 1 / noise multiplier
    share = values.noise_multiplier**-2 / (values.noise_multiplier**-2 + gradients.noise_multiplier**-2)
    assert share == pytest.approx(0.3)
    assert (values.bound, gradients.bound) == (1 + ROUNDING, 0.7 * (1 + ROUNDING))
    assert 2.99 < run.spent().epsilon <= 3
    assert len(run.plan.records) == len(names)


def test_private_group_counts_raise() -> None:
    x, y = examples(3)
    sets = [TensorDataset(x, y)]
    problem = fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1),))
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), sets, problem)
    with pytest.raises(fp.ConfigError, match="public fraction"):
        fp.Training(clients, fp.private_al(), fp.Privacy(epsilon=1), rounds=4)
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), sets, problem)
    said = fp.Privacy(epsilon=1, statistics=fp.Statistics(public_counts=True))
    assert fp.train(clients, fp.private_al(), said, rounds=4).rounds == 4
    clients = [
        fp.Client(LogisticRegression(3), resolve_loss("logistic"), DataLoader(sets[0]), public_size=10, problem=problem)
    ]
    with pytest.raises(fp.ConfigError, match="public counts reveal whether an example is present"):
        fp.Training(clients, fp.private_al(), replace(said, relation="add_remove"), rounds=4)


@pytest.mark.parametrize("privacy", [fp.Privacy(epsilon=1), fp.Privacy(noise_on="none")], ids=["private", "exact"])
def test_objective_not_sum_of_losses_raises(privacy: fp.Privacy) -> None:
    x, y = examples(4)
    own = fp.Function(lambda model, inputs, targets: model.losses(inputs, targets).max().view(1))
    for problem in (fp.Problem(constraints=(own,)), fp.Problem(own, (fp.LossAtMost(0.3),))):
        clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [TensorDataset(x, y)], problem)
        with pytest.raises(fp.ConfigError, match=r"problem = 'Function'.*private_al accepts only sums of losses"):
            fp.Training(clients, fp.private_al(), privacy, rounds=4)


@pytest.mark.parametrize("backend", ["vmap", "ghost", "linear"])
def test_weighted_gradients_match_loop(backend: str) -> None:
    for norm in ("l1", "l2"):
        w, pi = torch.full((2, 3), 0.3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
        expected = answers(training(*examples(5), norm=norm), w, pi)
        found = answers(training(*examples(5), backend=backend, norm=norm), w, pi)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_private_al_without_noise_finds_optimum() -> None:
    """Multipliers belong to the mean objective in both; otherwise three clients would make them 3 times as large."""
    drawn = [examples(seed, 60) for seed in (6, 7, 8)]
    sets = [TensorDataset(x.clamp(-2, 2), y) for x, y in drawn]
    problem = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.5),))

    def run(strategy: fp.Strategy, rounds: int) -> dict:
        clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), sets, problem)
        compute = fp.Compute("linear", dtype="float64", device="cpu")
        return fp.train(
            clients, strategy, fp.Privacy(noise_on="none"), rounds=rounds, seed=0, compute=compute
        ).to_json()

    exact = run(fp.proximal_al(fp.Outer(10.0, 1e-3, 1e-3, 1e-4), solver=Newton()), 1000)
    private = run(fp.private_al(beta=1.0, max_multiplier=30.0, learning_rate=0.5, decay=0.0, average=8.0), 600)
    assert private["objective"] == pytest.approx(exact["objective"], abs=1e-3)
    assert private["max_violation"] < 1e-2
    np.testing.assert_allclose(private["multipliers"], exact["multipliers"], atol=2e-2)
    assert private["kkt"]["stationarity"] < 1e-2


@dataclass(frozen=True)
class LossEquals(fp.LossAtMost):
    """Of a user's own: mean loss equal to the bound."""

    equality: tuple[bool, ...] = (True,)


def test_equality_violation_two_sided() -> None:
    x, y = examples(6, 60)
    clients = fp.make_clients(
        LogisticRegression(3),
        resolve_loss("logistic"),
        [TensorDataset(x, y)],
        fp.Problem(constraints=(LossEquals(1.9),)),
    )
    run = fp.Training(clients, fp.private_al(), fp.Privacy(noise_multiplier=1e-3), rounds=4, seed=0, secret_seed=0)
    shown = [report.metrics["worst_estimate"] for report in run]
    result = run.result().to_json()
    assert result["constraint_estimates"][0][0] < -0.5
    assert result["max_violation_estimate"] == pytest.approx(-result["constraint_estimates"][0][0])
    assert shown[-1] == pytest.approx(result["max_violation_estimate"], rel=1e-5)


def test_rounds_differ_from_strategy_raises() -> None:
    x, y = examples(6)
    sets, problem = [TensorDataset(x, y)], fp.Problem(constraints=CONSTRAINTS)
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), sets, problem)
    with pytest.raises(fp.ConfigError, match=r"rounds = 6: exceeds the 5 rounds for which private_al was created"):
        fp.Training(clients, fp.private_al(5), fp.Privacy(epsilon=3), rounds=9)


def test_private_al_without_constraints_raises() -> None:
    x, y = examples(6)
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("logistic"), [TensorDataset(x, y)])
    with pytest.raises(fp.ConfigError, match=r"problem\.constraints.*add constraints"):
        fp.Training(clients, fp.private_al(), fp.Privacy(epsilon=3), rounds=5)


class MixesExamples(torch.nn.Module):
    """A user's model that subtracts the mean of the batch; its layers do not show this."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs - inputs.mean(0, keepdim=True))


def test_mixing_model_evaluated_alone_and_raises() -> None:
    """Otherwise one record would change all losses, and clipping its own loss would not bound the change."""
    x, y = examples(7)
    other = x.clone()
    other[3, :2] = 1e3
    model, loss, w = MixesExamples(), resolve_loss("logistic"), torch.tensor([[5.0, -5.0, 1.0]], dtype=torch.float64)
    everyone = torch.ones(1, len(y), dtype=torch.bool)
    batches = [Batch(torch.zeros(1, dtype=torch.long), inputs[None], y[None], everyone) for inputs in (x, other)]
    found = [example_losses(Functional(model, loss), w, batch) for batch in batches]
    # a batch of one less its mean is zero, whatever it is: so are the scores, with 1e3 in a record or without
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
    clients = fp.make_clients(model, loss, [TensorDataset(x, y)], fp.Problem(constraints=(fp.LossAtMost(0.3),)))
    with pytest.raises(fp.ConfigError, match=r"'MixesExamples': .*depends on the other examples"):
        fp.Training(clients, fp.private_al(), fp.Privacy(epsilon=3), rounds=6)


@pytest.mark.parametrize(
    ("mechanism", "norm", "sampling"),
    [
        (fp.Gaussian(), "l2", fp.FullBatch()),
        (fp.Laplace(), "l1", fp.FullBatch()),
        (fp.Gaussian(), "l2", fp.Poisson(0.3)),
        (fp.Gaussian(), "l2", fp.FixedSize(6)),
    ],
    ids=["gaussian", "laplace", "poisson", "fixed_size"],
)
def test_interval_coverage_at_least_nominal(mechanism, norm, sampling) -> None:
    """Without clipping, over many runs; for sampled batches the interval includes the sampling variance."""
    x, y = examples(7)
    x[:, :2] = x[:, :2].clamp(-1, 1)
    x[:, -1] = (torch.arange(20) < FRACTION * 20).double()  # the fraction is the true one
    multiplier = 1.0 if norm == "l1" else 0.1
    privacy = fp.Privacy(
        noise_multiplier=multiplier,
        mechanism=mechanism,
        sampling=sampling,
        clip=fp.Clip(1.0, norm),
        statistics=fp.Statistics(1.4, 0.3),
    )
    problem = fp.Problem(constraints=(fp.GroupLossGap(-1, 0.1, fraction=FRACTION),))
    model, loss = LogisticRegression(3), resolve_loss("logistic")
    w = torch.tensor([[0.2, -0.1, 0.3]], dtype=torch.float64)
    runs = 300
    clients = fp.make_clients(model, loss, [TensorDataset(x, y)], problem)
    compute = fp.Compute("loop", dtype="float64", device="cpu")
    strategy = fp.private_al(runs + 1, measurements=1)
    training = fp.Training(clients, strategy, privacy, rounds=runs + 1, seed=0, secret_seed=1, compute=compute)
    oracle = training.oracle
    truth = oracle.engine.problem(w)[1].detach()[0, 0]
    inside = 0
    for t in range(runs):
        oracle.begin_round(t, torch.arange(1))
        value = oracle.statistic(w, "constraints")[0, 0]
        width = compute_half_width(oracle, t, 1)[0, 0]
        inside += int((value - truth).abs() <= width)
    assert inside >= 0.93 * runs  # less than 0.95 by two standard deviations


def test_noise_scale_from_declared_size_only() -> None:
    def noise(true_size: int) -> list[list[float]]:
        data = TensorDataset(torch.randn(true_size, 3), torch.arange(true_size) % 2)
        problem = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.6, fraction=0.3), fp.LossAtMost(0.5)))
        client = fp.Client(
            LogisticRegression(3), resolve_loss("logistic"), DataLoader(data), problem=problem, public_size=20
        )
        privacy = fp.Privacy(epsilon=3.0, relation="add_remove")
        run = fp.Training([client], fp.private_al(), privacy, rounds=6, secret_seed=0)
        return run.oracle.engine.statistic_deviation(0).tolist()

    declared = noise(20)
    assert all(noise(true_size) == declared for true_size in range(5, 40))
