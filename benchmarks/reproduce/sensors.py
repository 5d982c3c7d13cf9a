"""The sensors of Xie, Liu and Chai (2025, eq 42) as an oracle: many trials side by side, `[sensors, trials * p]`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import fedpriv as fp
from fedpriv.oracle.oracle import Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.synthetic import ZeroEngine
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Laplace
from fedpriv.privacy.schedules import Schedule


@dataclass(frozen=True)
class Sensors:
    """`f_i(x) = ||v_i - M_i x||^2 + omega ||x||^2`, one problem or one for each trial.

    Attributes:
        hessian: `[sensors, trials or 1, p, p]`.
        slope: Gradient at 0, `[sensors, trials or 1, p]`.
        measurement: M, `[sensors, trials or 1, m, p]`.
    """

    hessian: Tensor
    slope: Tensor
    measurement: Tensor

    @classmethod
    def drawn(cls, n: int, m: int, p: int, problems: int = 1, omega: float = 0.01, seed: int = 0) -> Sensors:
        """M uniform on [0, 10], v = M x + N(0, 1) for one x ~ N(0, 1): the paper leaves this to a reference."""
        draws = np.random.default_rng(seed)
        matrix = draws.uniform(0, 10, (n, problems, m, p))
        reading = (matrix @ draws.standard_normal((problems, p, 1)))[..., 0] + draws.standard_normal((n, problems, m))
        hessian = 2 * np.swapaxes(matrix, -1, -2) @ matrix + 2 * omega * np.eye(p)
        slope = -2 * (np.swapaxes(matrix, -1, -2) @ reading[..., None])[..., 0]
        return cls(torch.from_numpy(hessian), torch.from_numpy(slope), torch.from_numpy(matrix))

    def gradient(self, x: Tensor) -> Tensor:
        """Maps `[sensors, trials * p]` to `[sensors, trials, p]`."""
        points = x.reshape(len(self.slope), -1, self.slope.shape[-1])
        return torch.einsum("ntpq,ntq->ntp", self.hessian.expand(-1, points.shape[1], -1, -1), points) + self.slope

    def optimum(self) -> Tensor:
        """The minimiser of the sum, `[trials or 1, p]`."""
        return torch.linalg.solve(self.hessian.sum(0), -self.slope.sum(0))

    def residual(self, x: Tensor) -> Tensor:
        """`sum_i ||x_i - x*||^2` of each trial."""
        points = x.reshape(len(self.slope), -1, self.slope.shape[-1])
        return (points - self.optimum()).square().sum((0, 2))

    def covered_shift(self) -> float:
        """Returns the largest shift of a single reading that moves no gradient by more than 1 in l1, with M public."""
        return float(1 / (2 * self.measurement.abs().sum(-1).max()))


@dataclass(frozen=True)
class Promise:
    """Laplace noise for gradients that differ by at most `gap` in l1 between neighbours.

    Args:
        schedule: Division of the budget over rounds.
        gap: delta of the paper.
        enforced: Clip each sensor's gradient to `gap / 2`; else the gap is assumed.
    """

    schedule: Schedule
    gap: float = 1.0
    enforced: bool = False

    @property
    def privacy(self) -> fp.Privacy:
        """Returns privacy settings with noise multiplier 1."""
        clip = Clip(self.gap / 2, "l1")
        laplace = {"mechanism": Laplace(), "unit": "client", "delta": 0.0}
        return fp.Privacy(noise_multiplier=1.0, clip=clip, schedule=self.schedule, **laplace)

    def noise_multiplier(self, rounds: int) -> float:
        """Returns the multiplier that spends epsilon = 1; another epsilon divides it, since pure epsilons add up."""
        return sum(self.schedule.share(k) for k in range(rounds))


class SensorEngine(ZeroEngine):
    """Returns exact, or clipped, gradients with Laplace noise that is scaled by the library's privacy cost.

    Args:
        sensors: The problem.
        promise: The bound on gradients and the division of the budget.
        noise_multipliers: One for each trial; 0 for none.
        seed: Seed of the noise.
    """

    def __init__(self, sensors: Sensors, promise: Promise, noise_multipliers: Tensor, seed: int) -> None:
        super().__init__()
        self.queries = QueryBuilder(promise.privacy, [1] * len(sensors.slope))
        self._sensors, self._promise = sensors, promise
        self._multipliers, self._draws = noise_multipliers.double(), np.random.default_rng(seed)
        self.largest = 0.0
        self.exact_gradient = torch.empty(0)

    @property
    def oracle(self) -> Oracle[SensorEngine]:
        """Returns the oracle for a strategy."""
        return Oracle(self.queries, self, torch.empty(0))

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """Returns gradients `[sensors, trials * p]`."""
        exact = self._sensors.gradient(params)
        self.exact_gradient = exact
        self.largest = max(self.largest, float(exact.abs().sum(-1).max()))
        bounded = self._promise.privacy.clip.rows(exact)[0] if self._promise.enforced else exact
        factors = [1.0] * len(context.clients)
        scales = self.queries.scheme.noise_scales(self.queries.scheme.price(context.answer(query), factors), factors)
        unit = torch.from_numpy(self._draws.laplace(size=exact.shape))
        return (bounded + unit * scales[0] * self._multipliers[:, None]).reshape(params.shape)
