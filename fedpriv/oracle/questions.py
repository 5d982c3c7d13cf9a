"""The questions that a strategy may ask: how each is clipped, sampled and paid for, the same for every oracle.

Three oracles answer them: `private` (from data), `dry` (with zeros, to plan a run) and `made_up` (with random numbers,
to test whether a strategy is `linear`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.pricing import Pricing
from fedpriv.privacy.settings import Cyclic, FixedSize, Poisson, Privacy, Sampling


@dataclass(frozen=True)
class Question:
    """One question of one round.

    Attributes:
        name: Its name in the ledger.
        clip: How each unit's contribution is clipped.
        sampling: How its examples are drawn.
        share: Budget share of the answer, where a gradient of the same round has share 1.
        whole: True: divide by the client's batch size only. False: also weight by its share of all examples.
        gradients: Number of gradients that are computed for each example.
        multipliers: Public multipliers of the constraints, `[k, m]`, in the gradient of a Lagrangian.
    """

    name: str
    clip: Clip
    sampling: Sampling
    share: float = 1.0
    whole: bool = False
    gradients: int = 1
    multipliers: Tensor | None = None


class Questions(ABC):
    """Base class of oracles: the questions of `fedpriv.strategies.base.Oracle`, and what is public about them.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.
        like: A tensor with the type and device that weights should have.

    Attributes:
        privacy: The privacy settings.
        n_clients: Number of clients of the run (public).
    """

    def __init__(self, privacy: Privacy, sizes: Sequence[int], like: Tensor) -> None:
        self.privacy, self.n_clients = privacy, len(sizes)
        self._pricing = Pricing(privacy, sizes)
        self._sizes, self._like = torch.as_tensor(sizes, dtype=torch.double), like
        self._mean_size = self._sizes.mean()
        self.begin_round(0, torch.arange(len(sizes)))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """Start a round: rows of questions now belong to the clients of `cohort` that are here.

        Args:
            round_index: The round, from 0.
            cohort: Numbers of the clients that take part, here or elsewhere, sorted; records and prices are those of
                all.
            received: What those here received, `[k, dim]`.

        Returns:
            Where some clients were drawn in secret to send a message: those here, as places among the participants
            here, `[j]`. Rows of questions and messages are then theirs. None: rows are those of all participants here.

        Raises:
            ConfigError: the cohort is not sorted, or somebody is in it twice: rows would be taken for others'.
        """
        if not bool((cohort.diff() > 0).all()):
            raise ConfigError("network cohort", cohort.tolist(), "give every client once, in ascending order")
        self._round, self._index, self._cohort, self._received = round_index, 0, cohort, received
        everyone = len(cohort) == self.n_clients and cohort[0] == 0 and cohort[-1] == self.n_clients - 1
        self._clients: Sequence[int] = range(self.n_clients) if everyone else cohort.tolist()
        self._here = self._places(cohort)
        return None

    @property
    def alike(self) -> bool:
        """Whether an answer is one for all participants."""
        return False

    @property
    def weights(self) -> Tensor:
        """Weight of each client of the round, `n m_i / sum(m)` over all n clients, `[k]` (public)."""
        return (self._sizes[self._cohort[self._here]] / self._mean_size).to(self._like)

    @property
    def noise_variance(self) -> Tensor:
        """Variance of the noise in each entry of the newest gradient's rows, `[k, 1]` (public).

        Raises:
            ConfigError: messages are noised, not gradients.
        """
        return self._column(self._variances()[0])

    @property
    def noise_in_mean(self) -> Tensor:
        """Each row's part in the noise of the mean of all rows, `[k, 1]` (public): their mean is its variance.

        Raises:
            ConfigError: messages are noised, not gradients.
        """
        return self._column(self._variances()[1])

    def _column(self, values: Sequence[float]) -> Tensor:
        if self.privacy.private and self.privacy.at == "message":
            fix = "with at: message gradients have no noise that could be subtracted: leave it out, or use at: gradient"
            raise ConfigError("strategy.optimizer", "noise_floor", fix)
        return self._like.new_tensor(values).unsqueeze(1)

    def _variances(self) -> tuple[Sequence[float], Sequence[float]]:
        """Of the newest gradient: of each row, and each row's part in that of the mean."""
        exact = [0.0] * len(self._here)
        return exact, exact

    def gradient(self, params: Tensor) -> Tensor:
        """Gradient of each client's objective, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._answer(self._question("gradient"), params)

    def client_gradient(self, params: Tensor) -> Tensor:
        """Gradient of each client's own mean loss, on a fresh batch: `[k, dim] -> [k, dim]`."""
        return self._answer(replace(self._question("client_gradient"), whole=True), params)

    def full_gradient(self, params: Tensor) -> Tensor:
        """Gradient of each client's objective on all its examples: `[k, dim] -> [k, dim]`."""
        return self._answer(self._question("full_gradient"), params)

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """Difference of the gradients at two points, on a fresh batch: `[k, dim] -> [k, dim]`.

        Args:
            params: First point, `[k, dim]`.
            anchor: The other point, `[k, dim]`.
            bound: Norm to which each unit's difference is clipped, public or computed from what was released. By
                default, and at most, twice the clip bound of a gradient.
        """
        widest, question = 2 * self.privacy.clip.bound, self._question("gradient_difference")
        clip = replace(question.clip, bound=widest if bound is None else min(bound, widest))
        return self._answer(replace(question, clip=clip, gradients=2), params, anchor)

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        """Gradient of each client's `f_i + <multipliers_i, c_i>`: `[n, dim], [n, m] -> [n, dim]`.

        Each example's gradient is clipped after it is multiplied by the coefficients of objective and constraints.

        Args:
            params: One point for each client.
            multipliers: Public, or computed from what was released before.
        """
        return self._answer(replace(self._question("lagrangian_gradient"), whole=True, multipliers=multipliers), params)

    def statistic(self, params: Tensor, name: str) -> Tensor:
        """Statistic of each client at its row; for `"constraints"` its constraint values, `[n, dim] -> [n, m]`.

        Each example contributes its loss, clipped to `[0, bound]` and centred, times public coefficients: a vector of
        norm at most 1, before the row is multiplied by a public factor.

        Raises:
            ConfigError: there is no statistic of this name.
        """
        if name != "constraints":
            raise ConfigError("statistic", name, "unknown: there is 'constraints'")
        self._check_everyone()
        return self._statistic(self._constraints, params)

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Each client's share of the objective and its constraint values, without noise: `[n, dim] -> [n], [n, m]`.

        They are differentiable, so that clients can solve subproblems. The first answer of a round is recorded as not
        private; further ones are not recorded, since epsilon is infinite already.

        Raises:
            ConfigError: the run is private.
            DataError: a value is not finite at the point received.
        """
        if self.privacy.at != "none":
            fix = "the strategy needs exact answers, which are not private; use at: none"
            raise ConfigError("privacy.at", self.privacy.at, fix)
        self._check_everyone()
        return self._exact(replace(self._question("exact"), gradients=1), params)

    @property
    @abstractmethod
    def equality(self) -> Tensor:
        """Which constraint values must be zero, `[k, m]` boolean (public)."""

    def release_message(self, message: Tensor) -> Tensor:
        """With `at: message`, clip, noise and record messages `[k, dim]`; else return them unchanged.

        Raises:
            BudgetExhausted: the release would pass the target epsilon.
        """
        if self.privacy.boundary != "message":
            return message
        return self._message(replace(self._question("message"), gradients=0), message)

    @abstractmethod
    def _answer(self, question: Question, params: Tensor, anchor: Tensor | None = None) -> Tensor: ...

    @abstractmethod
    def _statistic(self, question: Question, params: Tensor) -> Tensor: ...

    @abstractmethod
    def _exact(self, question: Question, params: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _message(self, question: Question, message: Tensor) -> Tensor: ...

    def _places(self, cohort: Tensor) -> Tensor:
        """Which clients of the cohort, by their place in it, are here: all."""
        return torch.arange(len(cohort))

    def _check_everyone(self) -> None:
        if len(self._cohort) < self.n_clients:
            raise ConfigError("network.cohort", len(self._cohort), "constraints need every client in every round")

    def _question(self, name: str) -> Question:
        return Question(name, self.privacy.clip, self._pricing.sampling_of(name))

    @property
    def _constraints(self) -> Question:
        norm = self.privacy.clip.norm
        share = self.privacy.statistics.relative_share(norm)
        return replace(self._question("statistic:constraints"), clip=Clip(1.0, norm), share=share, gradients=0)

    def _recorded(self, question: Question) -> bool:
        """Whether the answer is a release: where messages are noised, nothing else leaves a client."""
        return question.name == "message" or self.privacy.boundary != "message"

    def _factors(self, question: Question, clients: Tensor | None = None) -> list[float]:
        """Public factor of each client's row, from a sum over the batch to what is asked; of every participant's."""
        sizes = self._sizes[self._cohort if clients is None else clients]
        share = 1.0 if question.whole else sizes / self._mean_size
        return (share / self._expected(question.sampling, sizes)).tolist()

    def _expected(self, sampling: Sampling, sizes: Tensor) -> Tensor:
        """Expected examples of the batches of clients with so many examples (public)."""
        if isinstance(sampling, Poisson):
            return sizes * sampling.rate
        if isinstance(sampling, Cyclic):
            return sizes * sampling.rate / sampling.blocks
        return sizes.clamp_max(sampling.size) if isinstance(sampling, FixedSize) else sizes
