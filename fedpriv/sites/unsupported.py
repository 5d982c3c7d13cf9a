"""Rejects settings that do not work between organisations, since their guarantee holds in one process only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedpriv.config import Config
from fedpriv.config.network import CohortChoice, NetworkSection, TopologySection
from fedpriv.errors import ConfigError
from fedpriv.network import Graph
from fedpriv.privacy import Cyclic, Independent, Local, Pairwise
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.statistics.description import JoinedStatistics

MOST_ENTRIES = 20_000
"""Entries of the joined vector of statistics."""


def check_settings(config: Config, n_sites: int) -> None:
    """Raises an error if a configuration's guarantee would not hold between `n_sites` organisations, or it names files.

    Raises:
        ConfigError: If a setting is not allowed; the error names it.
    """
    privacy = config.promise(n_sites)
    trust = privacy.trust
    if not privacy.private:
        raise ConfigError(
            "privacy.noise_on",
            privacy.noise_on,
            "a site releases only private query results: set it to 'gradient' or 'message', with a target epsilon "
            "and without strategy.variant 'published'",
        )
    if not isinstance(trust, (Local, Pairwise)):
        fix = (
            "between organisations, the server would receive each site's message with only part of the noise: use "
            "local or pairwise trust"
        )
        raise ConfigError("privacy.trust", str(trust), fix)
    if not isinstance(privacy.noise, Independent) or isinstance(privacy.sampling, Cyclic):
        fix = (
            "the privacy cost of correlated noise and of cyclic batches would be unknown if a site missed a round: use "
            "independent noise, and no cyclic batches"
        )
        raise ConfigError("privacy.noise", "correlated noise or cyclic batches", fix)
    if privacy.allocation_rounds is not None:
        fix = (
            "the privacy cost of random allocation is not known between organisations: a site adds up the costs of all "
            "its plans, and epochs of two plans could be mistaken for one. Use poisson batches"
        )
        raise ConfigError("privacy.sampling", "allocation", fix)
    if not privacy.fsync:
        raise ConfigError(
            "privacy.fsync", False, "a site always writes its ledger to disk before it replies: leave this setting out"
        )
    if config.network.topology.name != "star":
        _check_graph(config.network)
    _check_files(config)


def check_statistics(config: Config, statistics: JoinedStatistics, cards: Sequence[SiteDescriptor]) -> None:
    """Raises an error if statistics of these sites' rows would be wrong, or some sites would not see the answers.

    Args:
        config: The settings of the run that releases them.
        statistics: The statistics.
        cards: The cards of all sites.

    Raises:
        ConfigError: If a setting is not allowed; the error names it.
    """
    if statistics.width > MOST_ENTRIES:
        fix = f"must have at most {MOST_ENTRIES} entries together: ask for fewer statistics, or for fewer bins"
        raise ConfigError("statistics", statistics.width, fix)
    if config.privacy.unit != "sample":
        fix = "statistics between organisations protect single rows: use sample"
        raise ConfigError("privacy.unit", config.privacy.unit, fix)
    for card in cards:
        if card.size_declared:
            fix = (
                "its card states a number of examples that it chose, but a mean over rows needs the true number: leave "
                "public_size out of its site.yaml, or leave the site out"
            )
            raise ConfigError("statistics.sites", card.name, fix)
    network = config.network
    if network.cohort != CohortChoice():
        raise ConfigError("network.cohort", str(network.cohort), "statistics need every site: leave this setting out")
    if network.topology.name == "star":
        return
    built = network.build(len(cards))
    n_links = len(cards) * (len(cards) - 1) // 2
    if not isinstance(built, Graph) or built.graph.number_of_edges() < n_links:
        fix = "must link every two sites, since each site averages the rows that it receives: use {name: complete}"
        raise ConfigError("network.topology", network.topology.name, fix)
    if network.mixing.name != "metropolis" or network.activity.name != "always" or network.outages:
        fix = "statistics need the plain mean of all rows: leave mixing, activity and outages out"
        raise ConfigError("network.mixing", network.mixing.name, fix)


def settings_without_effect(config: Config, planned: Collection[str]) -> list[str]:
    """Returns the settings that were given but have no effect between organisations.

    They concern the training process: its speed, its logs, and when it stops. A plan does not contain them, since each
    organisation chooses them itself.

    Args:
        config: A configuration.
        planned: Names of the sections that a plan has.
    """
    names: list[str] = []
    for section, given in config.model_dump(mode="json", exclude_defaults=True).items():
        if section == "data" or section in planned:  # the server reads its test data from `data`
            continue
        if isinstance(given, dict):
            names += [f"{section}.{field}" for field in given]
        else:
            names.append(section)
    return names


def with_listed_links(config: Config, n_sites: int) -> Config:
    """Returns the configuration with its graph as a list of links, which owners can read and which is not redrawn.

    A star is unchanged. Graphs from files and from the user's own functions also become lists.

    Raises:
        ConfigError: If settings of the network do not fit each other or the number of sites.
    """
    network = config.network.build(n_sites)
    if not isinstance(network, Graph):
        return config
    pairs = sorted([min(a, b), max(a, b)] for a, b in network.graph.edges)
    topology = TopologySection.model_validate({"name": "links", "pairs": pairs})
    return config.model_copy(update={"network": config.network.model_copy(update={"topology": topology})})


def _check_graph(network: NetworkSection) -> None:
    """Raises an error for graph settings that two sites could interpret differently, or that need more exchanges."""
    if network.topology.name != "links":
        fix = (
            "a plan must list its links, so that all owners read the same graph: write {name: links, pairs: [[0, 1], "
            "...]}"
        )
        raise ConfigError("network.topology", network.topology.name, fix)
    if network.mixing.name == "file" or ":" in network.mixing.name:
        fix = "a plan must not name a file or code: use metropolis, lazy_metropolis or max_degree"
        raise ConfigError("network.mixing", network.mixing.name, fix)
    if network.activity.name == "one_peer_exponential":
        fix = (
            "the links of this activity go one way, so a lost message would change the mean of all sites: use "
            "another activity"
        )
        raise ConfigError("network.activity", network.activity.name, fix)
    if network.mixing_steps != 1:
        fix = "a second mixing step would send rows to sites without a link to their sender: leave this setting out"
        raise ConfigError("network.mixing_steps", network.mixing_steps, fix)


def _check_files(config: Config) -> None:
    if config.privacy.budget is not None:
        fix = "a plan names no files, and every site has its own budget in its folder: leave this setting out"
        raise ConfigError("privacy.budget", "(file)", fix)
    if config.secret_seed is not None:
        raise ConfigError("secret_seed", "(given)", "every site creates its own secret seed: leave this setting out")
    if config.model.weights is not None:
        fix = (
            "a plan contains no files and names none on other machines: leave this setting out, to start from the seed"
        )
        raise ConfigError("model.weights", "(file)", fix)
    if config.problem.compare_centralized:
        raise ConfigError(
            "problem.compare_centralized",
            True,
            "the comparison needs the data of all sites in one place: leave this setting out",
        )
    if config.problem.server is not None:
        raise ConfigError(
            "problem.server", "(given)", "between organisations, the server has no data: leave this setting out"
        )
    if config.data.augment:
        fix = (
            "a plan contains nothing about data: leave it out; each site sets its random views in site.yaml, at the "
            "same privacy cost"
        )
        raise ConfigError("data.augment", "(given)", fix)
