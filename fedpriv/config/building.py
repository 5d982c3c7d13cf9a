"""Builds a run from a configuration, or computes its expected cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from fedpriv import data, models
from fedpriv.clients import Client, PublicDataInfo, check_datasets, make_clients
from fedpriv.config.dividing import divide_examples
from fedpriv.config.files import fingerprint, load_config, to_yaml
from fedpriv.config.metrics import check_measured, check_owners, load_metrics, prefix_log_errors
from fedpriv.config.schema import REPORTING, Config, DataSection
from fedpriv.config.standardizing import plan_first, read_scales, standardized, with_public_scales
from fedpriv.config.strategies import STRATEGIES
from fedpriv.data import DATASETS, Split
from fedpriv.data.base import as_inputs
from fedpriv.data.extractor import extract_split
from fedpriv.data.partition import collect_warnings, known_sizes
from fedpriv.data.transforms import list_reshaping_transforms
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.forecast.forecasting import Forecast
from fedpriv.forecast.forecasting import forecast as of_draft
from fedpriv.forecast.timing import time_round
from fedpriv.forecast.warnings import collect_start_warnings
from fedpriv.papers.recipe import Recipe
from fedpriv.planning import GAP, FirstPart, Plan, RunSketch, not_covered, warn_of_missing_network
from fedpriv.privacy import Budget, RunCost
from fedpriv.runs import Training, format_difference, format_settings
from fedpriv.settings import validate_arguments
from fedpriv.storage import RunFolder, strict_json
from fedpriv.strategies import Strategy


@validate_arguments("build")
def build(
    config: Config,
    folder: Path | RunFolder | None = None,
    *,
    resume: bool = False,
    extend: Path | None = None,
) -> Training:
    """Builds the run that a configuration describes.

    Args:
        config: The configuration.
        folder: The run's folder, to which the configuration is also written; None keeps the run in memory.
        resume: True to resume from the folder's checkpoint.
        extend: Folder of a finished run to extend by more rounds, see `fedpriv.train`; None begins a new run.

    Returns:
        The run; iterate over it to train.

    Raises:
        ConfigError: If settings do not fit the data.
        DataError: If the data are missing or broken.
        FedprivError: If the run to extend was made with other settings.
    """
    if extend is not None:
        _check_extends(config, extend)
    folder = _with_config(config, folder)
    if config.data.standardize is not None:
        return _build_standardized(config, folder, resume=resume, extend=extend)
    return _build(config, config, folder, resume=resume, extend=extend, after=None)


def _build_standardized(config: Config, folder: RunFolder | None, *, resume: bool, extend: Path | None) -> Training:
    """Builds a run that counts the release of the means and deviations that its data are standardised by."""
    privacy = config.promise()
    if extend is None and (folder is None or read_scales(folder.path) is None):
        _check_whole_plan(config, folder)
    with standardized(config, privacy, folder.path if folder else None, extend) as released:
        scaled = config.model_copy(update={"data": released.apply(config.data)})
        training = _build(config, scaled, folder, resume=resume, extend=extend, after=released.after)
    training.warnings += [f"data.standardize: {note}" for note in released.notes]
    return training


def _check_whole_plan(config: Config, folder: RunFolder | None) -> None:
    """Raises an error for a run that could not begin after its means and deviations were released.

    Raises:
        ConfigError: If settings cannot work.
        PrivacyError: If the budget is too small.
    """
    plan = load_plan(config, config.seed or 0)
    if plan.privacy.budget is not None:
        name = str(folder.path) if folder else "a run in memory"
        Budget(plan.privacy.budget).check(RunCost(name, plan.records, plan.n_clients))


def _build(
    config: Config,
    scaled: Config,
    folder: RunFolder | None,
    *,
    resume: bool,
    extend: Path | None,
    after: Path | None,
) -> Training:
    """Builds a run.

    Args:
        config: The configuration, which a resume must not change.
        scaled: The configuration with released centres and scales, if there are any.
        folder: The run's folder.
        resume: True to resume.
        extend: Folder of a finished run to extend.
        after: Folder of an earlier run whose releases this run counts.
    """
    split = load_data(scaled)
    clients = make_population(config, split)
    options = measurement_arguments(config, split, len(clients))
    with prefix_log_errors():
        return Training(
            clients,
            config.recipe(len(clients)).strategy,
            config.promise(len(clients)),
            rounds=config.rounds,
            network=config.network.build(len(clients)),
            folder=folder,
            settings=fingerprint(config),
            resume=resume,
            extend=extend,
            after=after,
            **options,
        )


def _with_config(config: Config, folder: Path | RunFolder | None) -> RunFolder | None:
    """Returns the run's folder, which contains the configuration unless there are files of a run."""
    if folder is None:
        return None
    if isinstance(folder, Path):
        folder = RunFolder(folder)
    if not any((folder.path / name).exists() for name in ("config.yaml", "ledger.jsonl")):
        folder.write("config.yaml", to_yaml(config).encode())
    return folder


def _check_extends(config: Config, folder: Path) -> None:
    """Raises an error if a run is extended with changes to settings that must stay the same.

    Raises:
        FedprivError: If other settings differ; the message names them.
    """
    before = load_config(folder / "config.yaml")
    may_change = {name: getattr(config.privacy, name) for name in ("epsilon", "noise_multiplier")}
    privacy = before.privacy.model_copy(update=may_change)
    longer = before.model_copy(update={"rounds": config.rounds, "privacy": privacy})
    if fingerprint(longer) == fingerprint(config):
        return
    words_before = format_settings(config=strict_json.to_plain(longer.model_dump(mode="json", exclude={"log"})))
    words = format_settings(config=strict_json.to_plain(config.model_dump(mode="json", exclude={"log"})))
    differing = format_difference(words_before, words) or "the file of weights"
    raise FedprivError(
        f"the new settings differ from those of {folder} ({differing}), but a run that extends another may change "
        "only rounds, privacy.epsilon and privacy.noise_multiplier: undo the other changes"
    )


def measurement_arguments(config: Config, split: Split, n_clients: int) -> dict[str, Any]:
    """Returns the arguments of a `Training` for seeds, types of numbers, test data and metrics.

    Raises:
        ConfigError: If the owners of test examples are needed and unknown, or a metric does not fit the data.
    """
    check_owners(config, are_known=split.writers is not None and split.test_writers is not None)
    return {
        **{name: getattr(config.log, name) for name in REPORTING},
        "seed": config.seed,
        "secret_seed": config.secret_seed,
        "test": split.test if config.log.test else None,
        "compute": config.compute,
        "compare_centralized": config.problem.compare_centralized,
        "metrics": load_metrics(config, split.n_classes, split.target_scale),
        "client_tests": client_tests(config, split, n_clients) if config.log.client_tests else None,
        "client_names": client_names(config, split, n_clients),
    }


@validate_arguments("forecast")
def forecast(config: Config, *, timed: bool = False) -> Forecast:
    """Computes a run's epsilon, noise and traffic without training; data are read only if their size is unknown.

    Args:
        config: The run.
        timed: True to measure a round, on synthetic data of the same shape.

    Raises:
        ConfigError: If the run cannot work, or no noise reaches its target.
    """
    draft, recipe = _draft(config)
    entry = STRATEGIES.get(config.strategy.name)
    result = of_draft(
        draft,
        compute=config.compute,
        compare=config.problem.compare_centralized,
        time_round=time_round if timed else None,
        claim=recipe.claimed(config.privacy.delta),
        formula=entry.variants.formula if entry else None,
    )
    warnings = [*result.warnings, *_network_notes(config, draft.strategy, len(draft.outline.sizes))]
    if draft.privacy.private:
        warnings += _notes(config)
        if config.log.optimum is not None:
            warnings.append(GAP)
    return replace(result, warnings=tuple(warnings))


def load_plan(config: Config, seed: int, first: FirstPart | None = None) -> Plan:
    """Returns the plan of a run that was made with this configuration.

    Args:
        config: The run.
        seed: Its public seed, of cohorts and links.
        first: The rounds of an earlier run that it extends.

    Raises:
        FedprivError: If the run's data, or its plugins, are not on this machine.
    """
    draft, _ = _draft(config)
    plan = replace(draft, seed=seed).plan(first=first).on(config.compute.planned_device)
    return replace(plan, not_covered=not_covered(plan.privacy, config.log.optimum))


def _draft(config: Config) -> tuple[RunSketch, Recipe]:
    """Returns the run without its data, and the recipe of its strategy."""
    public_info = read_outline(config)
    n_clients = len(public_info.sizes)
    network = config.network.build(n_clients)
    privacy = config.promise(n_clients)
    recipe = config.recipe(n_clients)
    problems = config.problem.everyones()
    model, loss = make_model(config, public_info)
    check_measured(config, public_info, model, loss)
    draft = RunSketch(
        strategy=recipe.strategy,
        privacy=privacy,
        network=network,
        rounds=config.rounds,
        outline=public_info,
        problems=problems,
        model=model,
        loss=loss,
        seed=config.seed or 0,
        augmentation=config.data.augmentation,
        first=plan_first(config, privacy, public_info.sizes),
    )
    return draft, recipe


def list_start_warnings(config: Config, training: Training) -> list[str]:
    """Returns warnings at the start of a run, a sentence or two each."""
    warnings = collect_start_warnings(training)
    warnings += _network_notes(config, training.strategy, training.plan.n_clients)
    if training.plan.privacy.private:
        warnings += _notes(config)
    return warnings


def _network_notes(config: Config, strategy: Strategy, n_clients: int) -> list[str]:
    """Returns the warning for a decentralised strategy if the configuration names no topology."""
    if "topology" in config.network.model_fields_set:
        return []
    return warn_of_missing_network(strategy, n_clients, "yaml")


def _notes(config: Config) -> list[str]:
    """Returns the conditions of the run's privacy besides noise."""
    warnings = [*collect_warnings(config.data.partition.kind)]
    if config.data.extractor is not None:
        warnings.append(
            "epsilon covers neither the network in data.extractor.file nor its training data: use a public network"
        )
    if config.model.weights is not None:
        warnings.append(
            "epsilon does not cover the training data of model.weights: use public weights, or add the privacy "
            "cost of the run that made them"
        )
    return warnings


def load_data(config: Config) -> Split:
    """Loads the data set that a configuration names."""
    return load_section(config.data)


def load_section(section: DataSection) -> Split:
    """Loads the data set of a data section, as the features of its frozen network if it has one.

    Raises:
        ConfigError: If the section has random views of features, or a private release that this command does not make.
    """
    if section.standardize is not None:
        fix = "is supported by train, resume, plan and predict only: leave it out, or use data.scales"
        raise ConfigError("data.standardize", section.standardize.model_dump(mode="json"), fix)
    if section.extractor is not None and section.augment:
        fix = (
            "cannot be combined with data.extractor: its features are computed once, but random views are drawn anew "
            "for each query; leave data.augment or data.extractor out"
        )
        raise ConfigError("data.augment", [view.name for view in section.augment], fix)
    split = data.load(section.name, **section.options)
    if section.extractor is None:
        return split
    return extract_split(section.extractor, split, models.resolve)


def make_population(config: Config, split: Split) -> list[Client]:
    """Builds the clients, each with its share of the examples and its own copy of the model."""
    datasets = divide(config, split)
    model, loss = make_model(config, PublicDataInfo.of(datasets, split.n_classes))
    client_problem, *server_problems = config.problem.everyones()
    clients = [*make_clients(model, loss, datasets, client_problem, config.data.augmentation)]
    # a server with constraints takes part as one more client, without an objective
    for problem in server_problems:
        clients += make_clients(model, loss, [split.test], problem)
    return clients


def client_tests(config: Config, split: Split, n_clients: int) -> list[Subset[Any] | None]:
    """Returns for each client the test examples of the writers of its train examples; None without such examples."""
    assert split.writers is not None
    assert split.test_writers is not None, "see `check_owners`"
    tests: list[Subset[Any] | None] = [None] * n_clients
    for client, subset in enumerate(divide(config, split)):
        writers = split.writers[torch.as_tensor(subset.indices)].unique()
        indices = torch.isin(split.test_writers, writers).nonzero()[:, 0].tolist()
        if indices:
            tests[client] = Subset(split.test, indices)
    return tests


def client_names(config: Config, split: Split, n_clients: int) -> list[str] | None:
    """Returns the names of the clients, if each is a writer with a name in the data; a server is the last."""
    if config.data.partition.kind != "by_writer" or split.writers is None or not split.writer_names:
        return None
    names = [split.writer_names[writer] for writer in split.writers.unique().tolist()]
    if config.problem.server is not None:
        names.append("server")
    if len(names) != n_clients:
        return None
    return names


def make_model(config: Config, public_info: PublicDataInfo) -> tuple[nn.Module, nn.Module]:
    """Builds the model and the loss; see `models.make`."""
    model = config.model
    loss = config.loss
    return models.make(
        (model.name, model.options),
        (loss.name, loss.options),
        torch.zeros(1, *public_info.input_shape, dtype=public_info.dtype),
        public_info.n_classes,
        fix=model.fix,
        weights=model.weights,
        lora=model.lora,
        train=model.train,
        seed=config.seed or 0,
        target_shape=public_info.target_shape,
    )


def divide(config: Config, split: Split) -> list[Subset[Any]]:
    """Returns each client's examples."""
    return divide_examples(config.data, split)


def read_outline(config: Config) -> PublicDataInfo:
    """Returns sizes and shapes of a configuration's data; reads the data only if these are not known beforehand."""
    partition = config.data.partition
    server = config.problem.server
    facts = None
    if config.data.name in DATASETS:
        facts = DATASETS[config.data.name].facts_of(config.data.options)
    if config.data.extractor is not None:
        facts = None  # the number of features is known once the network has computed some
    sizes = None
    if facts:
        sizes = known_sizes(partition.kind, facts.n_train, partition.n_clients)
    if facts is None or sizes is None or server is not None:
        split = load_section(with_public_scales(config))
        datasets = divide(config, split)
        check_datasets(datasets, split.test, config.promise(len(datasets)))
        owned: list[Dataset[Any]] = [*datasets]
        if server is not None:
            owned.append(split.test)  # the server's data are the test data
        info = PublicDataInfo.of(owned, split.n_classes)
        return replace(info, tests_have_owners=split.writers is not None and split.test_writers is not None)
    flat = bool(config.data.options.get("flat", ()))
    transforms = list_reshaping_transforms(config.data.options.get("transforms", ()))
    (example,) = as_inputs(torch.zeros(1, *facts.shape), flat=flat, transforms=transforms)
    return PublicDataInfo(sizes, tuple(example.shape), facts.n_classes)
