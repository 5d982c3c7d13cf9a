"""Measures the models of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset

from fedpriv.clients.population import Population
from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Mesh
from fedpriv.evaluation import constrained, metrics
from fedpriv.evaluation.client_tests import ClientTests
from fedpriv.evaluation.evaluator import Evaluator, summarize_range
from fedpriv.models.nested import Rows
from fedpriv.network.rounds import TrainState
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.oracle.oracle import Oracle
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.lagrangian import HasMultipliers, Measured

AT_THE_END = 1000  # test examples for each node's model
_AS_IT_GOES = 20_000  # the same for all nodes together, during a run


@dataclass(frozen=True)
class ModelMetrics:
    """Measures the models of one run.

    Args:
        population: The clients.
        strategy: The algorithm, for its regulariser.
        evaluate: Tests a model on public data; None without test data.
        optimum: Smallest value of the objective, if known.
        client_tests: Tests each client's model on its own public test set; None without such sets.
        names: The clients' public names; empty if they have none.
        start: Starting point `[dim]` of the centralised solver for problems with constraints; None does not run it.
    """

    population: Population
    strategy: Strategy
    evaluate: Evaluator | None
    optimum: float | None
    start: Tensor | None = None
    client_tests: ClientTests | None = None
    names: tuple[str, ...] = ()

    def of_clients(self, progress: TrainState) -> dict[str, Any]:
        """Returns test metrics over clients, each client's model on its own public test set; see `ClientTests`."""
        if self.client_tests is None:
            return {}
        return self.client_tests(progress.models)

    def by_name(self, progress: TrainState) -> dict[str, Any]:
        """Returns the clients' names, and the test metrics of those that have a test set, by name; empty without names.

        It lists all clients, independent of the participants of each round, and is computed from released models and
        public examples alone.
        """
        if not self.names:
            return {}
        facts: dict[str, Any] = {"client_names": [*self.names]}
        if self.client_tests is not None:
            metrics_of_clients = self.client_tests.each(progress.models)
            facts["client_tests"] = {self.names[client]: values for client, values in metrics_of_clients.items()}
        return facts

    def test_model(self, progress: TrainState) -> dict[str, float]:
        """Returns test metrics of the model (the mean over nodes), on public data; empty without test data."""
        if self.evaluate is None:
            return {}
        return self.evaluate(average_reported_models(progress))

    def of_nodes(self, progress: TrainState, examples: int | None = None) -> dict[str, Any]:
        """Returns the distance between nodes' models, and their test metrics, computed from public and released values.

        Args:
            progress: The state of the run.
            examples: Number of test examples, evenly spread among all, for each node's model. The default is 1000; with
                more than 20 nodes it is smaller, but at least 100, to save time.

        Returns:
            Metrics of nodes (`consensus_distance`) and, with test data, test metrics (`node_test_accuracy`), each with
            its `min`, `mean` and `max` over nodes. Empty if all nodes have the same model.
        """
        models = progress.models
        if not models_differ(progress):
            return {}
        values: dict[str, Any] = {row.name: row.function(models) for row in metrics.OF_NODES}
        if self.evaluate is None:
            return values
        count = examples or min(AT_THE_END, max(100, _AS_IT_GOES // len(models)))
        each = self.evaluate.of_each(models, count)
        return values | {f"node_{name}": summarize_range([of_node[name] for of_node in each]) for name in each[0]}

    def of_run(self, progress: TrainState) -> dict[str, float]:
        """Returns public facts of the run so far, such as the bytes sent."""
        return {row.name: row.function(progress) for row in metrics.OF_RUN}

    def optimality_gap(self, params: Tensor) -> float | None:
        """Returns the objective at `params [dim]` on all training data minus the optimum. It has no noise, so it is not
        private.
        """
        if self.optimum is None:
            return None
        population = self.population
        data = ConcatDataset([Rows(*population.examples_of(i)) for i in range(len(population))])
        loss = Evaluator(population.model, population.loss, data)(params)["test_loss"]
        return loss + float(self.strategy.regularizer.value(params)) - self.optimum

    def of_multipliers(
        self, progress: TrainState, oracle: Oracle[DataQueryEngine], mesh: Mesh, shard: ClientShard
    ) -> dict[str, float]:
        """Returns metrics of a round with constraints; in a private run they are computed from released values only.

        All processes call it together.
        """
        local = progress.local
        if (
            local is None
            or not isinstance(local, HasMultipliers)
            or (oracle.privacy.private and not isinstance(local, Measured))
        ):
            return {}
        return constrained.round_metrics(oracle, local, mesh, shard)

    def of_constraints(
        self, progress: TrainState, oracle: Oracle[DataQueryEngine], mesh: Mesh, shard: ClientShard
    ) -> dict[str, Any]:
        """Returns further results of a run with constraints; in a private run they are computed from released values
        only.

        All processes call it together. Rank 0 passes the models of all clients, and gets the result.
        """
        local = progress.local
        if not isinstance(local, HasMultipliers) or progress.round == 0:
            return {}
        if oracle.privacy.private:
            if isinstance(local, Measured):
                return constrained.private_report(progress, oracle, local, mesh, shard)
            return {}
        regularizer = self.strategy.regularizer
        params = mesh.world.broadcast(lambda: average_reported_models(progress))
        report = constrained.exact_report(
            progress, oracle.engine.problem, params, local.multipliers, regularizer, mesh, shard
        )
        if self.start is not None:
            best = constrained.centralised_al(oracle.engine.problem, self.start, regularizer=regularizer)
            names = ("objective", "converged", "outer_rounds", "evaluations", "cpu_seconds")
            report["centralised"] = {name: getattr(best, name) for name in names}
            difference = abs(report["objective"] - best.objective)
            if best.objective:
                report["relative_difference"] = difference / abs(best.objective)
            else:
                report["relative_difference"] = None
        return report


def models_differ(progress: TrainState) -> bool:
    """True if clients may have different models."""
    return progress.models.stride(0) != 0 and progress.models.shape[0] > 1


def average_reported_models(progress: TrainState) -> Tensor:
    """Returns the model of a run: the mean of the reported models, `[dim]`."""
    if models_differ(progress):
        return progress.models.mean(0)
    return progress.models[0]


def flatten_summaries(values: dict[str, Any]) -> dict[str, float]:
    """Flattens `{"a": {"min": 1}, "b": 2}` to `{"a_min": 1, "b": 2}`, for files with one number a column."""
    inner = {
        f"{name}_{statistic}": v
        for name, value in values.items()
        if isinstance(value, dict)
        for statistic, v in value.items()
    }
    return {name: value for name, value in values.items() if not isinstance(value, dict)} | inner
