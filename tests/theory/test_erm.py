"""Private ERM without noise: independent optima, rates, and sums over clients that do not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from erm_worlds import l2_optimum, logistic_data, logistic_objective, run, split
from scipy.optimize import linprog, minimize
from sklearn.linear_model import LogisticRegression as Reference

import fedpriv as fp
from fedpriv.strategies.erm import RandomIterate, gradient_descent
from fedpriv.strategies.mirror_descent import EuclideanBall, L1Ball, MirrorStep, accelerated_mirror_descent
from fedpriv.strategies.proximal import L1, L2, Ball, Box, ElasticNet, Simplex
from fedpriv.strategies.svrg import AnchorBudget, Epochs, proven, svrg

LAM = 0.05
X, Y = logistic_data()
ONE = [(X, Y)]
OPTIMUM = l2_optimum(X, Y, LAM)


def gap(w: np.ndarray, lam: float = LAM) -> float:
    def value(v):
        return logistic_objective(v, X, Y)[0] + lam / 2 * v @ v

    return value(w) - value(OPTIMUM)


def test_gradient_descent_reaches_the_optimum_of_another_solver():
    found = run(gradient_descent(3.0, L2(LAM)), ONE, rounds=300)[-1]
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-8)


@pytest.mark.parametrize("h", [L2(LAM), Ball(0.7), ElasticNet(0.02, 0.03)])
def test_momentum_ends_at_the_same_optimum_and_stays_in_the_set(h):
    path = run(gradient_descent(3.0, h, momentum=0.6), ONE, rounds=300)
    np.testing.assert_allclose(path[-1], run(gradient_descent(3.0, h), ONE, rounds=600)[-1], atol=1e-8)
    if isinstance(h, Ball):
        # what is reported are proximal points, not the points beyond them at which the gradient is asked
        assert max(np.linalg.norm(w) for w in path) <= 0.7 * (1 + 1e-12)


def test_momentum_is_nesterovs_recursion_and_faster_on_an_ill_conditioned_problem():
    """Rows of unequal scale; theory: 1 - sqrt(mu / L) a step against 1 - mu / L."""
    scaled = X * torch.tensor([1.0, 0.3, 0.1, 0.1, 0.03], dtype=X.dtype)
    lam, eta, beta = 1e-3, 4.0, 0.9
    path = run(gradient_descent(eta, L2(lam), momentum=beta), [(scaled, Y)], rounds=100)
    x = y = np.zeros(X.shape[1])
    for found in path:
        new = (y - eta * logistic_objective(y, scaled, Y)[1]) / (1 + eta * lam)
        x, y = new, new + beta * (new - x)
        np.testing.assert_allclose(found, x, atol=1e-11)
    best = l2_optimum(scaled, Y, lam)

    def value(w):
        return logistic_objective(w, scaled, Y)[0] + lam / 2 * w @ w

    plain = run(gradient_descent(eta, L2(lam)), [(scaled, Y)], rounds=100)
    assert value(path[-1]) - value(best) < 0.05 * (value(plain[-1]) - value(best))


def test_momentum_and_a_random_iterate_exclude_each_other():
    with pytest.raises(fp.ConfigError, match=r"momentum.*random iterate"):
        gradient_descent(1.0, momentum=0.9, random_iterate=5)


def test_scikit_learn_agrees():
    """Its C is 1 / (n lam)."""
    reference = Reference(C=1 / (len(X) * LAM), fit_intercept=False, tol=1e-12, max_iter=10000).fit(X, Y)
    np.testing.assert_allclose(reference.coef_[0], OPTIMUM, atol=1e-6)


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize("smoothness", [None, 0.25])
def test_svrg_reaches_it_too(doubling: bool, smoothness: float | None):
    strategy = svrg(2.0, 2 if doubling else 20, L2(LAM), smoothness=smoothness, doubling=doubling)
    found = run(strategy, ONE, rounds=Epochs(2, True).rounds(7) if doubling else 600)[-1]
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-8)


def test_svrg_converges_linearly_with_mini_batches():
    """With exact anchors the gap falls by a factor an epoch, though each step sees a tenth of the data."""
    privacy = fp.Privacy(at="none", sampling=fp.Poisson(0.2))
    length = 40
    path = run(svrg(1.0, length, L2(LAM)), ONE, rounds=15 * length, privacy=privacy)
    gaps = np.array([gap(path[length * epoch - 1]) for epoch in range(1, 16)])
    known = gaps > 1e-13  # below, the gap is rounding
    assert known.sum() >= 4 and gaps[-1] < 1e-9
    t = np.arange(15)[known]
    slope, intercept = np.polyfit(t, np.log(gaps[known]), 1)
    assert slope < -0.5  # a factor of 0.6 an epoch or better
    assert np.abs(np.log(gaps[known]) - (slope * t + intercept)).max() < 3
    # plain steps on the same batches stall far away
    plain = run(gradient_descent(1.0, L2(LAM)), ONE, rounds=15 * length, privacy=privacy)
    assert gap(plain[-1]) > 1e-6


def test_epochs_of_svrg_plus_plus_double():
    epochs = Epochs(3, doubling=True)
    anchors = [t for t in range(epochs.rounds(4)) if epochs.is_anchor(t)]
    assert anchors == [0, 7, 20, 45]
    assert np.diff([*anchors, epochs.rounds(4)]).tolist() == [3 * 2**s + 1 for s in (1, 2, 3, 4)]
    assert [AnchorBudget(epochs, 5.0).share(t) for t in (0, 1, 6, 7, 8)] == [5, 1, 1, 5, 1]
    assert [t for t in range(12) if Epochs(4).is_anchor(t)] == [0, 4, 8]


@pytest.mark.parametrize(("smoothness", "convexity"), [(0.25, 0.01), (2.0, 0.5), (1.0, 1.0)])
def test_the_papers_epoch_is_the_shortest_that_its_theorem_allows(smoothness: float, convexity: float):
    """Equation 4 holds for it and fails for one step less; no other step size gets by with fewer."""

    def left(eta: float, m: int) -> float:
        return 1 / (eta * (1 - 8 * eta * smoothness) * convexity * m) + 8 * smoothness * eta * (m + 1) / (
            m * (1 - 8 * smoothness * eta)
        )

    eta, m = proven(smoothness, convexity)
    assert left(eta, m) < 0.5 <= left(eta, m - 1) + 1e-12
    for factor in (0.5, 0.9, 1.1, 1.9):
        assert proven(smoothness, convexity, learning_rate=factor * eta)[1] >= m
    with pytest.raises(fp.ConfigError, match="24 smoothness"):
        proven(smoothness, convexity, learning_rate=1 / (12 * smoothness))
    assert left(1 / (12 * smoothness), 10**9) > 0.5  # the paper's largest step never meets its own condition


def test_each_epoch_of_the_papers_length_halves_the_gap():
    """Theorem 4.2 without noise, on mini-batches."""
    lam = 1.0
    eta, m = proven(0.25, lam)
    privacy = fp.Privacy(at="none", sampling=fp.Poisson(0.1))
    path = run(svrg(eta, m, L2(lam)), ONE, rounds=4 * m, privacy=privacy)
    best = l2_optimum(X, Y, lam)
    gaps = [logistic_objective(w, X, Y)[0] + lam / 2 * w @ w for w in (np.zeros_like(best), *path[m - 1 :: m])]
    gaps = np.array(gaps) - (logistic_objective(best, X, Y)[0] + lam / 2 * best @ best)
    assert (gaps[1:] < 0.5 * gaps[:-1]).all()


def test_svrg_plus_plus_halves_the_gap_with_each_doubled_epoch():
    """Theorem 4.4 without noise, without strong convexity: at most A / 2^s after epoch s, and fitted so."""
    epochs, eta, count = Epochs(8, doubling=True), 4 / 13, 6
    privacy = fp.Privacy(at="none", sampling=fp.Poisson(0.2))
    path = run(svrg(eta, 8, doubling=True), ONE, rounds=epochs.rounds(count), privacy=privacy)
    best = l2_optimum(X, Y, 0.0)
    start, low = np.log(2), logistic_objective(best, X, Y)[0]
    s = np.arange(1, count + 1)
    gaps = np.array([logistic_objective(path[epochs.rounds(i) - 1], X, Y)[0] for i in s]) - low
    assert (gaps <= (2 * (start - low) + best @ best / (4 * eta / 3 * 8)) / 2**s).all()
    assert np.polyfit(s[2:], np.log2(gaps[2:]), 1)[0] < -1


def test_one_owner_or_many_is_the_same():
    """A mean over clients of scaled sums is the mean over all examples."""
    parts = split(X, Y, (20, 70, 30))
    for strategy in (
        gradient_descent(1.0, ElasticNet(0.01, 0.02)),
        svrg(1.0, 4, L2(LAM)),
        accelerated_mirror_descent(L1Ball(3.0), 0.25),
    ):
        one, many = (run(strategy, data, rounds=12) for data in (ONE, parts))
        np.testing.assert_allclose(many, one, atol=1e-12)


@pytest.mark.parametrize("h", [L1(0.02), ElasticNet(0.02, 0.03), Ball(0.7), Box(0.4), Simplex(1.0)])
def test_regularisers_meet_an_independent_solver(h):
    found = run(gradient_descent(3.0, h), ONE, rounds=400)[-1]
    np.testing.assert_allclose(found, _solve(h), atol=2e-6)


def _solve(h) -> np.ndarray:
    """Split x = u - v for the l1 norm; SLSQP or L-BFGS-B with the constraint otherwise."""
    d = X.shape[1]
    if isinstance(h, L1 | ElasticNet):
        l1, l2 = (h.lam, 0.0) if isinstance(h, L1) else (h.l1, h.l2)

        def value(uv):
            w = uv[:d] - uv[d:]
            loss, slope = logistic_objective(w, X, Y)
            slope = slope + l2 * w
            return loss + l1 * uv.sum() + l2 / 2 * w @ w, np.concatenate([slope + l1, l1 - slope])

        options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 20000}
        uv = minimize(value, np.full(2 * d, 0.1), jac=True, bounds=[(0, None)] * 2 * d, options=options).x
        return uv[:d] - uv[d:]
    constraints, bounds = [], None
    if isinstance(h, Ball):
        constraints = [{"type": "ineq", "fun": lambda w: h.radius**2 - w @ w, "jac": lambda w: -2 * w}]
    elif isinstance(h, Box):
        bounds = [(-h.bound, h.bound)] * d
    else:
        bounds = [(0, None)] * d
        constraints = [{"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}]
    found = minimize(
        logistic_objective,
        np.full(d, 0.2),
        args=(X, Y),
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    return found.x


def test_a_random_iterate_is_an_iterate_and_is_chosen_beforehand():
    path = run(gradient_descent(1.0), ONE, rounds=10)
    for seed in range(12):
        chosen = RandomIterate(10, seed).chosen
        got = run(gradient_descent(1.0, random_iterate=10, seed=seed), ONE, rounds=10)[-1]
        expected = path[chosen - 1] if chosen else np.zeros_like(path[0])
        np.testing.assert_array_equal(got, expected)
    assert {RandomIterate(4, seed).chosen for seed in range(50)} == {0, 1, 2, 3}


def test_a_random_iterate_has_a_small_gradient_on_a_nonconvex_loss():
    """Theorem 6.3 without noise: E ||grad F(x_m)||^2 <= 2 L (F(x_0) - F*) / T."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.5
    path = run(gradient_descent(0.5), ONE, rounds=60, model=model.double(), loss="cross_entropy")
    norms = []
    for w in path:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())
        loss = torch.nn.functional.cross_entropy(model(X), Y)
        norms.append(float(sum(g.square().sum() for g in torch.autograd.grad(loss, list(model.parameters())))))
    assert np.mean(norms) <= 2 * 2.0 * 1.5 / 60


def test_accelerated_mirror_descent_converges_at_the_rate_of_its_theorem():
    """Gap at most 8 L D^2 B_w(x*, x_0) / (T + 1)^2 (equation 76), and fitted at least as fast as 1 / T^2."""
    radius, smoothness, rounds = 4.0, 0.25, 200
    best = run(gradient_descent(4.0, Ball(radius)), ONE, rounds=1000)[-1]
    low = logistic_objective(best, X, Y)[0]
    path = run(accelerated_mirror_descent(EuclideanBall(radius), smoothness), ONE, rounds=rounds)
    gaps = np.array([logistic_objective(w, X, Y)[0] - low for w in path])
    t = np.arange(1, rounds + 1)
    divergence = best @ best / (2 * radius**2)
    assert (gaps <= 8 * smoothness * (2 * radius) ** 2 * divergence / (t + 1) ** 2 + 1e-12).all()
    window = slice(20, 120)
    slope = np.polyfit(np.log(t[window]), np.log(np.maximum(gaps[window], 1e-16)), 1)[0]
    assert slope < -1.8


@pytest.mark.slow
def test_accelerated_mirror_descent_recovers_a_sparse_vector_in_the_l1_ball():
    """100 unknowns, 3 of them not zero, 60 equations: the l1 ball of the right radius finds them (linprog agrees)."""
    stream = np.random.default_rng(1)
    dim, n = 100, 60
    truth = np.zeros(dim)
    truth[[7, 40, 88]] = 0.5, -0.3, 0.2
    a = stream.normal(size=(n, dim))
    b = a @ truth
    data = [(torch.from_numpy(a), torch.from_numpy(b))]
    largest = 2 * np.linalg.eigvalsh(a.T @ a / n)[-1]
    strategy = accelerated_mirror_descent(L1Ball(1.0), largest / 4)  # true smoothness in the l1 norm is smaller still
    model = torch.nn.Linear(dim, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    found = run(strategy, data, rounds=400, model=model, loss="mse")[-1]
    reference = linprog(np.ones(2 * dim), A_eq=np.hstack([a, -a]), b_eq=b).x
    np.testing.assert_allclose(reference[:dim] - reference[dim:], truth, atol=1e-8)
    assert np.abs(found - truth).max() < 0.01
    assert set(np.argsort(-np.abs(found))[:3]) == {7, 40, 88}
    assert np.abs(found).sum() <= 1 + 1e-9


@pytest.mark.parametrize("ball", [EuclideanBall(1.5), L1Ball(1.5)])
def test_mirror_descent_takes_the_papers_steps(ball: EuclideanBall | L1Ball):
    """a = (k + 2) / (4 L D^2), r = 1 / (2 a L D^2); D is the diameter, 3."""
    step, generator = MirrorStep(ball, 0.25), torch.Generator().manual_seed(0)
    heard, state = step.init(torch.zeros(1, 4, dtype=torch.float64))
    x = y = z = torch.zeros(1, 4, dtype=torch.float64)
    for k in range(6):
        a = (k + 2) / (4 * 0.25 * 9)
        r = 1 / (2 * a * 0.25 * 9)
        x = r * z + (1 - r) * y
        torch.testing.assert_close(heard, torch.cat([x, y], 1), rtol=0, atol=1e-12)
        g = torch.randn(1, 4, generator=generator, dtype=torch.float64)
        previous, z = z, ball.mirror_step(z, a * g)
        y = x + r * (z - previous) if isinstance(ball, L1Ball) else ball.project(x - 1.5**2 / (0.25 * 9) * g)
        heard, state = step(torch.cat([g, g], 1), fp.Star(1), state)


@pytest.mark.parametrize("dim", [1, 2, 3, 17])
def test_the_mirror_step_of_the_l1_ball_is_optimal(dim: int):
    """No feasible direction lowers the objective: compared with random feasible points and with vertices."""
    stream = np.random.default_rng(dim)
    ball = L1Ball(1.5)
    p, scale = ball._geometry(dim)

    def w(v: np.ndarray) -> float:
        return scale / 2 * np.linalg.norm(v, p) ** 2

    for _ in range(10):
        z = stream.normal(size=dim)
        z *= stream.uniform(0, 1.5) / np.abs(z).sum()
        slope = stream.normal(size=dim) * stream.choice([0.1, 10, 1000])
        u = ball.mirror_step(torch.from_numpy(z)[None], torch.from_numpy(slope)[None])[0].numpy()
        assert np.abs(u).sum() <= 1.5 * (1 + 1e-9)
        tangent = scale * np.sign(z) * np.abs(z) ** (p - 1) * np.linalg.norm(z, p) ** (2 - p)

        def value(v, slope=slope, tangent=tangent):
            return w(v) + (slope - tangent) @ v

        for _ in range(50):
            other = stream.normal(size=dim)
            other *= 1.5 * stream.uniform() / np.abs(other).sum()
            for step in (1e-3, 0.1, 1.0):
                assert value(u) <= value(u + step * (other - u)) + 1e-9 * max(1, abs(value(u)))


@pytest.mark.parametrize("ball", [EuclideanBall, L1Ball])
@pytest.mark.parametrize("radius", [0.0, -1.0, np.inf, np.nan])
def test_a_ball_without_a_size_is_refused(ball, radius: float):
    with pytest.raises(fp.ConfigError, match=r"strategy\.radius"):
        accelerated_mirror_descent(ball(radius), 0.25)


def test_a_start_outside_the_set_is_brought_in():
    model = torch.nn.Linear(5, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 3.0)
    for feasible in (EuclideanBall(0.5), L1Ball(0.5)):
        path = run(accelerated_mirror_descent(feasible, 0.25), ONE, rounds=5, model=model)
        for point in path:
            assert np.linalg.norm(point, 1 if isinstance(feasible, L1Ball) else 2) <= 0.5 + 1e-9
