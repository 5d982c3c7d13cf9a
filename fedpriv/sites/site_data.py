"""The examples of a site: loaded according to its settings, and checked against a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedpriv import models
from fedpriv.clients import Client, ClientShard, Population, PublicDataInfo, check_ownership, public_sizes, size
from fedpriv.config.building import divide_examples, load_section
from fedpriv.config.schema import DataSection
from fedpriv.data import Split
from fedpriv.errors import ConfigError, DataError
from fedpriv.oracle import validate_per_example
from fedpriv.planning import check_problem, warn
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_settings import SiteSettings
from fedpriv.sites.statistics_policy import read_table
from fedpriv.statistics.description import JoinedStatistics


def load_site_data(section: DataSection, client: int) -> tuple[Dataset[Any], Split]:
    """Loads a site's examples; returns them, and the data set to which they belong.

    Raises:
        ConfigError: If the partition has no such client.
        DataError: If the data are missing or broken.
    """
    split = load_section(section)
    return Subset(split.train, find_rows(section, split, client)), split


def find_rows(section: DataSection, split: Split, client: int) -> Sequence[int]:
    """Returns the positions of a site's examples among the train examples of a data set.

    Raises:
        ConfigError: If the partition has no such client.
    """
    partition = divide_examples(section, split)
    if client >= len(partition):
        raise ConfigError("site.client", client, f"must be a client of the partition, from 0 to {len(partition) - 1}")
    return partition[client].indices


def _load_examples(settings: SiteSettings, outline: PublicDataInfo) -> Dataset[Any]:
    """Loads a site's examples, which must be like those of the plan.

    Raises:
        ConfigError: If they are not.
    """
    dataset, split = load_site_data(settings.data, settings.client)
    actual = PublicDataInfo.of([dataset], split.n_classes)
    if replace(actual, sizes=()) != replace(outline, sizes=()):
        value = f"shape {actual.input_shape}, {actual.n_classes} classes"
        fix = (
            f"the site's data must be like those of the plan: shape {outline.input_shape}, {outline.n_classes} classes"
        )
        raise ConfigError("site.data", value, fix)
    return dataset


def _load_vectors(settings: SiteSettings, statistics: JoinedStatistics) -> Dataset[Any]:
    """Loads the rows of a site from which its examples are made, each as the vector of all statistics.

    Raises:
        ConfigError: If the site's table does not have the columns.
        DataError: If the table has changed while it was read.
    """
    split = load_section(settings.data)
    rows = find_rows(settings.data, split, settings.client)
    table = read_table(settings.data, statistics)
    if any(len(column) != size(split.train) for column in table.values()):
        raise DataError("the site's table has another number of rows than before: do not change it during a plan")
    own = {name: [column[row] for row in rows] for name, column in table.items()}
    vectors, targets = statistics.examples(own, "sample").tensors
    return TensorDataset(vectors.float(), targets)


def make_population(
    settings: SiteSettings, resolved_plan: ResolvedPlan, number: int, outline: PublicDataInfo
) -> Population:
    """Returns a site's examples with the model of a plan, checked as in a run of one process.

    Args:
        settings: The site's settings.
        resolved_plan: The plan.
        number: The site's number in it.
        outline: Shape and type of an example in the plan.

    Raises:
        ConfigError: If the examples do not match the plan, or the model cannot be used.
        DataError: If they cannot be used, or their number does not match the card.
    """
    privacy = resolved_plan.plan.privacy
    card = resolved_plan.cards[number]
    if resolved_plan.statistics is None:
        dataset = _load_examples(settings, outline)
        views = settings.data.augmentation
    else:
        dataset = _load_vectors(settings, resolved_plan.statistics)
        views = None

    # one client, with all examples
    models.validate_model(resolved_plan.model)
    (problem,) = resolved_plan.config.problem.everyones()
    if card.size_declared:
        declared_size = card.size
    else:
        declared_size = None
    client = Client(resolved_plan.model, resolved_plan.loss, DataLoader(dataset), declared_size, problem, views)
    if card.size != client.public_size:
        raise DataError(
            "the site's card states another number of examples than its data have: restore the data, or create a new "
            "site for the present data (fedpriv site init). The budget of a new site is counted separately, so a "
            "person whose data are in both sites has the privacy cost of both"
        )
    public_sizes([client], privacy)
    for warning in check_ownership([client], None, privacy):
        warn(warning)
    shard = ClientShard([number], resolved_plan.sizes, len(resolved_plan.cards))
    population = Population([client], shard=shard)
    check_problem(resolved_plan.strategy, [problem], privacy, resolved_plan.plan.queries, compare=False)
    validate_per_example(population, privacy)
    return population
