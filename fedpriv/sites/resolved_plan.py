"""A plan as objects (strategy, privacy costs, cohorts, initial values) that are equal on the server and all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clients import Layout
from fedpriv.config import Config
from fedpriv.config.building import make_model
from fedpriv.errors import ConfigError
from fedpriv.network import ClientInput, Graph, Star, TrainState, client_update, initial_state, run_rounds
from fedpriv.oracle import recording_oracle
from fedpriv.planning import Plan, check_problem, make_plan
from fedpriv.privacy import Complete, KeyAgreedPairwise, Pairwise, Privacy
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.randomness import Randomness
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.model_size import check_model_size, compute_largest_in_memory
from fedpriv.statistics.description import Description, JoinedStatistics, planned_deviation
from fedpriv.strategies import Leaf, Strategy, shared_leaves

_SUMS = "statistic:constraints"


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan, resolved to the objects that a server and its sites train with.

    Attributes:
        hash: Hash of the plan.
        cards: The cards of all sites, by number.
        strategy: The algorithm.
        network: A star of all sites, or the graph on which they communicate with their neighbours only.
        plan: All planned releases, and the privacy settings.
        rounds: Number of rounds.
        seed: The public seed.
        model: The model at its initial values.
        loss: The loss.
        config: The settings.
        statistics: The statistics that are released; None for training.
    """

    hash: str
    cards: Sequence[SiteDescriptor]
    strategy: Strategy
    network: Star | Graph
    plan: Plan
    rounds: int
    seed: int
    model: nn.Module
    loss: nn.Module
    config: Config
    statistics: JoinedStatistics | None = None

    @classmethod
    def of(cls, proposal: FederationPlan) -> ResolvedPlan:
        """Resolves a plan.

        Raises:
            ConfigError: If settings do not fit each other, or the model does not fit into memory.
        """
        config = proposal.config()
        statistics = proposal.statistics
        limit = compute_largest_in_memory()
        if limit is not None and statistics is None:
            check_model_size(config, proposal.outline, limit, "plan.model", "this machine's memory allows at most")
        cards = proposal.cards
        network = config.network.build(len(cards))
        privacy = with_key_agreement(proposal.privacy(config))
        seed = config.seed
        if privacy.noise_multiplier is None or seed is None:
            if seed is None:
                missing = "seed"
            else:
                missing = "privacy.noise_multiplier"
            raise ConfigError(f"plan.settings.{missing}", None, "a plan must have a value for this setting")
        strategy = config.recipe(len(cards)).strategy
        sizes = [card.size for card in cards]
        public = Randomness(seed, 0)  # only public streams are drawn from it
        plan = make_plan(strategy, privacy, sizes, network, rounds=config.rounds, randomness=public)
        check_problem(strategy, config.problem.everyones(), privacy, plan.queries, compare=False)
        if statistics is None:
            model, loss = make_model(config, proposal.outline)
        else:
            model, loss = statistics.make_model(), statistics.make_loss()
        return cls(
            hash=proposal.hash,
            cards=cards,
            strategy=strategy,
            network=network,
            plan=plan,
            rounds=config.rounds,
            seed=seed,
            model=model,
            loss=loss,
            config=config,
            statistics=statistics,
        )

    def describe(self, model: Tensor, spent: PrivacySpent) -> Description:
        """Returns the answers of statistics.

        Args:
            model: The model after the round, `[dim]`, computed from the messages of all sites.
            spent: The privacy cost.
        """
        assert self.statistics is not None
        sizes = tuple(self.sizes)
        deviation = planned_deviation(self.plan, sizes)
        answers = self.statistics.answers(-model.double().numpy(), deviation, sum(sizes))
        return Description(answers, spent, sizes, deviation)

    def half_widths(self) -> Mapping[str, Mapping[str, float]]:
        """Returns about half of the width of each interval of statistics, by statistic and label."""
        assert self.statistics is not None
        return self.statistics.half_widths(planned_deviation(self.plan, self.sizes), sum(self.sizes))

    @property
    def sizes(self) -> list[int]:
        """Public number of examples of each site."""
        return [card.size for card in self.cards]

    @property
    def is_graph(self) -> bool:
        """True if sites communicate with their neighbours only, without a server."""
        return isinstance(self.network, Graph)

    @property
    def needs_everyone(self) -> bool:
        """True if a round needs the messages of all sites."""
        return self.statistics is not None or not {_SUMS, "exact"}.isdisjoint(self.plan.queries)

    @property
    def leaves_out(self) -> bool:
        """True if sites omit the pair noise that they share with a site that has signed an absence notice.

        True only if every two sites share a secret: then each site's privacy cost holds for any notices that the others
        receive (docs/protocol.md). If only some pairs share a secret, it would not hold. On a graph there is no party
        that sends notices to all.
        """
        trust = self.plan.privacy.trust
        if self.is_graph:
            return False
        return isinstance(trust, KeyAgreedPairwise) and isinstance(trust.secrets, Complete) and not self.needs_everyone

    @property
    def public(self) -> Randomness:
        """The public random streams; this object has no secret streams."""
        return Randomness(self.seed, 0, run=self.hash)

    @cached_property
    def start(self) -> Tensor:
        """The initial model, `[dim]`."""
        return Layout.of(self.model).row_of(self.model)

    def begin(self) -> TrainState:
        """Returns the state of all sites before round 0."""
        return initial_state(self.strategy, self.start.expand(len(self.cards), -1))

    def cohort(self, index: int) -> Tensor:
        """Returns the numbers of the sites that take part in a round, sorted."""
        if isinstance(self.network, Graph):
            return torch.tensor(self.network.active(index, self.public), dtype=torch.long)
        return Star(len(self.cards), self.network.cohort).participants(index, self.public)

    def new_network(self) -> Star | Graph:
        """Returns a new network for one user, since a network stores the round that it drew last."""
        return self.config.network.build(len(self.cards))

    @cached_property
    def common(self) -> Sequence[Mapping[str, Leaf]]:
        """The public leaves of sites' state before each round; they follow from the plan and are never sent."""
        first = initial_state(self.strategy, torch.zeros(1, 1).expand(len(self.cards), 1))
        oracle = recording_oracle(self.plan.privacy, self.sizes)
        network = self.new_network()
        rounds = run_rounds(self.strategy, oracle, network, first, self.public, rounds=self.rounds)
        return [shared_leaves(first.local), *(shared_leaves(done.progress.local) for done in rounds)]

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Number of values that a site receives in a round, and number of values that it sends."""
        first = self.begin()
        everyone = torch.arange(len(self.cards))
        client_input = ClientInput(0, everyone, first.received, shared_leaves(first.local))
        oracle = recording_oracle(self.plan.privacy, self.sizes)
        message, _ = client_update(self.strategy, oracle, client_input, first.local)
        return first.received.shape[1], message.shape[1]


def with_key_agreement(privacy: Privacy) -> Privacy:
    """Returns the same settings, with pairs of sites agreeing on their shared secrets by their public keys."""
    trust: Any = privacy.trust
    if not isinstance(trust, Pairwise):
        return privacy
    return replace(privacy, trust=KeyAgreedPairwise(trust.colluders, trust.ratio, trust.secrets))
