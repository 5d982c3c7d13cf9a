"""Private coefficients of a logistic regression with their covariance, which counts the noise.

Three private answers about the same rows x (with the constant feature) and labels y share one budget:

    pilot         t: a short run of private gradient descent with momentum
    information   H~ = H + E,   H = mean of p (1 - p) x x^T at t,  p = 1 / (1 + exp(-x t))
    score         g~ = g + z,   g = mean of (p - y) x at t,        z of deviation s

The estimate is one Newton step from the pilot, `t - (H~ + lam)^-1 (g~ + lam t)`. Its covariance has two parts, sampling
and noise: `(H~ + lam)^-1 (H~ / n + s^2 I) (H~ + lam)^-1`, where s is known exactly. How the pilot was found does not
matter, nor its noise, up to second order.

Sources: van der Vaart 1998, section 5.7 (one-step estimators); Avella-Medina, Bradshaw, Loh 2023 (Annals of Statistics
51(5): private Newton steps, and intervals that count the noise). The intervals assume that the logistic model is right
and that n is large. An entry of E has the deviation e (off the diagonal e / sqrt 2), so that its spectral norm is about
e sqrt(2 d); where the smallest eigenvalue of H~ is below three times that, there is no interval.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpriv.clients.client import make_clients
from fedpriv.models import LogisticRegression, Loss
from fedpriv.models.losses import logistic
from fedpriv.models.networks import LinearRegression
from fedpriv.planning.compute import Compute
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.results import Result
from fedpriv.runs.total import total
from fedpriv.runs.train import train
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import L2, Zero

Floats = NDArray[np.float64]
_SHARES = {"pilot": 0.4, "information": 0.3, "score": 0.3}  # of the squared ratio of sensitivity to noise
_STEPS = 30  # of the pilot
_RELIABLE = 3.0  # smallest eigenvalue of the information over the spectral norm of its noise
_SLACK = 1 + 1e-6  # of bounds that no row reaches, so that rounding clips none


@dataclass(frozen=True)
class Estimate:
    """Coefficients with their covariance.

    Attributes:
        params: The estimate, `[d]`.
        covariance: Its covariance, `[d, d]`; infinite on the diagonal if the noise is too large to tell.
        steps: Gradient steps of the pilot.
        spent: What all answers together cost.
    """

    params: Floats
    covariance: Floats
    steps: int
    spent: PrivacySpent


@dataclass(frozen=True)
class _Answers:
    """Asks for answers about one data set.

    Attributes:
        inputs: Rows with the constant feature, `[n, d]`, of norm at most `norm`.
        labels: 0 or 1, `[n]`.
        norm: Bound on the norm of a row.
        ratio: Sensitivity over noise of all answers together; infinite without noise.
        delta: Delta of the promise.
        seed: Secret seed; None draws one.
    """

    inputs: Floats
    labels: NDArray[np.int64]
    norm: float
    ratio: float
    delta: float
    seed: int | None

    def run(self, name: str, model: nn.Module, loss: Loss, data: TensorDataset, bound: float, plan: _Rounds) -> Result:
        """Trains on one client, with the share of the budget that the answer of this name has."""
        privacy = Privacy(at="none", delta=self.delta)
        if math.isfinite(self.ratio):
            ratio = self.ratio * math.sqrt(_SHARES[name])
            noise = math.sqrt(plan.rounds) / ratio
            privacy = Privacy(noise_multiplier=noise, delta=self.delta, clip=Clip(bound))
        return train(
            make_clients(model, loss, [data]),
            plan.strategy,
            privacy,
            rounds=plan.rounds,
            secret_seed=self._seed_of(name),
            compute=Compute(backend="linear", device="cpu", dtype="float64"),
            progress=False,
        )

    def deviation(self, name: str, bound: float) -> float:
        """Returns the deviation of the noise on one mean of vectors of at most this norm."""
        if math.isinf(self.ratio):
            return 0.0
        return 2 * bound / (self.ratio * math.sqrt(_SHARES[name]) * len(self.labels))

    def _seed_of(self, name: str) -> int | None:
        """Returns a seed of its own for each answer: none share noise."""
        if self.seed is None:
            return None
        return int.from_bytes(hashlib.blake2b(f"{name} {self.seed}".encode(), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class _Rounds:
    strategy: Strategy
    rounds: int


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

    Guarantee: all answers together are (epsilon, delta)-differentially private for data sets that differ in one row
    with its label; the number of rows is public.

    Args:
        inputs: Rows `[n, d]` of norm at most `norm`, the constant feature among them.
        labels: 0 or 1, `[n]`.
        norm: Public bound on the norm of a row.
        epsilon: Of all answers together; infinite for exact ones.
        delta: Its delta.
        lam: Weight of the l2 regulariser `lam / 2 ||t||^2`.
        steps: Gradient steps of the pilot, by default 30.
        seed: Secret seed; None draws one.
    """
    ratio = math.inf
    if math.isfinite(epsilon):
        ratio = gaussian.ratio_of(epsilon, delta)
    answers = _Answers(inputs, labels, norm * _SLACK, ratio, delta, seed)
    pilot = _pilot(answers, lam, steps or _STEPS)
    at = pilot.params.double().view(-1).numpy()
    information, information_run = _information(answers, at)
    score, score_run = _score(answers, at)

    n, d = inputs.shape
    spectral_noise = answers.deviation("information", answers.norm**2 / 4) * math.sqrt(2 * d)
    spent = total([pilot, information_run, score_run])
    smallest = float(np.linalg.eigvalsh(information)[0])
    if smallest <= _RELIABLE * spectral_noise:
        return Estimate(at, np.diag(np.full(d, math.inf)), pilot.rounds, spent)
    inverse = np.linalg.inv(information + lam * np.eye(d))
    params = at - inverse @ (score + lam * at)
    noise = answers.deviation("score", answers.norm) ** 2
    covariance = inverse @ (information / n + noise * np.eye(d)) @ inverse
    return Estimate(params, covariance, pilot.rounds, spent)


def _pilot(answers: _Answers, lam: float, steps: int) -> Result:
    """Runs private gradient descent with momentum."""
    smoothness = answers.norm**2 / 4
    regularizer = Zero()
    if lam > 0:
        regularizer = L2(lam)
    strategy = gradient_descent(1 / smoothness, regularizer, momentum=max(0.0, 1 - 6 / steps), average=4.0)
    model = LogisticRegression(answers.inputs.shape[1])
    data = _dataset(answers.inputs, answers.labels)
    return answers.run("pilot", model, Loss(logistic), data, answers.norm, _Rounds(strategy, steps))


def _score(answers: _Answers, at: Floats) -> tuple[Floats, Result]:
    """Returns the noised mean gradient of the loss at a point: one step of length 1 goes that far."""
    model = LogisticRegression(len(at))
    with torch.no_grad():
        model.linear.weight.copy_(torch.from_numpy(at).view(1, -1))
    data = _dataset(answers.inputs, answers.labels)
    start = model.linear.weight.detach().double().view(-1).numpy()
    result = answers.run("score", model.double(), Loss(logistic), data, answers.norm, _Rounds(_one_step(), 1))
    return start - result.params.double().view(-1).numpy(), result


def _information(answers: _Answers, at: Floats) -> tuple[Floats, Result]:
    """Returns the noised mean of p (1 - p) x x^T at a point.

    It is the gradient of a linear function of its entries. Those off the diagonal are counted once, times sqrt 2, so
    that the norm of a row's matrix is that of its vector: at most `norm^2 / 4`.
    """
    chances = expit(answers.inputs @ at)
    rows, columns = np.triu_indices(len(at))
    factors = np.where(rows == columns, 1.0, math.sqrt(2))
    weights = (chances * (1 - chances))[:, None] * factors
    entries = answers.inputs[:, rows] * answers.inputs[:, columns] * weights
    data = _dataset(entries, np.zeros(len(entries), dtype=np.int64))
    model = LinearRegression(len(rows))
    bound = answers.norm**2 / 4
    result = answers.run("information", model, Loss(_outputs), data, bound, _Rounds(_one_step(), 1))
    means = -result.params.double().view(-1).numpy() / factors
    matrix = np.zeros((len(at), len(at)))
    matrix[rows, columns] = means
    matrix[columns, rows] = means
    return matrix, result


def _one_step() -> Strategy:
    return gradient_descent(1.0, Zero())


def _outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is the output itself: its gradient is the example."""
    return outputs[:, 0]


def _dataset(inputs: Floats, labels: NDArray[np.int64]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels))
