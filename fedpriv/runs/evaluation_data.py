"""The public data of a run: what models are tested on, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv.clients import ownership
from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.data.base import size
from fedpriv.errors import ConfigError
from fedpriv.evaluation.client_tests import ClientTests, Tests, by_client, checked_names, known_of, together
from fedpriv.evaluation.custom_metrics import CustomMetric, MetricSet
from fedpriv.evaluation.early_stopping import EarlyStopping, Stop
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.privacy.settings import Privacy


@dataclass(frozen=True)
class EvaluationData:
    """Public test data, and what is done with them; see `train` for its parts.

    Attributes:
        test: What the model is tested on; None if nothing is.
        of_clients: The test set of each client that has one.
        own: The user's own metrics.
        stop: When to end the run; None never does.
        names: The clients' names; none if they have none.
    """

    test: Dataset[Any] | None
    of_clients: Tests
    own: MetricSet
    stop: Stop | None
    names: tuple[str, ...]

    @staticmethod
    def made(
        test: Dataset[Any] | None,
        client_tests: Sequence[Dataset[Any] | None] | None,
        metrics: Mapping[str, CustomMetric] | None,
        stop: Stop | None,
        names: Sequence[str] | None,
        n_clients: int,
    ) -> EvaluationData:
        """From the arguments of `train`.

        Raises:
            ConfigError: metrics without test data, or test sets or names for another number of clients.
        """
        of_clients, own = by_client(client_tests, n_clients), MetricSet(metrics or {})
        if test is None:
            test = together(None, of_clients)
        else:
            test = test
        if own.given and test is None:
            raise ConfigError("metrics", own.names, "there are no test data to compute them on: give some")
        return EvaluationData(test, of_clients, own, stop, checked_names(names, n_clients))

    @staticmethod
    def nothing() -> EvaluationData:
        """Nothing is tested: in a process that does not report."""
        return EvaluationData(None, {}, MetricSet({}), None, ())

    @property
    def everything(self) -> Dataset[Any] | None:
        """All public examples."""
        return together(self.test, self.of_clients)

    def evaluator(self, model: nn.Module, loss: Loss, *, batched: bool) -> Evaluator | None:
        """What tests a model; None without test data."""
        if self.test is None:
            return None
        return Evaluator(model, loss, self.test, batched=batched, own=self.own)

    def client_tests(self, evaluate: Evaluator | None) -> ClientTests | None:
        """What tests the clients' models, each on its own test set; None where they have none."""
        if evaluate is not None and self.of_clients:
            return ClientTests(evaluate, self.of_clients)
        return None

    def as_many(self, examples: int, privacy: Privacy) -> bool:
        """Whether there are as many test examples as training examples, which may then be the same."""
        return privacy.private and any(size(tested) == examples for tested in self._tested)

    def check(self, population: Population, examples: Sequence[list[bytes]]) -> None:
        """Refuse copies of the training examples; see `ownership.check_test`."""
        for tested in self._tested:
            ownership.check_test(population, tested, examples)

    @property
    def _tested(self) -> list[Dataset[Any]]:
        return [tested for tested in (self.test, together(None, self.of_clients)) if tested is not None]

    def stopping(self, evaluate: Evaluator | None, start: Tensor, stored: Mapping[str, float]) -> EarlyStopping:
        """How long the metric of `stop` has not improved: so far, by what a checkpoint `stored`."""
        if self.stop is None:
            return EarlyStopping()
        if evaluate is None:
            known = []
        else:
            known = known_of(evaluate.names(start), self.of_clients)
        return self.stop.begin(known).restored(stored)
