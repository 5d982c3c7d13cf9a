"""An oracle whose answers tell how a strategy passes noise on."""

from __future__ import annotations

from torch import Tensor

from fedpriv.oracle.dry import DryOracle
from fedpriv.oracle.questions import Question
from fedpriv.privacy.settings import Privacy


class ImpulseOracle(DryOracle):
    """Answers every client in round t with `size` times the t-th unit vector, of as many numbers as there are rounds.

    Started at zero, a strategy that is linear in the answers then reports a model whose t-th number says how much of
    the noise of round t is left in it.
    """

    def __init__(self, privacy: Privacy, n_clients: int, size: float) -> None:
        super().__init__(privacy, [1] * n_clients)
        self._size = size

    def _answer(self, question: Question, params: Tensor, anchor: Tensor | None = None) -> Tensor:
        answer = super()._answer(question, params, anchor)
        answer[:, self._round] = self._size
        return answer
