"""From a configuration to a run: data, clients, model, training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from fedpriv import data, models
from fedpriv.clients.client import Client, make_clients
from fedpriv.clients.ownership import check_datasets
from fedpriv.config.files import fingerprint
from fedpriv.config.network import check_cohort
from fedpriv.config.schema import Config
from fedpriv.data import Split, labels_of
from fedpriv.data.base import size
from fedpriv.errors import ConfigError
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.planning import Plan, make_plan, with_neighbours
from fedpriv.runs.training import Training
from fedpriv.storage.folder import RunFolder


def build(
    config: Config, folder: Path | RunFolder | None = None, *, resume: bool = False, fresh_noise: bool = False
) -> Training:
    """Make the run that a configuration describes.

    Args:
        config: The configuration.
        folder: Where ledger and checkpoint go; None keeps the run in memory.
        resume: Go on from the folder's checkpoint.
        fresh_noise: On resume, draw new noise for the repeated rounds, and charge them again.

    Raises:
        ConfigError: settings that do not fit the data.
        DataError: the data are missing or broken.
    """
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    split = load_data(config)
    clients = make_population(config, split)
    return Training(
        clients,
        config.recipe(len(clients)).strategy,
        config.promise(len(clients)),
        rounds=config.rounds,
        seed=config.seed,
        secret_seed=config.secret_seed,
        network=config.network.build(len(clients)),
        test=split.test,
        compute=config.compute.build(),
        evaluate_every=config.log.evaluate_every,
        checkpoint_every=config.log.checkpoint_every,
        folder=folder,
        settings=fingerprint(config),
        resume=resume,
        fresh_noise=fresh_noise,
        compare=config.problem.compare,
        optimum=config.log.optimum,
        stop_on=config.log.stop_on,
    )


def load_data(config: Config) -> Split:
    """The data set."""
    return data.load(config.data.name, **config.data.options)


def make_population(config: Config, split: Split) -> list[Client]:
    """The clients, each with its share of the examples and its copy of the model."""
    shares = divide(config, split)
    check_cohort(config.network, len(shares))
    model, loss = make_model(config, _outline(config, split, shares))
    datasets = [Subset(split.train, share.tolist()) for share in shares]
    clients = make_clients(model, loss, datasets, config.problem.build())
    server = config.problem.of_server()
    if server is not None:
        # the server takes part as one more client, with constraints but without an objective
        clients += make_clients(model, loss, [split.test], server)
    return clients


def make_model(config: Config, seen: Outline) -> tuple[nn.Module, nn.Module]:
    """The model and the loss, tried out on one made-up example.

    The initial parameters are public: of the seed if one is given, else of 0.

    Raises:
        ConfigError: a layer mixes examples, or model, loss and data do not fit each other.
    """
    # torch draws them from 32 bits of a seed: a larger one takes part through its hash
    seed = config.seed or 0
    torch.manual_seed(seed if abs(seed) < 2**32 else Randomness(seed).torch_seed("init"))
    section = config.model
    model = models.resolve(section.name, input_shape=seen.input_shape, n_classes=seen.n_classes, **section.options)
    model = models.fix_model(model) if section.fix else model
    models.validate_model(model)
    loss = models.resolve_loss(config.loss.name, **config.loss.options)
    _try_out(config, model, loss, seen)
    return model, loss


@torch.no_grad()
def _try_out(config: Config, model: nn.Module, loss: nn.Module, seen: Outline) -> None:
    example = torch.zeros(1, *seen.input_shape, dtype=seen.dtype)
    target, kind = torch.zeros(1), "a target that is a number"
    if seen.n_classes is not None:
        target = torch.full((1,), seen.n_classes - 1)
        kind = f"label {int(target)}, the last of {seen.n_classes} classes"
    elif config.loss.name in ("cross_entropy", "hinge", "logistic"):
        raise ConfigError("loss", config.loss.name, "is for classes, and the data's targets are numbers: use mse")
    with torch.random.fork_rng(devices=[]):  # dropout
        try:
            outputs: Tensor = model(example)
            shape = tuple(outputs.shape[1:])
        except Exception as error:  # whatever a user's model raises
            fix = f"cannot take inputs of shape {seen.input_shape} ({_first_line(error)}); change it, or the inputs"
            raise ConfigError("model", config.model.name, fix) from error
        try:
            loss(outputs, target)
        except Exception as error:  # whatever a user's loss raises
            what = f"outputs of shape {shape} with {kind}"
            fix = f"cannot compare {what} ({_first_line(error)}); change the model, the loss or the number of classes"
            raise ConfigError("loss", config.loss.name, fix) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def divide(config: Config, split: Split) -> Sequence[Tensor]:
    """For each client the indices of its examples."""
    wanted = config.data.partition
    n_clients = wanted.n_clients
    if n_clients is None:
        n_clients = 0 if split.writers is None else len(split.writers.unique())
    options = {name: value for name, value in wanted if name not in ("kind", "n_clients", "seed")}
    if split.n_classes is None and wanted.kind in ("stratified", "by_label", "dirichlet"):
        fix = "divides by class, and the data's targets are numbers: use iid, in_order or by_writer"
        raise ConfigError("data.partition.kind", wanted.kind, fix)
    generator = torch.Generator().manual_seed(wanted.seed)
    try:
        labels = labels_of(split.train)
        return data.partition(wanted.kind, labels, n_clients, generator, writers=split.writers, **options)
    except ConfigError as error:
        raise ConfigError(f"data.{error.field}", error.value, error.fix) from None


@dataclass(frozen=True)
class Outline:
    """What is public about a run's data.

    Attributes:
        sizes: Number of examples of each client.
        input_shape: Of one example.
        n_classes: Labels are in `[0, n_classes)`; None where targets are numbers.
        dtype: Of the inputs, as models get them.
    """

    sizes: tuple[int, ...]
    input_shape: tuple[int, ...]
    n_classes: int | None
    dtype: torch.dtype = torch.float32


# train examples, image and classes of the data sets whose size never changes
_KNOWN = {"digits": (1437, (1, 8, 8), 10), "mnist": (60000, (1, 28, 28), 10)}


def outline(config: Config) -> Outline:
    """The outline of a configuration's data; the data are read only where it is not known beforehand."""
    wanted = config.data.partition
    plain = wanted.kind in ("iid", "in_order") and config.problem.server is None
    known = _KNOWN.get(config.data.name)
    if known is None or not plain or wanted.n_clients is None or wanted.n_clients > known[0]:
        split = load_data(config)
        shares = divide(config, split)
        # the server's data are the test data
        check_datasets(
            [Subset(split.train, share.tolist()) for share in shares], split.test, config.promise(len(shares))
        )
        return _outline(config, split, shares)
    n_train, shape, n_classes = known
    fewer, more = divmod(n_train, wanted.n_clients)
    sizes = tuple(fewer + (i < more) for i in range(wanted.n_clients))
    return Outline(sizes, (prod(shape),) if config.data.options.get("flat") else shape, n_classes)


def _outline(config: Config, split: Split, shares: Sequence[Tensor]) -> Outline:
    sizes = tuple(len(share) for share in shares)
    if config.problem.server is not None:
        sizes = (*sizes, size(split.test))
    example: Tensor = split.train[0][0]
    dtype = torch.float32 if example.is_floating_point() else example.dtype
    return Outline(sizes, tuple(example.shape), split.n_classes, dtype)


def plan_of(config: Config, seen: Outline, privacy: Privacy) -> Plan:
    """The plan of a configuration's run under a promise."""
    network = config.network.build(len(seen.sizes))
    randomness = Randomness(config.seed or 0)
    strategy, server = config.recipe(len(seen.sizes)).strategy, config.problem.of_server()
    problems = [config.problem.build(), *([server] if server else [])]
    privacy = with_neighbours(privacy, problems, sizes_declared=False)
    return make_plan(strategy, privacy, seen.sizes, network, rounds=config.rounds, randomness=randomness)
