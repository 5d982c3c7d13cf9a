"""The network section of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import networkx as nx
from pydantic import Field, PositiveInt

from fedpriv import plugins
from fedpriv.checks import Count, Probability
from fedpriv.config.base import Choice, Plugin, Section, Spelled, named_fields
from fedpriv.errors import ConfigError
from fedpriv.network.activity import ACTIVITIES, Activity, ActivityEntry, Function, Outage
from fedpriv.network.graph import Graph
from fedpriv.network.links import Undirected
from fedpriv.network.local import Cohort, Everyone, FixedCohort, PoissonCohort, Star
from fedpriv.network.mixing import MIXINGS, Weights
from fedpriv.network.topology import GRAPHS, GraphEntry, checked


def _star(n_clients: int) -> Undirected:
    return nx.star_graph(n_clients)  # the last node is the server; only `facts` would look at it


def _function(function: str) -> Activity:
    """`package.module:name` of a public function of the round that gives links (pairs of nodes)."""
    return Function(plugins.function_of_round(function, Iterable, "network.activity.function"))


_STAR = GraphEntry(_star, "a server that everyone hears (no graph)")
_OF_ROUND = ActivityEntry(_function, "the user's function of the round")
TOPOLOGIES = plugins.Registry({"star": _STAR, **GRAPHS}, GRAPHS.makes)
ALL_ACTIVITIES = plugins.Registry({**ACTIVITIES, "function": _OF_ROUND}, ACTIVITIES.makes)


class TopologySection(Plugin):
    """A graph by name, from a file, or the user's `package.module:function` that gives a networkx graph."""

    field, registry, context = "network.topology", TOPOLOGIES, ("n_clients",)


class MixingSection(Plugin):
    """How weights follow from a graph."""

    field, registry, context = "network.mixing", MIXINGS, ("graph",)

    def rule(self) -> Callable[[Undirected], Weights]:
        """What makes the matrix of a graph."""
        options = self.options  # checked once, not in every round

        def weights(graph: Undirected) -> Weights:
            return plugins.build(self.name, MIXINGS, options, field=self.field, context={"graph": graph})

        return weights


class ActivitySection(Plugin):
    """Who is active, and over which links, in a round."""

    field, registry = "network.activity", ALL_ACTIVITIES


class CohortChoice(Choice):
    """Who takes part in a round: everyone, each with a probability, or a fixed number."""

    neither = "everyone"

    poisson: Probability | None = None
    fixed: Count | None = None

    def build(self) -> Cohort:
        """The setting."""
        if self.poisson is not None:
            return PoissonCohort(self.poisson)
        return FixedCohort(self.fixed) if self.fixed is not None else Everyone()


class NetworkSection(Section):
    """Who hears whom: a star with cohorts, or a graph with mixing, activity and outages."""

    topology: TopologySection = TopologySection(name="star")
    cohort: CohortChoice = CohortChoice()
    mixing: MixingSection = MixingSection(name="metropolis")
    mixing_steps: Annotated[PositiveInt, Field(le=1000)] = 1  # rows agree to the last digit long before
    activity: ActivitySection = ActivitySection(name="always")
    outages: tuple[Annotated[Outage, Spelled(named_fields(Outage))], ...] = ()

    def build(self, n_clients: int) -> Star | Graph:
        """The network of so many clients.

        Raises:
            ConfigError: settings that do not fit each other or the number of clients.
        """
        cohort = self.cohort.build()
        if self.topology.name == "star":
            if self.activity.name != "always" or self.outages:
                field, value = ("outages", str(self.outages)) if self.outages else ("activity", self.activity.name)
                raise ConfigError(f"network.{field}", value, "belongs to graphs; on a star say network.cohort")
            return Star(n_clients, cohort)
        if not isinstance(cohort, Everyone):
            raise ConfigError(
                "network.cohort", str(self.cohort), "belongs to the star; on a graph say network.activity"
            )
        own = self.activity.name == "one_peer_exponential" and not self.outages
        if own and self.mixing.name != "metropolis":
            fix = "one_peer_exponential has weights of its own; leave it out"
            raise ConfigError("network.mixing", self.mixing.name, fix)
        graph = checked(self.topology.build(n_clients=n_clients), n_clients)
        rule = self.mixing.rule()
        weights = rule(graph).toarray() if self.mixing.name == "file" else rule
        activity: Activity = self.activity.build()
        return Graph(graph, weights, activity=activity, outages=self.outages, mixing_steps=self.mixing_steps)

    def check(self, n_clients: int | None) -> None:
        """Refuse a cohort that so many clients cannot fill; they may not be counted yet.

        Raises:
            ConfigError: there are fewer.
        """
        if n_clients is not None and self.topology.name == "star":
            self.build(n_clients)

    def graph(self, n_clients: int) -> Graph:
        """The network, which must be a graph.

        Raises:
            ConfigError: it is a star, or see `build`.
        """
        network = self.build(n_clients)
        if not isinstance(network, Graph):
            raise ConfigError("network.topology", "star", "is no graph; the star graph of peers is called hub")
        return network

    def active_fraction(self, n_clients: int | None) -> float:
        """Expected fraction of clients in a round; 1 where the number of clients is not known yet."""
        if n_clients is None or (self.activity.name == "always" and self.cohort == CohortChoice()):
            return 1.0
        return self.build(n_clients).active_fraction
