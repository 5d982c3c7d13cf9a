"""The network section of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from fedpriv.config.base import Choice, Plugin, Section, YamlFormat, with_field_errors
from fedpriv.errors import ConfigError
from fedpriv.network import (
    ACTIVITIES,
    MIXINGS,
    TOPOLOGIES,
    Activity,
    Cohort,
    CyclicCohort,
    Everyone,
    FixedCohort,
    Graph,
    MixingSteps,
    Outage,
    PoissonCohort,
    Star,
    Undirected,
    Weights,
    check_graph,
    nx,  # noqa: F401 # pyright: ignore[reportUnusedImport] - annotations need it
)
from fedpriv.settings import Count, Probability, plugins


class TopologySection(Plugin):
    """A graph by name, from a file, or from `package.module:function`, which returns a networkx graph."""

    field, registry, context = "network.topology", TOPOLOGIES, ("n_clients",)


class MixingSection(Plugin):
    """The computation of mixing weights from a graph."""

    field, registry, context = "network.mixing", MIXINGS, ("graph",)

    def rule(self) -> Callable[[Undirected], Weights]:
        """Returns the function that computes a graph's mixing matrix."""
        options = self.options  # checked once, not in every round
        return lambda graph: plugins.build(self.name, MIXINGS, options, field=self.field, context={"graph": graph})


class ActivitySection(Plugin):
    """The nodes and links that are active in a round."""

    field, registry = "network.activity", ACTIVITIES


class CohortChoice(Choice):
    """The participants of a round: everyone, each with a probability, a fixed number, or fixed blocks in turn."""

    neither = "everyone"
    words: ClassVar = {"everyone": Everyone, "poisson": PoissonCohort, "fixed": FixedCohort, "cyclic": CyclicCohort}

    poisson: Probability | None = None
    fixed: Count | None = None
    cyclic: Annotated[CyclicCohort, YamlFormat(with_field_errors(CyclicCohort))] | None = None

    def build(self) -> Cohort:
        """Builds the cohorts of a star."""
        if self.poisson is not None:
            return PoissonCohort(self.poisson)
        if self.cyclic is not None:
            return self.cyclic
        if self.fixed is not None:
            return FixedCohort(self.fixed)
        return Everyone()


class NetworkSection(Section):
    """The communication network: a server with cohorts of clients, or a graph with mixing, activity and outages."""

    topology: TopologySection = TopologySection(name="star")
    cohort: CohortChoice = CohortChoice()
    mixing: MixingSection = MixingSection(name="metropolis")
    mixing_steps: MixingSteps = 1
    activity: ActivitySection = ActivitySection(name="always")
    outages: tuple[Annotated[Outage, YamlFormat(with_field_errors(Outage))], ...] = ()

    def build(self, n_clients: int) -> Star | Graph:
        """Builds the network of `n_clients` clients.

        Raises:
            ConfigError: If settings do not fit each other or the number of clients.
        """
        cohort = self.cohort.build()
        if self.topology.name == "star":
            if self.activity.name != "always" or self.outages:
                field = "activity"
                value = self.activity.name
                if self.outages:
                    field = "outages"
                    value = str(self.outages)
                fix = "is for graphs, but this network has a server (topology star): use network.cohort instead"
                if self.outages:
                    fix = (
                        "is for graphs, but this network has a server (topology star): use network.cohort instead, or "
                        "leave it out, so that all clients take part. For a client that joins late, train in two "
                        "parts (Special cases in the docs)"
                    )
                raise ConfigError(f"network.{field}", value, fix)
            return Star(n_clients, cohort)
        if not isinstance(cohort, Everyone):
            fix = (
                "is for a network with a server (topology star), but this one is a graph: use network.activity instead"
            )
            raise ConfigError("network.cohort", str(self.cohort), fix)
        has_own_weights = self.activity.name == "one_peer_exponential" and not self.outages
        if has_own_weights and self.mixing.name != "metropolis":
            fix = "cannot be set, because the activity one_peer_exponential sets its own mixing weights: leave it out"
            raise ConfigError("network.mixing", self.mixing.name, fix)
        graph = check_graph(self.topology.build(n_clients=n_clients), n_clients)
        rule = self.mixing.rule()
        if self.mixing.name == "file":
            weights = rule(graph).toarray()
        else:
            weights = rule
        activity: Activity = self.activity.build()
        return Graph(graph, weights, activity=activity, outages=self.outages, mixing_steps=self.mixing_steps)

    def active_fraction(self, n_clients: int | None) -> float:
        """Returns the expected fraction of clients in a round; 1 if the number of clients is not known yet."""
        if n_clients is None or (self.activity.name == "always" and self.cohort == CohortChoice()):
            return 1.0
        return self.build(n_clients).active_fraction
