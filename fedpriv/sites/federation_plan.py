"""The plan of a federation: a document that a server proposes and that every site accepts, or not, by its hash."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
import yaml
from pydantic import Field

from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import Config
from fedpriv.config.base import Section, check
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.planning.plan import make_plan, with_neighbours
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.settings.checks import Count, checked
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.unsupported import check_settings
from fedpriv.storage import strict_yaml

TOLD = ("model", "loss", "problem", "strategy", "privacy", "network", "rounds", "seed")
"""The sections of a configuration that a plan has. Data, files and logging are each party's own."""


class Example(Section):
    """What one example of every site looks like.

    Attributes:
        shape: Of its input.
        n_classes: Labels are in `[0, n_classes)`; None for numbers.
        whole: Whether inputs are whole numbers.
    """

    shape: tuple[Count, ...]
    n_classes: Count | None
    whole: bool = False


class Document(Section):
    """A plan as it is written, in YAML.

    Attributes:
        fedpriv_plan: Version of the format.
        run: `run-` and 32 hexadecimal digits that no other run has.
        settings: The sections `TOLD` of a configuration, with the noise multiplier filled in.
        example: What one example looks like.
        sites: Everybody's card, in the order of their numbers.
    """

    fedpriv_plan: Literal[1]
    run: Annotated[str, Field(pattern=r"^run-[0-9a-f]{32}$")]
    settings: dict[str, Any]
    example: Example
    sites: Annotated[list[SiteDescriptor], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True)
class FederationPlan:
    """A plan, and the text by whose hash it is known.

    Attributes:
        text: The document, as it was written.
        document: The same, read.
    """

    text: str
    document: Document

    @classmethod
    def read(cls, text: str) -> Self:
        """Read and check a plan.

        Raises:
            ConfigError: it is none, or what it asks is refused between organisations.
        """
        found = cls(text, check(Document, strict_yaml.read(text, "plan"), "plan"))
        if other := {*found.document.settings} ^ {*TOLD}:
            raise ConfigError("plan.settings", sorted(other)[0], f"a plan has exactly {', '.join(TOLD)}")
        for field in ("name", "public_key", "signing_key"):
            if len({getattr(card, field) for card in found.cards}) < len(found.cards):
                raise ConfigError(f"plan.sites.{field}", "the same twice", "every site has one of its own")
        return found

    @property
    def cards(self) -> Sequence[SiteDescriptor]:
        """Everybody's card."""
        return self.document.sites

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text, 64 hexadecimal digits: it names settings, noise, sites and keys, and the run."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """128 bits of the hash, in groups of four: what owners compare by another way before they accept."""
        return " ".join(self.hash[at : at + 4] for at in range(0, 32, 4))

    @property
    def outline(self) -> PublicDataInfo:
        """Public facts about everybody's data."""
        example, sizes = self.document.example, tuple(card.size for card in self.cards)
        return PublicDataInfo(sizes, example.shape, example.n_classes, torch.int64 if example.whole else torch.float32)

    def config(self) -> Config:
        """The settings as a configuration, whose section of data has no meaning.

        Raises:
            ConfigError: a setting cannot be used here, or is refused between organisations.
        """
        found = _config(self.document.settings, len(self.cards))
        check_settings(found, len(self.cards))
        return found


@checked("propose")
def propose(config: Config, cards: Sequence[SiteDescriptor], like: PublicDataInfo) -> FederationPlan:
    """A plan for these sites, whose noise reaches the configuration's target epsilon.

    Args:
        config: The settings; their section of data says nothing of the sites'.
        cards: Everybody's card, in the order of their numbers.
        like: What one example looks like.

    Raises:
        ConfigError: settings do not fit the sites, or no noise reaches the target.
    """
    check_settings(config, len(cards))
    if config.seed is None:
        seed = secrets.randbits(62)
    else:
        seed = config.seed
    dumped = config.model_dump(mode="json")
    settings: dict[str, Any] = {name: dumped[name] for name in TOLD} | {"seed": seed}
    privacy, sizes, network = promise(config, cards), [card.size for card in cards], config.network.build(len(cards))
    recipe, public = config.recipe(len(cards)), Randomness(seed)
    plan = make_plan(recipe.strategy, privacy, sizes, network, rounds=config.rounds, randomness=public)
    settings["privacy"] = settings["privacy"] | {"noise_multiplier": plan.privacy.noise_multiplier}
    example = {"shape": [*like.input_shape], "n_classes": like.n_classes, "whole": not like.dtype.is_floating_point}
    told = {
        "fedpriv_plan": 1,
        "run": f"run-{secrets.token_hex(16)}",
        "settings": settings,
        "example": example,
        "sites": [card.model_dump(mode="json") for card in cards],
    }
    text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120)
    return FederationPlan.read(text)


def promise(config: Config, cards: Sequence[SiteDescriptor]) -> Privacy:
    """The privacy settings of a federation of these sites."""
    declared, problems = all(card.size_declared for card in cards), config.problem.everyones()
    return with_neighbours(config.promise(len(cards)), problems * len(cards), sizes_declared=declared)


def _config(settings: dict[str, Any], n_sites: int) -> Config:
    nobody = {"name": "digits", "partition": {"kind": "iid", "n_clients": n_sites}}
    try:
        return check(Config, {"data": nobody, **settings})
    except ConfigError as error:
        raise ConfigError(f"plan.settings.{error.field}", error.value, error.fix) from None
    except FedprivError as error:
        raise ConfigError("plan.settings", "(some)", str(error)) from None
