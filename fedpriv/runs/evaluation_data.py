"""The public data and the metrics with which a run's models are evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients import ownership
from fedpriv.clients.arguments import unwrap_loader
from fedpriv.clients.client import Loss
from fedpriv.clients.datasets import size
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.evaluation.client_tests import (
    ClientTests,
    Tests,
    concatenate,
    index_tests,
    list_reported_names,
    validate_names,
)
from fedpriv.evaluation.custom_metrics import CustomMetric, MetricSet
from fedpriv.evaluation.early_stopping import Stop
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.privacy.settings import Privacy

_ABOUT_AS_MANY = 0.1
"""A run warns if the numbers of test and training examples differ by less than this relative difference."""


@dataclass(frozen=True)
class EvaluationData:
    """Public test data, and the metrics that are computed on them; see the arguments of `train`.

    Attributes:
        test: Test data for the model; None without test data.
        of_clients: The test set of each client that has one.
        custom: The user's own metrics.
        stop: Condition that ends the run early; None without one.
        names: The clients' names; empty if they have none.
    """

    test: Dataset[Any] | None
    of_clients: Tests
    custom: MetricSet
    stop: Stop | None
    names: tuple[str, ...]

    @staticmethod
    def create(
        test: Dataset[Any] | DataLoader[Any] | None,
        client_tests: Sequence[Dataset[Any] | DataLoader[Any] | None] | None,
        metrics: Mapping[str, CustomMetric] | None,
        stop: Stop | None,
        names: Sequence[str] | None,
        n_clients: int,
    ) -> EvaluationData:
        """Builds the evaluation data from the arguments of `train`.

        Raises:
            ConfigError: If there are metrics without test data, or test sets or names for another number of clients.
        """
        examples: Dataset[Any] | None = unwrap_loader("test", test)
        if client_tests is not None:
            client_tests = [
                unwrap_loader(f"client_tests[{index}]", dataset) for index, dataset in enumerate(client_tests)
            ]
        of_clients = index_tests(client_tests, n_clients)
        custom = MetricSet(metrics or {})
        if examples is None:
            examples = concatenate(None, of_clients)
        if custom.metrics_by_name and examples is None:
            raise ConfigError("metrics", custom.names, "metrics need test data: pass the data with test=...")
        return EvaluationData(examples, of_clients, custom, stop, validate_names(names, n_clients))

    @staticmethod
    def nothing() -> EvaluationData:
        """Returns evaluation data without test data, for a process that does not report."""
        return EvaluationData(None, {}, MetricSet({}), None, ())

    @property
    def everything(self) -> Dataset[Any] | None:
        """All public test examples."""
        return concatenate(self.test, self.of_clients)

    def evaluator(self, model: nn.Module, loss: Loss, *, batched: bool) -> Evaluator | None:
        """Returns the evaluator of a model; None without test data."""
        if self.test is None:
            return None
        return Evaluator(model, loss, self.test, batched=batched, custom=self.custom)

    def client_tests(self, evaluate: Evaluator | None) -> ClientTests | None:
        """Returns a function that tests each client's model on its own test set; None if clients have no test sets."""
        if evaluate is not None and self.of_clients:
            return ClientTests(evaluate, self.of_clients)
        return None

    def as_many(self, examples: int, privacy: Privacy) -> bool:
        """True if a private run has about as many test as training examples, so that they may be the same examples."""
        return privacy.private and any(size(tested) == examples for tested in self._tested)

    def warn_of_copies(self, sizes: Sequence[int], privacy: Privacy) -> list[str]:
        """Returns a warning if a private run has about as many test as training examples, by the public sizes.

        The contents of the examples are not compared, because a warning that depends on them would reveal information
        about them.
        """
        if not privacy.private:
            return []
        n_training = sum(sizes)
        counts = [size(tested) for tested in self._tested]
        close = [count for count in counts if abs(count - n_training) <= _ABOUT_AS_MANY * n_training]
        if not close:
            return []
        return [
            f"there are about as many test examples ({close[0]}) as training examples ({n_training}). If the "
            "test examples are copies of training examples, which is not checked, every test metric reveals these "
            "without noise: make sure that the test data belong to other people"
        ]

    def check(self, population: Population, examples: Sequence[list[bytes]]) -> None:
        """Raises an error for test data that are copies of the training examples; see `ownership.check_test`."""
        for tested in self._tested:
            ownership.check_test(population, tested, examples)

    @property
    def _tested(self) -> list[Dataset[Any]]:
        return [tested for tested in (self.test, concatenate(None, self.of_clients)) if tested is not None]

    def metric_names(self, evaluate: Evaluator | None, start: Tensor) -> Collection[str]:
        """Returns the names of the metrics that an evaluation of a round returns.

        Args:
            evaluate: Tests models; None without test data.
            start: The first model, `[dim]`.
        """
        if evaluate is None:
            return []
        return list_reported_names(evaluate.names(start), self.of_clients)
