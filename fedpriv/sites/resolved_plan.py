"""What a plan means: strategy, prices, cohorts and initial values, the same for the server and for every site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clients.layout import Layout
from fedpriv.config import Config
from fedpriv.config.building import make_model
from fedpriv.errors import ConfigError
from fedpriv.network.local import Star
from fedpriv.network.rounds import ClientInput, TrainState, client_update, initial_state, run_rounds
from fedpriv.oracle.dry_run import recording_oracle
from fedpriv.planning import compatibility
from fedpriv.planning.plan import Plan, make_plan
from fedpriv.privacy.pairwise import Complete, KeyAgreedPairwise, Pairwise
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan, promise
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import Leaf, shared_leaves

_SUMS = "statistic:constraints"


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan, ready to be followed.

    Attributes:
        hash: Of the plan.
        cards: Everybody's card.
        strategy: The algorithm.
        network: A star of all sites.
        plan: What is going to be released, and the settings of privacy.
        rounds: Number of rounds.
        seed: Public.
        model: What is trained, at its initial values.
        loss: What is minimised.
        config: The settings.
    """

    hash: str
    cards: Sequence[SiteDescriptor]
    strategy: Strategy
    network: Star
    plan: Plan
    rounds: int
    seed: int
    model: nn.Module
    loss: nn.Module
    config: Config

    @classmethod
    def of(cls, proposal: FederationPlan) -> ResolvedPlan:
        """What a plan means.

        Raises:
            ConfigError: settings do not fit each other.
        """
        config, cards = proposal.config(), proposal.cards
        network = config.network.build(len(cards))
        assert isinstance(network, Star)
        privacy, seed = agreed(promise(config, cards)), config.seed
        if privacy.noise_multiplier is None or seed is None:
            if seed is None:
                missing = "seed"
            else:
                missing = "privacy.noise_multiplier"
            raise ConfigError(f"plan.settings.{missing}", None, "a plan has it filled in")
        recipe, sizes = config.recipe(len(cards)), [card.size for card in cards]
        public = Randomness(seed, 0)  # only public streams are drawn from it
        plan = make_plan(recipe.strategy, privacy, sizes, network, rounds=config.rounds, randomness=public)
        compatibility.check_problem(recipe.strategy, config.problem.everyones(), privacy, plan.asked, compare=False)
        model, loss = make_model(config, proposal.outline)
        found = recipe.strategy, network, plan, config.rounds, seed, model, loss, config
        return cls(proposal.hash, cards, *found)

    @property
    def sizes(self) -> list[int]:
        """Public number of examples of each site."""
        return [card.size for card in self.cards]

    @property
    def needs_everyone(self) -> bool:
        """Whether a round is nothing without the messages of all sites."""
        return not {_SUMS, "exact"}.isdisjoint(self.plan.asked)

    @property
    def leaves_out(self) -> bool:
        """Whether the pairs of a site that has signed that it is absent are left out by the others.

        Only where every two sites share a secret: there each site's price holds whatever notices the others are shown
        (docs/protocol.md). Where only some pairs do, it would not.
        """
        trust = self.plan.privacy.trust
        return isinstance(trust, KeyAgreedPairwise) and isinstance(trust.secrets, Complete) and not self.needs_everyone

    @property
    def public(self) -> Randomness:
        """The public streams. What is secret is no one's business here."""
        return Randomness(self.seed, 0, run=self.hash)

    @cached_property
    def start(self) -> Tensor:
        """The initial model, `[dim]`."""
        return Layout.of(self.model).row_of(self.model)

    def begin(self) -> TrainState:
        """The state before round 0, of all sites."""
        return initial_state(self.strategy, self.start.expand(len(self.cards), -1))

    def cohort(self, index: int) -> Tensor:
        """Numbers of the sites that take part in a round, sorted."""
        return Star(len(self.cards), self.network.cohort).participants(index, self.public)

    @cached_property
    def common(self) -> Sequence[Mapping[str, Leaf]]:
        """Public parts of sites' state before each round: they follow from the plan, so nobody needs to send them."""
        first = initial_state(self.strategy, torch.zeros(1, 1).expand(len(self.cards), 1))
        oracle, network = recording_oracle(self.plan.privacy, self.sizes), Star(len(self.cards), self.network.cohort)
        rounds = run_rounds(self.strategy, oracle, network, first, self.public, rounds=self.rounds)
        return [shared_leaves(first.local), *(shared_leaves(done.progress.local) for done in rounds)]

    @cached_property
    def widths(self) -> tuple[int, int]:
        """How many numbers a site hears in a round, and how many it says."""
        first, everyone = self.begin(), torch.arange(len(self.cards))
        call = ClientInput(0, everyone, first.received, shared_leaves(first.local))
        said, _ = client_update(self.strategy, recording_oracle(self.plan.privacy, self.sizes), call, first.local)
        return first.received.shape[1], said.shape[1]


def agreed(privacy: Privacy) -> Privacy:
    """The promise, where pairs of sites agree on secrets themselves."""
    trust: Any = privacy.trust
    if not isinstance(trust, Pairwise):
        return privacy
    return replace(privacy, trust=KeyAgreedPairwise(trust.colluders, trust.ratio, trust.secrets))
