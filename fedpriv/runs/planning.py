"""What a run will cost in privacy, before it touches data.

A plan runs the strategy against an oracle that has no data (zeros, one parameter), lists the releases and prices them.
Any strategy can be planned this way, a user's own too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.engines.local import RoundNetwork, begin, check_fit, seen_by_aggregator, simulate
from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate, delta_warning
from fedpriv.privacy.accounting.spent import Spent
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.pricing import Pricing
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import FixedSize, Poisson, Privacy
from fedpriv.problems.problem import Problem
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.proximal import Zero


class DryOracle:
    """An oracle without data: answers zeros and lists what would be released.

    It prices any strategy, a user's own too, before data is touched. A strategy whose number of questions depends on
    the (private) answers may ask differently in earnest; the budget's filter covers that.
    """

    def __init__(self, pricing: Pricing, privacy: Privacy, sizes: Sequence[int], n_constraints: int = 1) -> None:
        self.records: list[Record] = []
        # expected per-example gradients in each round: how many there are in earnest is as secret as the batches
        self.evaluations: list[float] = []
        self.sees_problem = False
        self._pricing, self._privacy, self._sizes = pricing, privacy, torch.as_tensor(sizes, dtype=torch.double)
        self._n_constraints, self.n_clients = n_constraints, len(sizes)
        self.begin_round(0, torch.arange(len(sizes)))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round."""
        self._round, self._index, self._clients = round_index, 0, cohort.tolist()
        self.evaluations += [0.0] * (round_index + 1 - len(self.evaluations))

    @property
    def weights(self) -> Tensor:
        """Of the public sizes."""
        return (self._sizes[self._clients] / self._sizes.mean()).float()

    def gradient(self, params: Tensor) -> Tensor:
        """Zeros."""
        return self._answer("gradient", params)

    def client_gradient(self, params: Tensor) -> Tensor:
        """Zeros."""
        return self._answer("client_gradient", params)

    def full_gradient(self, params: Tensor) -> Tensor:
        """Zeros."""
        return self._answer("full_gradient", params)

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Zeros."""
        return self._answer("gradient_difference", params)

    @property
    def equality(self) -> Tensor:
        """Inequalities."""
        return torch.zeros(len(self._clients), self._n_constraints, dtype=torch.bool)

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros that depend on the parameters, so that they have (zero) gradients."""
        self.sees_problem = True
        if self._privacy.at != "none":
            raise ConfigError(
                "privacy.at", self._privacy.at, "the strategy needs exact answers, so it makes no promise: at: none"
            )
        if self._index == 0:
            self._answer("exact", params)
        zeros = 0 * params.sum(1)
        return zeros, zeros.unsqueeze(1).expand(-1, self._n_constraints)

    def statistic(self, params: Tensor, name: str) -> Tensor:
        """Zeros."""
        self.sees_problem = True
        norm = self._privacy.clip.norm
        self._answer(f"statistic:{name}", params, Clip(1.0, norm), self._privacy.statistics.relative_share(norm))
        return params.new_zeros(len(params), self._n_constraints)

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Zeros."""
        self.sees_problem = True
        return self._answer("lagrangian_gradient", params)

    def release_message(self, message: Tensor) -> Tensor:
        """The message, listed when the boundary is there."""
        return self._answer("message", message) if self._privacy.boundary == "message" else message

    def _answer(self, query: str, params: Tensor, clip: Clip | None = None, share: float = 1.0) -> Tensor:
        privacy = self._privacy
        self.evaluations[self._round] += self._examples(query)
        if privacy.private and (privacy.at == "gradient" or query == "message"):
            factors = [1.0] * len(self._clients)
            record, _ = self._pricing.price(self._round, self._index, query, self._clients, factors, clip, share)
            self.records.append(record)
        elif not privacy.private and (
            privacy.published is None or query == "message" or self._privacy.boundary == "gradient"
        ):
            self.records.append(self._pricing.exact(self._round, self._index, query, self._clients))
        self._index += 1
        return torch.zeros_like(params)

    def _examples(self, query: str) -> float:
        """Gradients of single examples that an answer takes, on average."""
        if query == "message" or query.startswith("statistic:"):
            return 0.0
        sizes, sampling = self._sizes[self._clients], self._pricing.sampling_of(query)
        if isinstance(sampling, Poisson):
            sizes = sizes * sampling.rate
        elif isinstance(sampling, FixedSize):
            sizes = sizes.clamp_max(sampling.size)
        return float(sizes.sum()) * self._privacy.cohort_rate * (2 if query == "gradient_difference" else 1)


@dataclass(frozen=True)
class Plan:
    """A run's releases and the noise that they need.

    Attributes:
        privacy: The settings with their noise multiplier filled in.
        records: The planned releases, in order.
        n_clients: Number of clients.
        evaluations: Expected number of per-example gradients in each round.
        sees_problem: The strategy asks about objectives and constraints; without, it minimises the mean loss.
        calibrated: The noise was chosen for the target, and so meets it.
    """

    privacy: Privacy
    records: tuple[Record, ...]
    n_clients: int
    evaluations: tuple[float, ...] = ()
    sees_problem: bool = False
    calibrated: bool = False

    def spent(self) -> Spent:
        """What the whole run would spend, tightly."""
        return account(self.records, self.n_clients, self.privacy.delta)

    def warnings(self, sizes: Sequence[int]) -> list[str]:
        """What weakens the promise to clients of these public sizes: too large a delta, too little noise."""
        privacy, found = self.privacy, list[str]()
        if not privacy.private:
            return found
        if privacy.epsilon is not None and not self.calibrated and self.spent().epsilon > privacy.epsilon:
            found.append(
                f"noise_multiplier={privacy.noise_multiplier:g} is too little for epsilon={privacy.epsilon:g}: the run "
                "will stop before it overspends; leave noise_multiplier out, and it is chosen for all rounds"
            )
        said = delta_warning(privacy.delta, sum(sizes) if privacy.unit == "sample" else len(sizes))
        return [*found, *([said] if said else [])]


def make_plan(
    strategy: Strategy,
    privacy: Privacy,
    sizes: Sequence[int],
    network: RoundNetwork,
    *,
    rounds: int,
    randomness: Randomness | None = None,
) -> Plan:
    """List a run's releases and calibrate their noise to the target.

    Args:
        strategy: The algorithm.
        privacy: The promise; with a target `epsilon` the noise is calibrated.
        sizes: Public number of examples of each client.
        network: Decides who takes part in a round.
        rounds: Number of rounds.
        randomness: The run's streams, so that the cohorts are those of the run itself.

    Raises:
        ConfigError: settings that do not fit the strategy, or a target that cannot be reached.
    """
    check_fit(strategy, privacy, network)
    if privacy.trust.sums_only and privacy.at == "gradient":
        check_linear(strategy, len(sizes), network)
    relative = replace(privacy, epsilon=None, noise_multiplier=1.0) if privacy.private else privacy
    oracle = DryOracle(Pricing(relative, sizes), relative, sizes)
    progress, seen = begin(strategy, torch.zeros(len(sizes), 1)), seen_by_aggregator(network, privacy)
    for _ in simulate(strategy, oracle, seen, progress, randomness or Randomness(0), rounds=rounds):
        pass
    _check_honest(privacy, oracle.records, len(sizes))
    if not privacy.private:
        return Plan(privacy, tuple(oracle.records), len(sizes), tuple(oracle.evaluations), oracle.sees_problem)
    factor = privacy.noise_multiplier
    if factor is None:
        assert privacy.epsilon is not None
        factor = calibrate(oracle.records, len(sizes), privacy.epsilon, privacy.delta)
    records = tuple(_scaled(record, factor) for record in oracle.records)
    known = replace(privacy, noise_multiplier=factor)
    chosen = privacy.noise_multiplier is None
    return Plan(known, records, len(sizes), tuple(oracle.evaluations), oracle.sees_problem, chosen)


def with_neighbours(privacy: Privacy, problems: Sequence[Problem], *, sizes_declared: bool) -> Privacy:
    """The promise with what neighbouring data sets have in common, because it is told or used without noise.

    It is stated by what was declared, never by comparing numbers: that a declared size is the true one is a secret.

    Args:
        privacy: The promise.
        problems: The clients' objectives and constraints.
        sizes_declared: Each client was given a public size, which stands for the true one.
    """
    # of whole clients there are as many as there are: nobody declares another number
    coming = privacy.relation == "add_remove" and (privacy.unit == "client" or not sizes_declared)
    sizes = coming or (privacy.unit == "client" and not sizes_declared)
    stacks = [problem.stacked() for problem in problems] if privacy.statistics.public_counts else []
    within = any(stack is not None and stack.counts_are_public() for stack in stacks)
    said = (["sizes public"] if sizes else []) + (["within group"] if within else [])
    return replace(privacy, shared=", ".join(said))


def check_problem(plan: Plan, strategy: Strategy, problems: Sequence[Problem], *, compare: bool) -> None:
    """Refuse to train past a client's objective or constraints, and a comparison that would not be made.

    Raises:
        ConfigError: a client has some, and the strategy would never look at them; the strategy would pay for the values
            of constraints, and there are none; or `compare` with a run that has no centralised counterpart.
    """
    private = plan.privacy.private
    if private and plan.sees_problem and not any(problem.constraints for problem in problems):
        fix = f"{strategy.name} spends a part of its budget on their values; name some, or use fedavg or dp_gd"
        raise ConfigError("problem.constraints", [], fix)
    if compare and (private or not plan.sees_problem):
        fix = "only an exact run of proximal_al (privacy.at: none) is compared with one in one place; leave it out"
        raise ConfigError("problem.compare", True, fix)
    if compare and not isinstance(strategy.regularizer.remainder, Zero):
        fix = f"the method in one place has no {strategy.regularizer}: it takes no regulariser or l2; leave it out"
        raise ConfigError("problem.compare", True, fix)
    for problem in problems:
        if not (plan.sees_problem or problem.is_mean_loss):
            what = ", ".join(type(part).__name__ for part in (problem.objective, *problem.constraints) if part)
            fix = f"{strategy.name} minimises the mean loss and would ignore it; use private_al or proximal_al"
            raise ConfigError("problem", what, fix)


def _check_honest(privacy: Privacy, records: Sequence[Record], n_clients: int) -> None:
    """Refuse a run none of whose rounds has the participants who share its noise."""
    wanted = privacy.trust.shares(n_clients)
    most = max((n_clients if record.clients is None else len(record.clients) for record in records), default=wanted)
    if privacy.trust.sums_only and most < wanted:
        fix = f"a round has at most {most} participants, who share the noise; give at most that many"
        raise ConfigError("privacy.trust.secure_aggregation.min_honest", wanted, fix)


class _MadeUpAnswers:
    """An oracle of random answers; `spread` moves them among a round's clients, whose sum stays as it is."""

    def __init__(self, n_clients: int, rounds: int, spread: float) -> None:
        draw = torch.Generator().manual_seed(0)
        self.n_clients = n_clients
        self._answers, self._moves = torch.randn(2, rounds, n_clients, 2, generator=draw, dtype=torch.float64)
        self._spread = spread
        self.begin_round(0, torch.arange(n_clients))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        moves = self._moves[round_index][cohort]
        self._now = self._answers[round_index][cohort] + self._spread * (moves - moves.mean(0))

    @property
    def weights(self) -> Tensor:
        # unequal, for a step that multiplies its own answers by them sends no sum of answers
        return torch.linspace(0.5, 1.5, len(self._now), dtype=torch.float64)

    def gradient(self, params: Tensor) -> Tensor:
        return self._now

    def client_gradient(self, params: Tensor) -> Tensor:
        return self._now

    def full_gradient(self, params: Tensor) -> Tensor:
        return self._now

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        return self._now

    @property
    def equality(self) -> Tensor:
        return torch.zeros(len(self._now), 1, dtype=torch.bool)

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return self._now[:, 0], self._now[:, 1:]

    def statistic(self, params: Tensor, name: str) -> Tensor:
        return self._now[:, :1]

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        return self._now

    def release_message(self, message: Tensor) -> Tensor:
        return message


def check_linear(strategy: Strategy, n_clients: int, network: RoundNetwork, rounds: int = 3) -> None:
    """Try out a strategy's promise to be `linear`: what it sends on depends on the sum of the answers alone.

    This finds mistakes, not malice: a promise that holds for some answers may be broken for others.

    Raises:
        ConfigError: the promise does not hold.
    """
    heard: list[Tensor] = []
    for spread in (0.0, 1.0):
        start = begin(strategy, torch.zeros(n_clients, 2, dtype=torch.float64))
        oracle = _MadeUpAnswers(n_clients, rounds, spread)
        seen = simulate(strategy, oracle, network, start, Randomness(0), rounds=rounds)
        heard.append(torch.stack([done.progress.received[0] for done in seen]))
    if not torch.allclose(heard[0], heard[1], rtol=1e-6, atol=1e-9):
        raise ConfigError(
            "privacy.trust",
            "secure_aggregation",
            f"{type(strategy.local_step).__name__} calls itself linear, but what it sends depends on more than the sum "
            "of the answers; use trust: local",
        )


def _scaled(record: Record, factor: float) -> Record:
    multiplier = record.noise_multiplier
    scaled = tuple(m * factor for m in multiplier) if isinstance(multiplier, tuple) else multiplier * factor
    return replace(record, noise_multiplier=scaled)
