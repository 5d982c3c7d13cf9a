"""Sites and a server in one process, with real folders, and a transport that remembers every byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fedpriv.clients.population import Population
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import load_config
from fedpriv.config.building import load_data, make_population
from fedpriv.config.schema import Config
from fedpriv.network.local import Star
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.sites import Federation, FederationPlan, Site, propose
from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.resolved_plan import ResolvedPlan

BARE = Path(__file__).parents[1] / "run.yaml"
NAMES = ("north", "east", "south", "west")


def config_of(*overrides: str) -> Config:
    return load_config(BARE, ["data.partition={kind: dirichlet, n_clients: 4, alpha: 5.0}", "rounds=4", *overrides])


@dataclass
class InMemory:
    """Carries questions to sites and remembers both."""

    sites: dict[int, Site]
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    received: list[tuple[int, bytes]] = field(default_factory=list)
    spoil: Callable[[int, bytes], bytes | None] = lambda site, reply: reply

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        found: dict[int, bytes] = {}
        for number, question in questions.items():
            self.received.append((number, question))
            if number in self.sites:
                reply = self.sites[number].answer(question)
                self.sent.append((number, reply))
                spoiled = self.spoil(number, reply)
                if spoiled is not None:
                    found[number] = spoiled
        return found


@dataclass
class Party:
    """Sites that have accepted a plan, and their server."""

    folder: Path
    config: Config
    proposal: FederationPlan
    sites: dict[int, Site]
    transport: InMemory
    federation: Federation

    def close(self) -> None:
        for site in self.sites.values():
            site.close()
        self.federation.close()


def sites_of(folder: Path, config: Config, epsilon: float | Sequence[float] = 50.0, **more: Any) -> dict[int, Site]:
    made: dict[int, Site] = {}
    for number, name in enumerate(NAMES):
        limit = epsilon if isinstance(epsilon, float) else epsilon[number]
        data = config.data.model_dump(mode="json")
        told = {"name": name, "data": data, "client": number, "budget": {"epsilon": limit, "delta": 1e-5}, **more}
        settings = folder / f"{name}.yaml"
        settings.write_text(yaml.safe_dump(told))
        made[number] = Site.create(folder / name, settings)
    return made


def public_info(config: Config) -> PublicDataInfo:
    split = load_data(config)
    return PublicDataInfo.of([split.test], split.n_classes)


def party(folder: Path, *overrides: str, epsilon: float | Sequence[float] = 50.0, **more: Any) -> Party:
    config = config_of(*overrides)
    sites = sites_of(folder, config, epsilon, **more)
    proposal = propose(config, [site.card for site in sites.values()], public_info(config))
    for site in sites.values():
        site.join(proposal.text, proposal.fingerprint)
    transport = InMemory(dict(sites))
    federation = Federation(proposal, transport, folder / "server", load_data(config).test)
    return Party(folder, config, proposal, sites, transport, federation)


@dataclass(frozen=True)
class AllSiteStreams(Randomness):
    """The streams and pair secrets of all sites; a real site has its own only."""

    sites: tuple[Randomness, ...] = ()
    secrets: tuple[AgreedSecrets, ...] = ()

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        return self.secrets[i].pair_secret(i, j, purpose)

    def _keys(self, purpose, round_index, index, clients):
        for client in clients:
            yield next(iter(self.sites[client]._keys(purpose, round_index, index, [client])))

    def of_examples(self, purpose, round_index, index, examples, size):
        rows = [self.sites[one[0]].of_examples(purpose, round_index, index, [one], size) for one in examples]
        return np.concatenate(rows) if rows else np.empty((0, size))


def in_one_process(found: Party) -> tuple[torch.Tensor, list[Record], list[torch.Tensor]]:
    """Runs the plan in one process with the seeds of all sites; returns model, records and broadcasts."""
    resolved_plan = ResolvedPlan.of(found.proposal)
    members = [site._plans.session(resolved_plan.hash) for site in found.sites.values()]
    streams = tuple(member._randomness for member in members)
    secrets = tuple(member.agreed_secrets() for member in members)
    randomness = AllSiteStreams(resolved_plan.seed, 0, 0, resolved_plan.hash, sites=streams, secrets=secrets)
    config = found.config.model_copy(update={"seed": resolved_plan.seed})
    clients = make_population(config, load_data(config))
    population = Population(clients)
    start = population.reset_models(resolved_plan.start)
    ledger = Ledger(Accountant(len(clients), resolved_plan.plan.privacy.delta))
    sums = ClippedSums(select_backend("auto", population).backend, len(clients), torch.device("cpu"))
    oracle = data_oracle(population, sums, resolved_plan.plan.privacy, ledger, randomness)
    progress = initial_state(resolved_plan.strategy, start.expand(len(clients), -1))
    received = []
    network = Star(len(clients), resolved_plan.network.cohort)
    for done in run_rounds(resolved_plan.strategy, oracle, network, progress, randomness, rounds=resolved_plan.rounds):
        progress = done.progress
        received.append(progress.received.clone())
    return progress.models.mean(0), list(ledger.records), received


def bare(record: Record) -> Record:
    """The record without what differs: noise of another attempt, and last digits of a bound that answers gave."""
    return replace(record, attempt=0, bound=float(f"{record.bound:.6g}"))
