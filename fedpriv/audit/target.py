"""The subject of an audit: a run that can be repeated, with other data, as often as a check needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients import Client, ClientShard, Loss, Pair, Population, as_client_set, copy_trainable
from fedpriv.models import Rows
from fedpriv.network import RoundNetwork
from fedpriv.planning import Compute, Plan, check_problem, choose_network, make_plan, with_neighbours
from fedpriv.privacy import Privacy
from fedpriv.runs import Training
from fedpriv.settings import validate_arguments
from fedpriv.strategies import Strategy

Data = list[Pair]
"""Inputs and targets of each client, `[m, ...]` each."""


@validate_arguments("audit")
@dataclass(frozen=True)
class AuditTarget:
    """A run to audit.

    Attributes:
        name: Name of the run, as printed.
        clients: The clients of the run; the audit uses copies of them.
        strategy: The algorithm.
        privacy: The privacy settings, before planning.
        rounds: Number of rounds of the whole run.
        network: The communication network.
        test: Public test data; None if there are none.
        compute: Backend, type of numbers, device.
        options: Further arguments of `Training`, such as metrics and early stopping.
        folder: The files of a finished run; None if there are none.
        runs: A folder that may hold other runs; None if there is no such folder.
        data_name: Name of the data in their configuration; None without one.
    """

    name: str
    clients: Sequence[Client]
    strategy: Strategy
    privacy: Privacy
    rounds: int
    network: RoundNetwork
    test: Dataset[Any] | None = None
    compute: Compute = field(default_factory=Compute)
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folder: Path | None = None
    runs: Path | None = None
    data_name: object = None

    @classmethod
    def of(
        cls,
        clients: Sequence[Client],
        strategy: Strategy,
        privacy: Privacy,
        *,
        rounds: int,
        network: RoundNetwork | None = None,
        **more: Any,  # noqa: ANN401 - the other attributes
    ) -> AuditTarget:
        """Returns a run of these clients, as `fedpriv.train` would make it."""
        name = more.pop("name", strategy.name)
        network = choose_network(len(clients), network)
        return cls(name, clients, strategy.for_rounds(rounds), privacy, rounds, network, **more)

    @property
    def model(self) -> nn.Module:
        """The first client's model; all clients start with its parameters."""
        return self.clients[0].model

    @property
    def loss(self) -> Loss:
        """The clients' loss."""
        return self.clients[0].loss

    @property
    def sizes(self) -> list[int]:
        """Public number of examples of each client."""
        return list(as_client_set(self.clients).sizes)

    def plan(self) -> Plan:
        """Returns the plan of the whole run.

        Raises:
            ConfigError: If the run cannot be made.
        """
        client_set = as_client_set(self.clients)
        problems = list({id(problem): problem for problem in client_set.problems}.values())
        privacy = with_neighbours(self.privacy, problems, sizes_declared=client_set.sizes_declared)
        plan = make_plan(self.strategy, privacy, self.sizes, self.network, rounds=self.rounds)
        check_problem(self.strategy, problems, plan.privacy, plan.queries, compare=False)
        return plan

    def shortened(self, rounds: int) -> AuditTarget:
        """Returns a run of the first `rounds` rounds, with the noise of the whole run."""
        if rounds >= self.rounds:
            return self
        noise = self.plan().privacy.noise_multiplier
        return replace(self, rounds=rounds, privacy=replace(self.privacy, noise_multiplier=noise, epsilon=None))

    def data(self) -> Data:
        """Returns all examples of each client."""
        return [client.examples() for client in self.clients]

    def with_data(self, data: Data) -> list[Client]:
        """Returns new clients with these examples, and with the public sizes of the true ones."""
        return [
            Client(
                copy_trainable(self.model),
                client.loss,
                DataLoader(Rows(*examples)),
                client.public_size if client.size_declared else None,
                client.problem,
            )
            for client, examples in zip(self.clients, data, strict=True)
        ]

    def population(self, data: Data) -> Population:
        """Returns the clients with these examples; their public facts are taken from the true examples."""
        clients = self.with_data(data)
        shard = ClientShard(range(len(clients)), self.sizes, ClientShard.whole(clients).n_objectives)
        return Population(
            clients,
            self.compute.torch_device(),
            getattr(torch, self.compute.dtype),
            self.compute.max_physical_batch_size or 8192,
            shard,
        )

    def training(self, data: Data, **more: Any) -> Training:  # noqa: ANN401 - arguments of a run
        """Returns a run on these examples; `more` are further arguments of `Training`."""
        settings: dict[str, Any] = {"test": self.test, "compute": self.compute, **self.options, **more}
        return Training(
            self.with_data(data),
            self.strategy,
            replace(self.privacy, budget=None),
            rounds=self.rounds,
            network=self.network,
            **settings,
        )
