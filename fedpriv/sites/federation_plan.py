"""The plan of a federation: a document that a server proposes and that every site accepts or rejects by its hash."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import torch
import yaml
from pydantic import Field

from fedpriv.clients import PublicDataInfo
from fedpriv.config import Config
from fedpriv.config.base import GENERATED, Section, check, pattern_validator
from fedpriv.config.statistics import StatisticsConfig, StatisticSection, join_sections
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.planning import make_plan, with_neighbours
from fedpriv.privacy import Privacy
from fedpriv.randomness import Randomness
from fedpriv.reports import wording
from fedpriv.settings import Count, validate_arguments
from fedpriv.sites.descriptor import CertificatePin, SiteDescriptor
from fedpriv.sites.unsupported import check_settings, check_statistics, with_listed_links
from fedpriv.statistics.description import JoinedStatistics
from fedpriv.storage import strict_yaml

PLAN_SECTIONS = ("model", "loss", "problem", "strategy", "privacy", "network", "rounds", "seed")
"""The sections of a configuration that a plan contains. Data, files and logging are separate for each party."""

STATISTICS_SECTIONS = ("privacy", "network", "seed")
"""The sections of a plan for statistics; the others follow from it."""


class Example(Section):
    """The shape and type of one example, equal for all sites.

    Attributes:
        shape: Shape of its input.
        n_classes: Labels are in `[0, n_classes)`; None if labels are numbers.
        whole: True if inputs are integers.
    """

    shape: tuple[Count, ...]
    n_classes: Count | None
    whole: bool = False


class Document(Section):
    """The content of a plan, as its YAML text has it.

    Attributes:
        fedpriv_plan: Version of the format.
        run: `run-` and 32 hexadecimal digits that no other run has.
        settings: The sections `PLAN_SECTIONS` of a configuration, with the noise multiplier filled in; for statistics
            only `STATISTICS_SECTIONS`.
        example: Shape and type of one example; None for statistics.
        statistics: The statistics that are released together; None for training.
        sites: The cards of all sites, in the order of their numbers.
        coordinator: The certificate of the server; None for a transport that needs none.
    """

    fedpriv_plan: Literal[1]
    run: Annotated[str, pattern_validator(r"run-[0-9a-f]{32}", GENERATED)]
    settings: dict[str, Any]
    example: Example | None = None
    statistics: list[StatisticSection] | None = None
    sites: Annotated[list[SiteDescriptor], Field(min_length=1, max_length=10_000)]
    coordinator: CertificatePin | None = None


@dataclass(frozen=True)
class FederationPlan:
    """A plan with its text; the hash of the text identifies the plan.

    Attributes:
        text: The document as it was written.
        document: The parsed document.
    """

    text: str
    document: Document

    @classmethod
    def read(cls, text: str) -> Self:
        """Parses and checks a plan.

        Raises:
            ConfigError: If the text is not a plan, or a setting is not allowed between organisations.
        """
        plan = cls(text, check(Document, strict_yaml.read(text, "plan"), "plan"))
        sections = PLAN_SECTIONS
        if plan.statistics is not None:
            sections = STATISTICS_SECTIONS
        mismatched = {*plan.document.settings} ^ {*sections}
        if mismatched:
            raise ConfigError(
                "plan.settings", sorted(mismatched)[0], f"a plan must have exactly the sections {', '.join(sections)}"
            )
        if (plan.document.example is None) is (plan.document.statistics is None):
            fix = "a plan is either for training, with an example, or for statistics"
            raise ConfigError("plan.statistics", plan.document.statistics, fix)
        for field in ("name", "public_key", "signing_key"):
            if len({getattr(card, field) for card in plan.cards}) < len(plan.cards):
                raise ConfigError(
                    f"plan.sites.{field}", "the same value twice", "each site needs its own name and keys"
                )
        plan._check_certificates()
        return plan

    def _check_certificates(self) -> None:
        """Checks that either all parties have separate certificates, or none has one.

        Raises:
            ConfigError: If only some have certificates, or two have the same name or key.
        """
        pins = [card.certificate for card in self.cards]
        if not self.is_graph:
            pins.append(self.document.coordinator)
        elif self.document.coordinator is not None:
            raise ConfigError("plan.coordinator", "(given)", "a plan on a graph has no server: make it without --keys")
        certificates = [pin for pin in pins if pin is not None]
        if certificates and len(certificates) < len(pins):
            missing = [card.name for card in self.cards if card.certificate is None]
            fix = (
                "if one party has a certificate, all parties need one: run `fedpriv site keys` at the sites and, for a "
                "server, `fedpriv federate keys`"
            )
            raise ConfigError("plan.certificates", f"missing for {(missing or ['the coordinator'])[0]}", fix)
        for field in ("common_name", "public_key"):
            if len({getattr(pin, field) for pin in certificates}) < len(certificates):
                fix = "each party needs its own certificate, with its own name and key"
                raise ConfigError(f"plan.certificates.{field}", "the same value twice", fix)

    @property
    def cards(self) -> Sequence[SiteDescriptor]:
        """The cards of all sites."""
        return self.document.sites

    def number_of(self, name: str, key: bytes) -> int:
        """Returns the number of a site, found by its key.

        Args:
            name: The site's name.
            key: The public half of the key with which it agrees on secrets.

        Raises:
            ConfigError: If the key is not in the plan, or is listed under another name.
        """
        numbers = [number for number, card in enumerate(self.cards) if card.key == key]
        if not numbers or self.cards[numbers[0]].name != name:
            fix = (
                "the plan does not contain this site under its present name and key: make the plan with its present "
                "card"
            )
            raise ConfigError("plan.sites", name, fix)
        return numbers[0]

    @property
    def is_graph(self) -> bool:
        """True if sites communicate with their neighbours on a graph, without a server."""
        return _has_graph(self.document.settings)

    @property
    def has_certificates(self) -> bool:
        """True if the plan names the certificates of all parties, so that it runs over TLS only."""
        return any(card.certificate is not None for card in self.cards)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the text, 64 hexadecimal digits; it covers the settings, noise, sites, keys and run."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The first 128 bits of the hash, in groups of four digits; owners compare it out of band before accepting."""
        return fingerprint_of_hash(self.hash)

    @cached_property
    def statistics(self) -> JoinedStatistics | None:
        """The statistics that the plan releases; None for training.

        Raises:
            ConfigError: If they cannot be used.
        """
        if self.document.statistics is None:
            return None
        return join_sections(self.document.statistics)

    @property
    def purpose(self) -> str:
        """What the plan is for, in plain words."""
        if self.statistics is not None:
            return self.statistics.purpose
        return f"{wording.describe_purpose(self.document.settings)}, {self.rounds} rounds"

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        if self.document.statistics is not None:
            return 1
        return int(self.document.settings["rounds"])

    @property
    def outline(self) -> PublicDataInfo:
        """Public facts about the data of all sites."""
        example = self.document.example
        sizes = tuple(card.size for card in self.cards)
        if self.statistics is not None:
            return PublicDataInfo(sizes, (self.statistics.width,), None, torch.float32)
        assert example is not None
        if example.whole:
            dtype = torch.int64
        else:
            dtype = torch.float32
        return PublicDataInfo(sizes, example.shape, example.n_classes, dtype)

    def config(self) -> Config:
        """Returns the settings as a configuration with a placeholder as data section.

        Raises:
            ConfigError: If a setting cannot be used here, or is not allowed between organisations.
        """
        settings = self.document.settings
        if self.document.statistics is not None:
            settings = _training_settings(settings)
        config = _config(settings, len(self.cards))
        check_settings(config, len(self.cards))
        if self.statistics is not None:
            check_statistics(config, self.statistics, self.cards)
        return config

    def privacy(self, config: Config) -> Privacy:
        """Returns the privacy settings of the plan, from its configuration.

        Raises:
            ConfigError: If they cannot be used for statistics.
            PrivacyError: If statistics would have no noise, or protect something else than single rows.
        """
        privacy = make_privacy(config, self.cards)
        if self.statistics is not None:
            return self.statistics.check_privacy(privacy)
        return privacy


@validate_arguments("propose")
def propose(
    config: Config,
    cards: Sequence[SiteDescriptor],
    like: PublicDataInfo,
    coordinator: CertificatePin | None = None,
) -> FederationPlan:
    """Creates a plan for these sites, with noise that reaches the configuration's target epsilon.

    Args:
        config: The settings; the data section is not used.
        cards: The cards of all sites, in the order of their numbers.
        like: Shape and type of one example.
        coordinator: The certificate of the server; None for a transport that needs none.

    Raises:
        ConfigError: If settings do not fit the sites, or no noise reaches the target.
    """
    config = with_listed_links(config, len(cards))
    check_settings(config, len(cards))
    if config.seed is None:
        seed = secrets.randbits(62)
    else:
        seed = config.seed
    dumped = config.model_dump(mode="json")
    settings: dict[str, Any] = {name: dumped[name] for name in PLAN_SECTIONS} | {"seed": seed}
    if like.target_shape:
        fix = "between organisations an example must have one target, not a sequence: train such models in one process"
        raise ConfigError("data", f"targets of shape {like.target_shape}", fix)
    _fill_in_noise(settings, config, make_privacy(config, cards), cards)
    example = {"shape": [*like.input_shape], "n_classes": like.n_classes, "whole": not like.dtype.is_floating_point}
    return _write({"settings": settings, "example": example}, cards, coordinator)


@validate_arguments("propose")
def propose_statistics(
    asked: StatisticsConfig, cards: Sequence[SiteDescriptor], coordinator: CertificatePin | None = None
) -> FederationPlan:
    """Creates a plan for statistics of these sites' rows, with noise that reaches the configuration's target epsilon.

    Args:
        asked: The statistics and the privacy settings.
        cards: The cards of all sites, in the order of their numbers.
        coordinator: The certificate of the server; None for a transport that needs none.

    Raises:
        ConfigError: If settings do not fit the sites, or no noise reaches the target.
        PrivacyError: If the privacy settings have no noise, or protect something else than single rows.
    """
    dumped = asked.model_dump(mode="json")
    seed = asked.seed
    if seed is None:
        seed = secrets.randbits(62)
    config = check(Config, {"data": _placeholder(len(cards)), **_training_settings(dumped | {"seed": seed})})
    config = with_listed_links(config, len(cards))
    check_settings(config, len(cards))
    statistics = join_sections(asked.statistics)
    check_statistics(config, statistics, cards)
    listed = config.model_dump(mode="json")
    settings: dict[str, Any] = {name: listed[name] for name in STATISTICS_SECTIONS}
    _fill_in_noise(settings, config, statistics.check_privacy(make_privacy(config, cards)), cards)
    return _write({"settings": settings, "statistics": dumped["statistics"]}, cards, coordinator)


def _fill_in_noise(settings: dict[str, Any], config: Config, privacy: Privacy, cards: Sequence[SiteDescriptor]) -> None:
    """Fills in the noise multiplier that reaches the target epsilon."""
    network = config.network.build(len(cards))
    strategy = config.recipe(len(cards)).strategy
    randomness = Randomness(settings["seed"])
    sizes = [card.size for card in cards]
    plan = make_plan(strategy, privacy, sizes, network, rounds=config.rounds, randomness=randomness)
    settings["privacy"] = settings["privacy"] | {"noise_multiplier": plan.privacy.noise_multiplier}


def _write(
    content: dict[str, Any], cards: Sequence[SiteDescriptor], coordinator: CertificatePin | None
) -> FederationPlan:
    """Returns the plan with this content for these sites, under a new name."""
    document = {
        "fedpriv_plan": 1,
        "run": f"run-{secrets.token_hex(16)}",
        **content,
        "sites": [card.model_dump(mode="json") for card in cards],
        "coordinator": None if coordinator is None else coordinator.model_dump(mode="json"),
    }
    return FederationPlan.read(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))


def _training_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the run that releases statistics: one gradient step of a linear model."""
    strategy = {"name": "dp_gd", "learning_rate": 1.0}
    if _has_graph(settings):
        strategy = {"name": "decentralized_sgd", "step_size": 1.0}
    sections = {name: settings[name] for name in STATISTICS_SECTIONS}
    return {"model": "linear_regression", "loss": "mse", "strategy": strategy, "rounds": 1, **sections}


def _has_graph(settings: dict[str, Any]) -> bool:
    """True if settings name a network without a server."""
    network = settings.get("network")
    if not isinstance(network, dict):
        return False
    topology = network.get("topology", "star")
    if isinstance(topology, dict):
        topology = topology.get("name")
    return topology not in (None, "star")


def fingerprint_of_hash(plan_hash: str) -> str:
    """Returns the first 128 bits of a plan's hash, in groups of four digits."""
    return " ".join(plan_hash[start : start + 4] for start in range(0, 32, 4))


def check_fingerprint(field: str, typed: str, hashes: Collection[str]) -> str:
    """Returns the hash of the plan with the fingerprint that an owner has typed and compared with others.

    A prefix of a fingerprint is rejected, since a false plan with the same few digits can be made in seconds.

    Args:
        field: Name of the input, for the error.
        typed: The 32 digits of the fingerprint, or all 64 of the hash; spaces are ignored.
        hashes: The hashes of the candidate plans.

    Raises:
        ConfigError: If it matches none of them.
    """
    digits = "".join(typed.split()).lower()
    for plan_hash in hashes:
        if digits in (plan_hash[:32], plan_hash):
            return plan_hash
        if digits and plan_hash.startswith(digits):
            fix = (
                f"has only {len(digits)} of the 32 digits: type all digits that the owners compared, because a forged "
                "plan can easily match a few of them"
            )
            raise ConfigError(field, typed, fix)
    fix = "is not the fingerprint of a plan here: compare the fingerprint with the other owners, not with the server"
    raise ConfigError(field, typed, fix)


def find_plan(typed: str, hashes: Collection[str]) -> Sequence[str]:
    """Returns the hashes with this fingerprint prefix; only for choosing among accepted plans."""
    digits = "".join(typed.split()).lower()
    return [plan_hash for plan_hash in hashes if digits and plan_hash.startswith(digits)]


def make_privacy(config: Config, cards: Sequence[SiteDescriptor]) -> Privacy:
    """Returns the privacy settings of a federation of these sites."""
    sizes_declared = all(card.size_declared for card in cards)
    problems = config.problem.everyones() * len(cards)
    return with_neighbours(config.promise(len(cards)), problems, sizes_declared=sizes_declared)


def _config(settings: dict[str, Any], n_sites: int) -> Config:
    """Returns a plan's settings as a configuration; errors name the setting as in the plan."""
    try:
        return check(Config, {"data": _placeholder(n_sites), **settings})
    except ConfigError as error:
        raise ConfigError(f"plan.settings.{error.field}", error.value, error.fix) from None
    except FedprivError as error:
        raise ConfigError("plan.settings", "(several)", str(error)) from None


def _placeholder(n_sites: int) -> dict[str, Any]:
    return {"name": "digits", "partition": {"kind": "iid", "n_clients": n_sites}}
