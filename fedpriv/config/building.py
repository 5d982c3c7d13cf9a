"""Build a run from a configuration, or compute what it would cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset

from fedpriv import data, models
from fedpriv.clients.client import Client, make_clients
from fedpriv.clients.ownership import check_datasets
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config.files import fingerprint, load_config
from fedpriv.config.measured import check_measured, check_owners, metrics_of, named_in_log
from fedpriv.config.schema import Config, DataSection
from fedpriv.config.strategies import STRATEGIES
from fedpriv.data import DATASETS, Split, labels_of
from fedpriv.data.base import as_inputs
from fedpriv.data.partition import known_sizes, notes
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.papers.recipe import Recipe
from fedpriv.planning.forecasting import Forecast
from fedpriv.planning.forecasting import forecast as of_draft
from fedpriv.planning.plan import FirstPart, Plan, RunSketch
from fedpriv.runs.advice import warnings_at_start
from fedpriv.runs.settings_in_words import difference, settings_in_words
from fedpriv.runs.timing import seconds_per_round
from fedpriv.runs.training import Training
from fedpriv.settings.checks import checked
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder


@checked("build")
def build(
    config: Config,
    folder: Path | RunFolder | None = None,
    *,
    resume: bool = False,
    fresh_noise: bool = False,
    extend: Path | None = None,
) -> Training:
    """Make the run that a configuration describes.

    Args:
        config: The configuration.
        folder: Where ledger and checkpoint go; None keeps the run in memory.
        resume: Go on from the folder's checkpoint.
        fresh_noise: On resume, draw new noise for the repeated rounds, and charge them again.
        extend: Folder of a finished run to go on with for more rounds, see `fedpriv.train`; None begins a new run.

    Raises:
        ConfigError: settings do not fit the data.
        DataError: the data are missing or broken.
        FedprivError: the run to extend was made with other settings.
    """
    if extend is not None:
        _check_extends(config, extend)
    split = load_data(config)
    clients = make_population(config, split)
    also = measured(config, split, len(clients))
    with named_in_log():
        return Training(
            clients,
            config.recipe(len(clients)).strategy,
            config.promise(len(clients)),
            rounds=config.rounds,
            network=config.network.build(len(clients)),
            folder=folder,
            settings=fingerprint(config),
            resume=resume,
            fresh_noise=fresh_noise,
            extend=extend,
            **also,
        )


def _check_extends(config: Config, folder: Path) -> None:
    """Refuse to extend a run with other settings than a longer run may change.

    Raises:
        FedprivError: names them.
    """
    before = load_config(folder / "config.yaml")
    may_change = {name: getattr(config.privacy, name) for name in ("epsilon", "noise_multiplier")}
    privacy = before.privacy.model_copy(update=may_change)
    longer = before.model_copy(update={"rounds": config.rounds, "privacy": privacy})
    if fingerprint(longer) == fingerprint(config):
        return
    then, now = (
        settings_in_words(config=strict_json.plain(one.model_dump(mode="json", exclude={"log"})))
        for one in (longer, config)
    )
    told = difference(then, now) or "the file of weights"
    raise FedprivError(
        f"{folder} was made with other settings ({told}): a run that extends it may change rounds, privacy.epsilon and "
        "privacy.noise_multiplier alone"
    )


def measured(config: Config, split: Split, n_clients: int) -> dict[str, Any]:
    """The arguments of a `Training` that say with which seeds and numbers it computes, and what is measured of it.

    Raises:
        ConfigError: the data do not say whose the examples are, or a metric does not fit them.
    """
    check_owners(config, known=split.writers is not None and split.test_writers is not None)
    return {
        "seed": config.seed,
        "secret_seed": config.secret_seed,
        "test": split.test if config.log.test else None,
        "compute": config.compute,
        "evaluate_every": config.log.evaluate_every,
        "checkpoint_every": config.log.checkpoint_every,
        "compare": config.problem.compare,
        "optimum": config.log.optimum,
        "stop_on": config.log.stop_on,
        "stop": config.log.stop,
        "metrics": metrics_of(config, split.n_classes, split.target_scale),
        "client_tests": client_tests(config, split, n_clients) if config.log.client_tests else None,
        "client_names": client_names(config, split, n_clients),
    }


@checked("forecast")
def forecast(config: Config, *, timed: bool = False) -> Forecast:
    """Compute a run's epsilon, noise and traffic without training; data are read only if their size is unknown.

    Args:
        config: The run.
        timed: Whether to measure a round, on made-up data of the same shape.

    Raises:
        ConfigError: the run cannot work, or no noise reaches its target.
    """
    draft, recipe = _draft(config)
    entry = STRATEGIES.get(config.strategy.name)
    found = of_draft(
        draft,
        compute=config.compute,
        compare=config.problem.compare,
        time_round=seconds_per_round if timed else None,
        claim=recipe.claimed(config.privacy.delta),
        formula=entry.variants.formula if entry else None,
    )
    if draft.privacy.private:
        said = _notes(config)
    else:
        said = []
    return replace(found, warnings=(*found.warnings, *said))


def planned(config: Config, seed: int, first: FirstPart | None = None) -> Plan:
    """The releases of a run that was made with this configuration.

    Args:
        config: The run.
        seed: Its public seed, of cohorts and links.
        first: The rounds of an earlier run that it extends.

    Raises:
        FedprivError: its data, or its plugins, are not at hand.
    """
    return replace(_draft(config)[0], seed=seed).plan(first=first)


def _draft(config: Config) -> tuple[RunSketch, Recipe]:
    seen = outline(config)
    n_clients = len(seen.sizes)
    network, promise, recipe = config.network.build(n_clients), config.promise(n_clients), config.recipe(n_clients)
    problems, (model, loss) = config.problem.everyones(), make_model(config, seen)
    check_measured(config, seen, model, loss)
    made = recipe.strategy, promise, network, config.rounds, seen, problems, model, loss, config.seed or 0
    return RunSketch(*made, augmentation=config.data.augmentation), recipe


def at_start(config: Config, training: Training) -> list[str]:
    """Warnings at the start of a run, a sentence or two each."""
    if training.plan.privacy.private:
        said = _notes(config)
    else:
        said = []
    return [*warnings_at_start(training), *said]


def _notes(config: Config) -> list[str]:
    """What the promise rests on besides noise."""
    fitted = (
        "epsilon does not cover the data that model.weights were fitted on: take public weights, or add the price of "
        "the run that made them"
    )
    return [*notes(config.data.partition.kind), *([] if config.model.weights is None else [fitted])]


def load_data(config: Config) -> Split:
    """The data set."""
    return data.load(config.data.name, **config.data.options)


def make_population(config: Config, split: Split) -> list[Client]:
    """The clients, each with its part of the examples and its own copy of the model."""
    datasets = divide(config, split)
    model, loss = make_model(config, PublicDataInfo.of(datasets, split.n_classes))
    of_clients, *of_server = config.problem.everyones()
    clients = make_clients(model, loss, datasets, of_clients, config.data.augmentation)
    # the server takes part as one more client, with constraints but without an objective
    return [*clients, *(client for problem in of_server for client in make_clients(model, loss, [split.test], problem))]


def client_tests(config: Config, split: Split, n_clients: int) -> list[Subset[Any] | None]:
    """Of each client, the test examples of those whose train examples it has; None where there are none."""
    assert split.writers is not None
    assert split.test_writers is not None, "see `check_owners`"
    found: list[Subset[Any] | None] = [None] * n_clients
    for client, own in enumerate(divide(config, split)):
        writers = split.writers[torch.as_tensor(own.indices)].unique()
        places = torch.isin(split.test_writers, writers).nonzero()[:, 0].tolist()
        if places:
            found[client] = Subset(split.test, places)
        else:
            found[client] = None
    return found


def client_names(config: Config, split: Split, n_clients: int) -> list[str] | None:
    """The names of the clients, where each is one of those whom the data name; the server, if any, is the last."""
    if config.data.partition.kind != "by_writer" or split.writers is None or not split.writer_names:
        return None
    names = [split.writer_names[writer] for writer in split.writers.unique().tolist()]
    if config.problem.server is None:
        of_server = []
    else:
        of_server = ["server"]
    if len(names) + len(of_server) == n_clients:
        return [*names, *of_server]
    return None


def make_model(config: Config, seen: PublicDataInfo) -> tuple[nn.Module, nn.Module]:
    """The model and the loss; see `models.make`."""
    model, loss = config.model, config.loss
    example, seed = torch.zeros(1, *seen.input_shape, dtype=seen.dtype), config.seed or 0
    made = (model.name, model.options), (loss.name, loss.options)
    return models.make(
        *made,
        example,
        seen.n_classes,
        fix=model.fix,
        weights=model.weights,
        lora=model.lora,
        train=model.train,
        seed=seed,
    )


def divide(config: Config, split: Split) -> list[Subset[Any]]:
    """Each client's examples."""
    return divided(config.data, split)


def divided(section: DataSection, split: Split) -> list[Subset[Any]]:
    """The examples of each owner, as the section of data says."""
    wanted, labels = section.partition, labels_of(split.train)
    generator, options = torch.Generator().manual_seed(wanted.seed), wanted.options
    try:
        shares = data.partition(wanted.kind, labels, wanted.n_clients, generator, writers=split.writers, **options)
    except ConfigError as error:
        raise ConfigError(f"data.{error.field}", error.value, error.fix) from None
    return [Subset(split.train, share.tolist()) for share in shares]


def outline(config: Config) -> PublicDataInfo:
    """Sizes and shapes of a configuration's data; the data are read only if these are not known beforehand."""
    wanted, server = config.data.partition, config.problem.server
    if config.data.name in DATASETS:
        facts = DATASETS[config.data.name].facts
    else:
        facts = None
    if facts:
        sizes = known_sizes(wanted.kind, facts.n_train, wanted.n_clients)
    else:
        sizes = None
    if facts is None or sizes is None or server is not None:
        split = load_data(config)
        datasets = divide(config, split)
        check_datasets(datasets, split.test, config.promise(len(datasets)))
        # the server's data are the test data
        found = PublicDataInfo.of([*datasets, *([] if server is None else [split.test])], split.n_classes)
        return replace(found, tests_have_owners=split.writers is not None and split.test_writers is not None)
    flat, transforms = (config.data.options.get(name, ()) for name in ("flat", "transforms"))
    (example,) = as_inputs(torch.zeros(1, *facts.shape), flat=bool(flat), transforms=transforms)
    return PublicDataInfo(sizes, tuple(example.shape), facts.n_classes)
