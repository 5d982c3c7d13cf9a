"""Nodes of sites in one process, with real folders, a clock by hand, and a network that remembers every byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from scipy import sparse
from sites_in_memory import NAMES, config_of, public_info, sites_of

from fedpriv.clients.population import Population
from fedpriv.config.building import load_data, make_population
from fedpriv.config.schema import Config
from fedpriv.network.graph import Graph
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.sites import FederationPlan, Site, propose
from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.messages import unpack_response
from fedpriv.sites.peers.neighbours import Patience
from fedpriv.sites.peers.node import Node
from fedpriv.sites.peers.node_report import NodeRound
from fedpriv.sites.resolved_plan import ResolvedPlan

RING = "network.topology=ring"
TRACKING = "strategy={name: gradient_tracking, step_size: .5}"
PATIENCE = Patience(first=60.0, later=10.0, ping=0.5)


@dataclass
class Wire:
    """The network: carries and records requests and replies, and loses those that a test selects."""

    nodes: dict[int, Node | None] = field(default_factory=dict)
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)  # from, to, bytes; questions and replies
    loses: Callable[[int, int, bytes, bool], bool] = lambda sender, receiver, data, is_reply: False

    def of(self, sender: int) -> End:
        return End(self, sender)


@dataclass
class End:
    """One site's end of the network."""

    wire: Wire
    number: int

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        replies = {}
        for other, question in questions.items():
            self.wire.sent.append((self.number, other, question))
            node = self.wire.nodes.get(other)
            if node is None or self.wire.loses(self.number, other, question, False):
                continue
            reply = node.answer(question)
            self.wire.sent.append((other, self.number, reply))
            if not self.wire.loses(other, self.number, reply, True):
                replies[other] = reply
        return replies


@dataclass
class Peers:
    """Sites that have accepted a plan on a graph, and their nodes."""

    folder: Path
    config: Config
    proposal: FederationPlan
    sites: dict[int, Site]
    wire: Wire
    now: float = 0.0
    reports: dict[int, list[NodeRound]] = field(default_factory=dict)
    streams: dict[tuple[int, int], Randomness] = field(default_factory=dict)  # of each site in each round

    @property
    def nodes(self) -> dict[int, Node]:
        return {number: node for number, node in self.wire.nodes.items() if node is not None}

    @cached_property
    def resolved_plan(self) -> ResolvedPlan:
        return ResolvedPlan.of(self.proposal)

    def start(self, number: int) -> None:
        """Start a site's node, again if it was killed."""
        if number not in self.sites:
            self.sites[number] = Site(self.folder / NAMES[number])
        self.sites[number].prepare()
        self.remember_streams(number)
        self.wire.nodes[number] = Node(
            self.sites[number],
            self.proposal.hash,
            self.wire.of(number),
            patience=PATIENCE,
            clock=lambda: self.now,
            on_round=self.reports.setdefault(number, []).append,
        )

    def remember_streams(self, number: int) -> None:
        """Note the random streams of each round that a site answers: they are others after a restart."""
        site = self.sites[number]
        answer = site.answer_node

        def noted(question: bytes) -> bytes:
            reply = answer(question)
            content = unpack_response(reply, self.resolved_plan.widths[1])
            if content.message is not None:
                self.streams.setdefault((number, content.round), site._plans.session(self.proposal.hash)._randomness)
            return reply

        site.answer_node = noted

    def kill(self, number: int) -> None:
        """End a node and its site at once: nothing but its folder is left."""
        self.wire.nodes[number] = None
        self.sites.pop(number).close()

    def run(self, until: Callable[[], bool] | None = None, sweeps: int = 3000) -> None:
        """Let all nodes work in turns, until all have ended or `until()`."""
        for sweep in range(sweeps):
            if until is not None and until():
                return
            if until is None and all(node.ended for node in self.nodes.values()):
                return
            for node in list(self.nodes.values()):
                if sweep % 5 == 0:
                    node.greet()
                node.advance()
                if until is not None and until():
                    return
            self.now += 0.2
        raise TimeoutError({number: (node.round, node.ended) for number, node in self.nodes.items()})

    def ledger(self, number: int) -> Sequence[Record]:
        return LedgerFile.read(self.folder / NAMES[number] / "runs" / self.proposal.hash / "ledger.jsonl").records

    def up(self, index: int) -> set[tuple[int, int]]:
        """The links that each end has counted in a round, from that end: both directions, if they agree."""
        pairs = set()
        for number, reports in self.reports.items():
            for report in reports:
                if report.round == index + 1:
                    pairs |= {(number, NAMES.index(name)) for name in report.up}
        return pairs

    def released(self, index: int) -> list[int]:
        """The nodes that took part in a round."""
        return sorted(
            number
            for number, reports in self.reports.items()
            if any(report.round == index + 1 and report.status == "released" for report in reports)
        )

    def close(self) -> None:
        for site in self.sites.values():
            site.close()


def peers(folder: Path, *overrides: str, epsilon: float | Sequence[float] = 50.0, **more: Any) -> Peers:
    config = config_of(RING, *overrides)
    sites = sites_of(folder, config, epsilon, **more)
    proposal = propose(config, [site.card for site in sites.values()], public_info(config))
    for site in sites.values():
        site.join(proposal.text, proposal.fingerprint)
    made = Peers(folder, config, proposal, sites, Wire())
    for number in sites:
        made.start(number)
    return made


@dataclass(frozen=True)
class RecordedStreams(Randomness):
    """The streams of all sites; a real site has its own streams only."""

    streams: Mapping[tuple[int, int], Randomness] = field(default_factory=dict)

    def _keys(self, purpose, round_index, index, clients):
        for client in clients:
            yield next(iter(self.streams[client, round_index]._keys(purpose, round_index, index, [client])))


class RecordedGraph(Graph):
    """A graph with the active nodes and links that nodes reported for each round."""

    found: Peers

    def participants(self, round_index: int, randomness: Randomness) -> torch.Tensor:
        super().participants(round_index, randomness)
        planned = dict(zip(self._cohort.tolist(), self.current.toarray(), strict=True))
        order = self._cohort.tolist()
        active, up = self.found.released(round_index), self.found.up(round_index)
        weights = torch.zeros(len(active), len(active), dtype=torch.float64)
        for i, a in enumerate(active):
            for j, b in enumerate(active):
                if (a, b) in up:
                    weights[i, j] = planned[a][order.index(b)]
            weights[i, i] = 1 - weights[i].sum()
        self._cohort = torch.tensor(active, dtype=torch.long)
        self._current = sparse.csr_array(weights.numpy())
        self._matrix = None
        return self._cohort


@dataclass(frozen=True)
class AllSiteSecrets:
    """The secrets of all pairs; a real site has the secrets of its own pairs only."""

    sites: Sequence[AgreedSecrets | None]

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        return self.sites[i].pair_secret(i, j, purpose)


def in_one_process(found: Peers) -> tuple[torch.Tensor, list[Record]]:
    """The run that one process makes of the same plan, with the seeds of all and the links that were up."""
    resolved_plan = found.resolved_plan
    members = [found.sites[number]._plans.session(resolved_plan.hash) for number in range(len(NAMES))]
    randomness = RecordedStreams(resolved_plan.seed, 0, 0, resolved_plan.hash, streams=found.streams)
    config = found.config.model_copy(update={"seed": resolved_plan.seed})
    clients = make_population(config, load_data(config))
    population = Population(clients)
    start = population.reset_models(resolved_plan.start)
    ledger = Ledger(Accountant(len(clients), resolved_plan.plan.privacy.delta))
    sums = ClippedSums(select_backend("auto", population).backend, len(clients), torch.device("cpu"))
    pair_secrets = AllSiteSecrets([member._secrets() for member in members])
    oracle = data_oracle(
        population,
        sums,
        resolved_plan.plan.privacy,
        ledger,
        randomness,
        pair_secrets=pair_secrets if members[0]._secrets() else None,
    )
    progress = initial_state(resolved_plan.strategy, start.expand(len(clients), -1))
    planned = resolved_plan.new_network()
    assert isinstance(planned, Graph)
    rule = found.proposal.config().network.mixing.rule()
    network = RecordedGraph(planned.graph, rule, activity=planned.activity, outages=planned._outages)
    network.found = found
    for done in run_rounds(resolved_plan.strategy, oracle, network, progress, randomness, rounds=resolved_plan.rounds):
        progress = done.progress
    return progress.models, list(ledger.records)
