"""Private coefficients of a logistic regression with their covariance, which includes the noise.

Four private queries on the same rows x (with the constant feature) and labels y share one budget:

    curvature     B~ = B + E0,  B = mean of x x^T / 4, the information at 0; it bounds the information everywhere
    pilot         t: gradient descent with momentum, preconditioned by (B~ + b + lam)^-1, b about the norm of E0
    information   H~ = H + E,   H = mean of p (1 - p) x x^T at t,  p = 1 / (1 + exp(-x t))
    score         g~ = g + z,   g = mean of (p - y) x at t,        z of deviation s

The estimate is one Newton step from the pilot, `t + delta` with `delta = -(H~ + lam)^-1 (g~ + lam t)`. Its covariance
is `(H~ + lam)^-1 (H~ / n + s^2 I + e^2 / 2 (|delta|^2 I + delta delta^T)) (H~ + lam)^-1`: sampling, the noise of the
score, and the noise of the information with entries of deviation e (off the diagonal e / sqrt 2).

The preconditioner makes the pilot independent of the scale and the correlation of columns (Boehning and Lindsay 1988:
the lower bound algorithm). Without it, 30 steps on age, education and hours ended so far from the optimum that most
"95 %" intervals missed.

Whether the pilot was near the optimum is judged by delta, which is released. Near it, delta is the noise of pilot and
score, of variance `v (H + lam)^-2`; so `m = |(H~ + lam) delta|^2 / v` is chi-squared with d degrees of freedom. Let q
be its 99.9 % quantile. Of a longer step, the part `u = delta sqrt(1 - q / m)` is no noise. For a step u a Newton step
misses the optimum in coefficient j by at most (Bach 2010, proposition 1; r is |u| times the bound on rows)

    sqrt((H + lam)^-1_jj) sqrt(u^T (H + lam) u) (exp(r) - 1 - r) / r

and its square is added to the variance: a pilot that did not converge gives wide intervals.

Sources: van der Vaart 1998, section 5.7 (one-step estimators); Avella-Medina, Bradshaw, Loh 2023 (Annals of Statistics
51(5): private Newton steps, and intervals that include the noise). The intervals assume that the logistic model is
right and that n is large. The spectral norm of E is about e sqrt(2 d); there is no interval if the smallest eigenvalue
of H~ is below three times this norm.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtri, expit
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpriv.clients import make_clients
from fedpriv.models import LinearRegression, LogisticRegression, Loss, logistic
from fedpriv.planning import Compute
from fedpriv.privacy import Clip, Privacy
from fedpriv.privacy.accounting import gaussian
from fedpriv.runs import Result, train
from fedpriv.strategies import Strategy, WeightDecay, Zero, gradient_descent

Floats = NDArray[np.float64]
_SHARES = {"curvature": 0.1, "pilot": 0.25, "information": 0.35, "score": 0.3}  # of the squared sensitivity / noise
_STEPS = 60  # of the pilot
_MOMENTUM = 0.7
_AVERAGE = 2.0  # later steps of the pilot count more
_RELIABLE = 3.0  # smallest eigenvalue of the information over the spectral norm of its noise
_UNLIKELY = 1e-3  # probability that noise alone looks like a pilot that did not converge
_LONGEST = 30.0  # largest useful Newton step, times the bound on rows: its error grows with e to that power
_TINY = 1e-9  # eigenvalue below which columns determine each other
_SLACK = 1 + 1e-6  # of bounds that no row reaches, so that rounding clips none


@dataclass(frozen=True)
class Estimate:
    """Coefficients with their covariance.

    Attributes:
        params: The estimate, `[d]`.
        covariance: Its covariance, `[d, d]`, with the squared bound on the Newton step's error on the diagonal;
            infinite on the diagonal if the noise is too large for an estimate.
        steps: Gradient steps of the pilot.
        runs: The runs that made the queries, for their joint privacy cost.
        squared_norm: Mean squared norm of a row, noised, with the constant feature.
    """

    params: Floats
    covariance: Floats
    steps: int
    runs: tuple[Result, ...]
    squared_norm: float


@dataclass(frozen=True)
class Budget:
    """The noise of the queries; all of it is public.

    Attributes:
        n: Number of private rows.
        norm: Bound on the norm of a row with the constant feature.
        ratio: Sensitivity over noise of all query results together; infinite without noise.
    """

    n: int
    norm: float
    ratio: float

    @classmethod
    def of(cls, epsilon: float, delta: float, n: int, norm: float) -> Budget:
        """Returns the budget of queries that are (epsilon, delta)-private together."""
        ratio = math.inf
        if math.isfinite(epsilon):
            ratio = gaussian.compute_ratio(epsilon, delta)
        return cls(n, norm * _SLACK, ratio)

    def ratio_of(self, name: str) -> float:
        """Returns the sensitivity over the noise of the query of this name."""
        return self.ratio * math.sqrt(_SHARES[name])

    def vector_noise(self, name: str) -> float:
        """Returns the deviation of the noise in each entry of a mean gradient."""
        return 2 * self.norm / (self.ratio_of(name) * self.n)

    def matrix_noise(self, name: str) -> float:
        """Returns the deviation of the noise in each entry of a mean of p (1 - p) x x^T."""
        return 2 * self.norm**2 / 4 / (self.ratio_of(name) * self.n)

    def spectral_noise(self, name: str, d: int) -> float:
        """Returns about the spectral norm of the noise of a mean of p (1 - p) x x^T, `[d, d]`."""
        return self.matrix_noise(name) * math.sqrt(2 * d)


@dataclass(frozen=True)
class _Answers:
    """Makes queries on one data set.

    Attributes:
        inputs: Rows with the constant feature, `[n, d]`, of norm at most `budget.norm`.
        labels: 0 or 1, `[n]`.
        budget: The noise of the queries.
        delta: Delta of the guarantee.
        seed: Secret seed; None draws one.
    """

    inputs: Floats
    labels: NDArray[np.int64]
    budget: Budget
    delta: float
    seed: int | None

    def run(self, name: str, model: nn.Module, loss: Loss, data: TensorDataset, bound: float, plan: _Rounds) -> Result:
        """Trains on one client, with the share of the budget of the query of this name."""
        return train(
            make_clients(model, loss, [data]),
            plan.strategy,
            self.privacy(name, bound, plan.rounds),
            rounds=plan.rounds,
            secret_seed=self.seed_of(name),
            compute=Compute(backend="linear", device="cpu", dtype="float64"),
            progress=False,
        )

    def privacy(self, name: str, bound: float, rounds: int) -> Privacy:
        """Returns the privacy settings of the query of this name, which takes `rounds` rounds."""
        if math.isinf(self.budget.ratio):
            return Privacy(noise_on="none", delta=self.delta)
        noise = math.sqrt(rounds) / self.budget.ratio_of(name)
        return Privacy(noise_multiplier=noise, delta=self.delta, clip=Clip(bound))

    def seed_of(self, name: str) -> int | None:
        """Returns a separate seed for each query: no two share noise."""
        if self.seed is None:
            return None
        return int.from_bytes(hashlib.blake2b(f"{name} {self.seed}".encode(), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class _Rounds:
    strategy: Strategy
    rounds: int


@dataclass(frozen=True)
class _Preconditioned:
    """Nesterov's momentum along `matrix @ gradient`: `u = b u + g; x -= size matrix (g + b u)`.

    Attributes:
        matrix: Public, or computed from released query results, `[d, d]`, symmetric.
        beta: Share of the last direction in the next one.
    """

    matrix: Tensor
    beta: float

    @property
    def corrects(self) -> bool:
        """False."""
        return False

    def init(self, x: Tensor) -> Tensor:
        """Returns the direction u = 0."""
        return torch.zeros_like(x)

    def step(
        self, x: Tensor, gradient: Tensor, size: float, state: Tensor, variance: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Makes one step."""
        if x.shape[1] == 1 < len(self.matrix):  # a plan counts the queries of a model with one parameter
            return x, state
        direction = self.beta * state + gradient
        return x - size * (gradient + self.beta * direction) @ self.matrix.to(x), direction


def estimate(
    inputs: Floats,
    labels: NDArray[np.int64],
    *,
    norm: float,
    epsilon: float,
    delta: float,
    lam: float = 0.0,
    steps: int | None = None,
    seed: int | None = None,
) -> Estimate:
    """Returns private coefficients of a logistic regression with their covariance.

    Guarantee: all query results together are (epsilon, delta)-differentially private for data sets that differ in one
    row with its label; the number of rows is public.

    Args:
        inputs: Rows `[n, d]` of norm at most `norm`, the constant feature among them.
        labels: 0 or 1, `[n]`.
        norm: Public bound on the norm of a row.
        epsilon: Epsilon of all query results together; infinite adds no noise.
        delta: Delta of this guarantee.
        lam: Weight of the l2 regulariser `lam / 2 ||t||^2`.
        steps: Gradient steps of the pilot, by default 60.
        seed: Secret seed; None draws one.
    """
    n, d = inputs.shape
    budget = Budget.of(epsilon, delta, n, norm)
    answers = _Answers(inputs, labels, budget, delta, seed)
    curvature, curvature_run = _information(answers, "curvature", np.zeros(d))
    pilot = _run_pilot(answers, curvature, lam, steps or _STEPS)
    at = pilot.params.double().view(-1).numpy()
    information, information_run = _information(answers, "information", at)
    score, score_run = _score(answers, at)
    runs = (curvature_run, pilot, information_run, score_run)
    squared_norm = 4 * float(np.trace(curvature))
    if not _is_reliable(budget, information):
        return Estimate(at, np.diag(np.full(d, math.inf)), pilot.rounds, runs, squared_norm)
    hessian = information + lam * np.eye(d)
    step: Floats = -np.linalg.solve(hessian, score + lam * at).astype(np.float64)
    covariance = _covariance(budget, information, step[:, None] * step, lam)
    covariance += np.diag(_bound_newton_error(budget, hessian, step) ** 2)
    return Estimate(at + step, covariance, pilot.rounds, runs, squared_norm)


def forecast(
    inputs: Floats, params: Floats, n: int, *, norm: float, epsilon: float, delta: float, lam: float = 0.0
) -> Floats:
    """Returns the covariance to expect of `estimate` on n rows that are distributed like public ones.

    Args:
        inputs: Public or synthetic rows `[m, d]` of norm at most `norm`, the constant feature among them.
        params: Assumed coefficients, `[d]`; at 0 the covariance is the smallest.
        n: Number of private rows.
        norm: Public bound on the norm of a row.
        epsilon: Epsilon of all query results together; infinite adds no noise.
        delta: Delta of this guarantee.
        lam: Weight of the l2 regulariser.

    Returns:
        `[d, d]`; infinite on the diagonal where `estimate` would probably give no intervals.
    """
    d = inputs.shape[1]
    budget = Budget.of(epsilon, delta, n, norm)
    information = _mean_information(inputs, params)
    if not _is_reliable(budget, information):
        return np.diag(np.full(d, math.inf))
    inverse = np.linalg.inv(information + lam * np.eye(d))
    return _covariance(budget, information, _step_variance(budget) * inverse @ inverse, lam)


def private_mean(vectors: Floats, privacy: Privacy, seed: int | None) -> tuple[Floats, Result]:
    """Returns the noised mean of private vectors, and the run that released it.

    Args:
        vectors: `[n, k]`; longer ones than the clip bound of `privacy` are clipped.
        privacy: Its noise and clip bound are for one vector.
        seed: Secret seed; None draws one.
    """
    result = train(
        make_clients(
            LinearRegression(vectors.shape[1]),
            Loss(_outputs),
            [_dataset(vectors, np.zeros(len(vectors), dtype=np.int64))],
        ),
        _one_step(),
        privacy,
        rounds=1,
        secret_seed=seed,
        compute=Compute(backend="linear", device="cpu", dtype="float64"),
    )
    return -result.params.double().view(-1).numpy(), result


def reliable_ratio(budget: Budget, d: int, largest: float) -> float:
    """Returns the factor by which the noise is too small to hide the information of all d coefficients.

    Args:
        budget: The noise.
        d: Number of coefficients, with the intercept.
        largest: Upper bound on the smallest eigenvalue of the information. Below 1 there are no intervals.
    """
    noise = budget.spectral_noise("information", d)
    if noise == 0:
        return math.inf
    return largest / (_RELIABLE * noise)


def _is_reliable(budget: Budget, information: Floats) -> bool:
    """Returns True if the noise in the information is small against its smallest eigenvalue."""
    smallest = float(np.linalg.eigvalsh(information)[0])
    return smallest > _TINY and reliable_ratio(budget, len(information), smallest) > 1


def _covariance(budget: Budget, information: Floats, step: Floats, lam: float) -> Floats:
    """Returns the covariance of the estimate; see the module.

    Args:
        budget: The noise.
        information: H~, `[d, d]`.
        step: `delta delta^T` of the Newton step delta, or its expectation, `[d, d]`.
        lam: Weight of the l2 regulariser.
    """
    identity = np.eye(len(information))
    hessian = information + lam * identity
    inverse = np.linalg.inv(hessian)
    squared_length = float(np.trace(step))
    sampling = information / budget.n
    score = budget.vector_noise("score") ** 2 * identity
    entries = budget.matrix_noise("information") ** 2 / 2 * (squared_length * identity + step)
    return inverse @ (sampling + score + entries) @ inverse


def _step_variance(budget: Budget) -> float:
    """Returns v, where `v (H + lam)^-2` is the covariance of the Newton step from a pilot that converged."""
    # of an average with weights t^p, as if each step had forgotten the noise of the one before
    averaged = (_AVERAGE + 1) ** 2 / (2 * _AVERAGE + 1)
    return averaged * budget.vector_noise("pilot") ** 2 + budget.vector_noise("score") ** 2


def _bound_newton_error(budget: Budget, hessian: Floats, step: Floats) -> Floats:
    """Returns a bound on the error that the Newton step has if the pilot did not converge, `[d]`; see the module.

    Args:
        budget: The noise.
        hessian: H~ + lam, `[d, d]`.
        step: The Newton step, `[d]`.
    """
    explained = _step_variance(budget) * float(chdtri(len(step), _UNLIKELY))
    squared = float(np.square(hessian @ step).sum())
    if squared <= explained:
        return np.zeros(len(step))
    excess = step * math.sqrt(1 - explained / squared)
    reach = budget.norm * float(np.linalg.norm(excess))
    if reach > _LONGEST:
        return np.full(len(step), math.inf)
    curved = (math.exp(reach) - 1 - reach) / reach
    return np.sqrt(np.diag(np.linalg.inv(hessian)) * float(excess @ hessian @ excess)) * curved


def _run_pilot(answers: _Answers, curvature: Floats, lam: float, steps: int) -> Result:
    """Runs private gradient descent with momentum, preconditioned by a bound on the Hessian."""
    d = answers.inputs.shape[1]
    values, vectors = np.linalg.eigh(curvature)
    # noise makes eigenvalues too small, even negative: a step along them would be too long
    bounds = values.clip(min=0) + answers.budget.spectral_noise("curvature", d) + lam + _TINY
    preconditioner = torch.from_numpy(vectors / bounds @ vectors.T)
    optimizer = WeightDecay(lam, _Preconditioned(preconditioner, _MOMENTUM))
    strategy = gradient_descent(1.0, optimizer=optimizer, average=_AVERAGE)
    data = _dataset(answers.inputs, answers.labels)
    rounds = _Rounds(strategy, steps)
    return answers.run("pilot", LogisticRegression(d), Loss(logistic), data, answers.budget.norm, rounds)


def _score(answers: _Answers, at: Floats) -> tuple[Floats, Result]:
    """Returns the noised mean gradient of the loss at a point: the distance of a step of length 1."""
    model = LogisticRegression(len(at))
    with torch.no_grad():
        model.linear.weight.copy_(torch.from_numpy(at).view(1, -1))
    data = _dataset(answers.inputs, answers.labels)
    start = model.linear.weight.detach().double().view(-1).numpy()
    result = answers.run("score", model.double(), Loss(logistic), data, answers.budget.norm, _Rounds(_one_step(), 1))
    return start - result.params.double().view(-1).numpy(), result


def _information(answers: _Answers, name: str, at: Floats) -> tuple[Floats, Result]:
    """Returns the noised mean of p (1 - p) x x^T at a point.

    It is the gradient of a linear function of its entries. Entries off the diagonal are counted once, times sqrt 2, so
    that the norm of a row's matrix equals the norm of its vector: at most `norm^2 / 4`.
    """
    rows, columns = np.triu_indices(len(at))
    factors = np.where(rows == columns, 1.0, math.sqrt(2))
    weights = _variances(answers.inputs, at)[:, None] * factors
    entries = answers.inputs[:, rows] * answers.inputs[:, columns] * weights
    means, result = private_mean(
        entries,
        answers.privacy(name, answers.budget.norm**2 / 4, rounds=1),
        answers.seed_of(name),
    )
    means = means / factors
    matrix = np.zeros((len(at), len(at)))
    matrix[rows, columns] = means
    matrix[columns, rows] = means
    return matrix, result


def _mean_information(inputs: Floats, at: Floats) -> Floats:
    """Returns the mean of p (1 - p) x x^T of public rows at a point, `[d, d]`."""
    return (inputs * _variances(inputs, at)[:, None]).T @ inputs / len(inputs)


def _variances(inputs: Floats, at: Floats) -> Floats:
    """Returns p (1 - p) of each row at a point, `[n]`."""
    chances = expit(inputs @ at)
    return chances * (1 - chances)


def _one_step() -> Strategy:
    return gradient_descent(1.0, Zero())


def _outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the outputs as losses, so that the gradient of a loss is the example."""
    return outputs[:, 0]


def _dataset(inputs: Floats, labels: NDArray[np.int64]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels))
