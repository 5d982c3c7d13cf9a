"""An oracle with random answers, to test whether a strategy is `linear`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.oracle.questions import Question, Questions
from fedpriv.privacy.settings import Privacy


class MadeUpOracle(Questions):
    """Random answers. `spread` changes single clients' answers, never their sum: a linear strategy must not notice.

    Args:
        n_clients: Number of clients.
        rounds: Number of rounds with answers, which have dimension 2 and one constraint.
        spread: By how much single answers are changed.
    """

    def __init__(self, n_clients: int, rounds: int, spread: float) -> None:
        draw = torch.Generator().manual_seed(0)
        self._answers, self._moves = torch.randn(2, rounds, n_clients, 2, generator=draw, dtype=torch.float64)
        self._spread = spread
        super().__init__(Privacy(at="none"), [1] * n_clients, self._answers)

    @property
    def weights(self) -> Tensor:
        """Unequal weights: sums of messages that are multiplied by them are no sums of answers."""
        return torch.linspace(0.5, 1.5, len(self._cohort), dtype=torch.float64)

    @property
    def equality(self) -> Tensor:
        """All constraints are inequalities."""
        return torch.zeros(len(self._cohort), 1, dtype=torch.bool)

    def _answer(self, question: Question, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        moves = self._moves[self._round][self._cohort]
        return self._answers[self._round][self._cohort] + self._spread * (moves - moves.mean(0))

    def _statistic(self, question: Question, params: Tensor) -> Tensor:
        return self._answer(question, params)[:, :1]

    def _exact(self, question: Question, params: Tensor) -> tuple[Tensor, Tensor]:
        answers = self._answer(question, params)
        return answers[:, 0], answers[:, 1:]

    def _message(self, question: Question, message: Tensor) -> Tensor:
        return message
