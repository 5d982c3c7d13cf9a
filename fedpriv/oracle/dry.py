"""An oracle without data, by which the epsilon of any strategy is known before data is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.oracle.questions import Question, Questions
from fedpriv.privacy.record import Record
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import Privacy


class DryOracle(Questions):
    """Answers zeros and lists what would be released.

    In a real run a strategy may ask other questions if they depend on the answers; the accountant then refuses what
    would pass the limit.

    Args:
        privacy: The privacy settings, with a noise multiplier.
        sizes: Public number of examples of each client.
        n_constraints: Number of constraint values of a client.

    Attributes:
        records: What would be released, in order.
        evaluations: Expected number of per-example gradients in each round; the true number is as secret as batches.
        asked: Names of the questions that were asked.
        questions: Those of each round that a strategy has asked.
    """

    def __init__(self, privacy: Privacy, sizes: Sequence[int], n_constraints: int = 1) -> None:
        self.records: list[Record] = []
        self.evaluations: list[float] = []
        self.asked: set[str] = set()
        self.questions: dict[int, list[Question]] = {}
        self._n_constraints = n_constraints
        super().__init__(privacy, sizes, torch.empty(0))

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """See `Questions`; one client stands for those that will be drawn in secret."""
        super().begin_round(round_index, cohort, received)
        self.evaluations += [0.0] * (round_index + 1 - len(self.evaluations))
        return torch.arange(1) if self.privacy.draws_senders else None

    @property
    def equality(self) -> Tensor:
        """All constraints count as inequalities."""
        return torch.zeros(len(self._clients), self._n_constraints, dtype=torch.bool)

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        """See `Questions`; listed with the default bound, since the real one may depend on answers."""
        return super().gradient_difference(params, anchor)

    def _exact(self, question: Question, params: Tensor) -> tuple[Tensor, Tensor]:
        if self._index == 0:
            self._answer(question, params)
        zeros = 0 * params.sum(1)  # that depend on the parameters, so that they have (zero) gradients
        return zeros, zeros.unsqueeze(1).expand(-1, self._n_constraints)

    def _statistic(self, question: Question, params: Tensor) -> Tensor:
        self._answer(question, params)
        return params.new_zeros(len(params), self._n_constraints)

    def _message(self, question: Question, message: Tensor) -> Tensor:
        return self._answer(question, message)

    def repeat(self, period: int, rounds: int, cohort_of: Callable[[int], Sequence[int]]) -> None:
        """List what further rounds would release, if they ask what the first ones did, again and again.

        Args:
            period: Number of rounds that have been asked.
            rounds: Number of rounds of the whole run.
            cohort_of: Who takes part in a round, sorted.
        """
        known: dict[tuple[int, tuple[int, ...]], tuple[list[Record], float]] = {}
        for index in range(period, rounds):
            cohort = cohort_of(index)
            key = index % period, tuple(cohort)
            if key not in known:
                first = len(self.records)
                self.begin_round(index, torch.as_tensor(cohort, dtype=torch.long))
                for question in self.questions.get(index % period, ()):
                    self._list(question)
                found = self.records[first:]
                if self.privacy.schedule == Uniform() and self.privacy.over_time is None:
                    known[key] = found, self.evaluations[index]
                continue
            found, evaluations = known[key]
            self.records += [replace(record, round=index) for record in found]
            self.evaluations.append(evaluations)

    def _answer(self, question: Question, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        self.questions.setdefault(self._round, []).append(question)
        self._list(question)
        return torch.zeros_like(params)

    def _list(self, question: Question) -> None:
        self.asked.add(question.name)
        examples = float(self._expected(question.sampling, self._sizes[self._cohort]).sum()) * self.privacy.cohort_rate
        self.evaluations[self._round] += examples * question.gradients
        if self._recorded(question):
            self.records.append(self._record(question))
        self._index += 1

    def _record(self, question: Question) -> Record:
        asked = self._round, self._index, question.name, self._clients
        if not self.privacy.private:
            return self._pricing.exact(*asked)
        of_examples = self.privacy.unit == "sample" and not question.name.startswith("statistic:")
        each = [1.0] if self.privacy.trust.sums_only else [1.0] * len(self._clients)
        factors = self._factors(question) if of_examples else each
        return self._pricing.price(*asked, factors, question.clip, question.share)[0]
