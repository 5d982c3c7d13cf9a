"""Private training of one data owner's model, called like the training loop that it replaces.

`fit` translates the parts of a torch or Opacus script into a run of `fedpriv.train`:

    epochs over a loader of B batches      B epochs rounds
    batches of b examples on average       each of n examples is in a batch with probability b / n (Poisson)
    optimiser                              `fedavg` with one local step and fedpriv's optimiser of the same name
    max_grad_norm                          `Clip(max_grad_norm)`
    neighbouring data sets                 `add_remove`: one example more or less, as in Opacus
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from fedpriv.clients.arguments import check_loader, check_sampler
from fedpriv.clients.client import Client, Loss
from fedpriv.clients.reading import count_examples_of
from fedpriv.clients.released_models import find_privacy_cost
from fedpriv.errors import ConfigError
from fedpriv.planning.compute import Compute
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.record import Relation
from fedpriv.privacy.settings import FullBatch, Poisson, Privacy, Sampling
from fedpriv.runs.options import takes_options
from fedpriv.runs.results import Result, Sink
from fedpriv.runs.train import train
from fedpriv.settings.checks import Count, Fraction, Positive, Whole, validate_arguments
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.fedavg import fedavg
from fedpriv.strategies.optimizers import Sgd
from fedpriv.strategies.torch_optimizers import from_torch


@dataclass(frozen=True, eq=False)
class FitOptions:
    """Arguments of `fit`.

    Args:
        model: The module to train; it is trained in place.
        loader: The training data. fedpriv draws the batches: each of n examples joins a batch with probability b / n,
            where b is the mean number of examples in a batch of the loader. This probability is `1 / len(loader)` if an
            epoch uses each example once.
        loss: Maps (outputs, targets) of a batch to a scalar, e.g. `torch.nn.CrossEntropyLoss()`.
        optimizer: A new `torch.optim.SGD`, `Adam` or `AdamW` of the model's parameters.
        epochs: Passes over the data; an epoch has `len(loader)` steps.
        epsilon: Target epsilon of the whole fit, from which the noise is computed.
        delta: Delta of the guarantee, well below one over the number of examples; 1e-5 by default.
        noise_multiplier: Alternative to `epsilon`: standard deviation of the noise divided by `max_grad_norm`, as in
            Opacus; under `replace_one` it is divided by `2 max_grad_norm`.
        max_grad_norm: Bound on the l2 norm of an example's gradient; 1 by default.
        relation: Neighbouring relation. `"add_remove"` (default) is the relation of Opacus; `"replace_one"`, the
            default elsewhere in fedpriv, is a stronger guarantee and needs more noise.
        budget: Path of the lifetime budget of these data; None by default.
        test: Public test data for metrics, as (input, target) pairs; for a loader, its data set is used.
        evaluate_every: Steps between evaluations on the test data; None (default) evaluates once per epoch.
        folder: Folder of the ledger and the checkpoint; None (default) keeps the run in memory.
        seed: Public seed; by default a random one.
        secret_seed: Seed of noise and batches; by default a random one. Keep it secret, because the noise can be
            computed from it and subtracted.
        compute: Settings of the computation.
        sinks: Receivers of a report after every step.
        progress: True shows a progress bar on standard error; by default it is shown on a terminal only.
    """

    model: nn.Module
    loader: DataLoader[Any]
    loss: Loss
    optimizer: torch.optim.Optimizer
    _: KW_ONLY
    epochs: Count
    epsilon: Positive | None = None
    delta: Fraction = 1e-5
    noise_multiplier: Positive | None = None
    max_grad_norm: Positive = 1.0
    relation: Relation = "add_remove"
    budget: str | Path | None = None
    test: Dataset[Any] | DataLoader[Any] | None = None
    evaluate_every: Count | None = None
    folder: str | Path | None = None
    seed: int | None = None
    secret_seed: Whole | None = None
    compute: Compute = Compute()
    sinks: Sequence[Sink] = ()
    progress: bool | None = None


@validate_arguments("")
@takes_options(FitOptions)
def fit(options: FitOptions) -> Result:
    """Trains one data owner's model with differential privacy (DP-SGD or DP-Adam), and returns the result.

    Returns:
        The result, with an upper bound on the epsilon as `spent`.

    Guarantee: the model after every step is (epsilon, delta)-differentially private for data sets that differ in one
    example, against an observer of all steps. The number of examples is public.

    Raises:
        ConfigError: If settings cannot work, such as an optimiser without a counterpart, or a model that mixes
            examples.
        FedprivError: If data or a folder cannot be used.

    Source: Abadi et al. 2016 (DP-SGD).

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.arange(200) % 2)
        >>> loader = torch.utils.data.DataLoader(data, batch_size=20)
        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> result = fedpriv.fit(model, loader, nn.CrossEntropyLoss(), optimizer, epochs=2, epsilon=3.0)
        >>> result.rounds, result.spent.epsilon <= 3
        (20, True)
    """
    check_loader("loader", options.loader)
    earlier_cost = find_privacy_cost(options.model)
    if earlier_cost is not None:
        fix = (
            "this is the privacy cost of an earlier fit that trained this model, and the epsilon of this fit would not "
            "include it. Train all epochs in one fit; or continue from copy.deepcopy(model), and add up the costs of "
            "both fits with fedpriv.total"
        )
        raise ConfigError("model", earlier_cost, fix)
    _check_parameters(options.model, options.optimizer)
    steps = _steps_per_epoch(options.loader)
    n_examples = count_examples_of(options.loader.dataset)
    check_sampler(options.loader, n_examples)
    privacy = Privacy(
        epsilon=options.epsilon,
        delta=options.delta,
        noise_multiplier=options.noise_multiplier,
        clip=Clip(options.max_grad_norm),
        relation=options.relation,
        sampling=_sampling(_rate(options.loader, steps, n_examples)),
        budget=options.budget,
    )
    return train(
        [Client(options.model, options.loss, _without_batches(options.loader))],
        _strategy(options.optimizer, options.model),
        privacy,
        rounds=options.epochs * steps,
        seed=options.seed,
        secret_seed=options.secret_seed,
        test=options.test,
        compute=options.compute,
        evaluate_every=options.evaluate_every or steps,
        folder=options.folder,
        sinks=options.sinks,
        progress=options.progress,
    )


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises an error for an optimiser with other parameters than the trainable ones of the model.

    Raises:
        ConfigError: If parameters differ; the message names them.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        fix = "must be an optimizer of torch, e.g. torch.optim.SGD(model.parameters(), lr=0.1)"
        raise ConfigError("optimizer", optimizer, fix)
    held_by_optimizer = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in named.items():
        if id(parameter) not in held_by_optimizer:
            fix = (
                f"does not train model.{name}: pass all model.parameters() to the optimizer, and set "
                "requires_grad=False for frozen ones"
            )
            raise ConfigError("optimizer", type(optimizer).__name__, fix)
    if held_by_optimizer - {id(parameter) for parameter in model.parameters()}:
        fix = "has parameters that the model does not have: create the optimizer with model.parameters()"
        raise ConfigError("optimizer", type(optimizer).__name__, fix)


def _steps_per_epoch(loader: DataLoader[Any]) -> int:
    """Returns the number of batches of an epoch.

    Raises:
        ConfigError: If the data set is a stream, or the loader has no length or no batch.
    """
    if isinstance(loader.dataset, IterableDataset):
        fix = (
            "is a streaming data set, but private batches are drawn by index: collect the examples into a TensorDataset"
        )
        raise ConfigError("loader", type(loader.dataset).__name__, fix)
    try:
        steps = len(loader)
    except TypeError:
        fix = "the length of an epoch is unknown: add __len__ to the data set and the sampler"
        raise ConfigError("loader", f"a loader of {type(loader.dataset).__name__}", fix) from None
    if steps < 1:
        fix = "the loader returns no batch: use a smaller batch_size, or drop_last=False"
        raise ConfigError("loader.batch_size", loader.batch_size, fix)
    return steps


def _rate(loader: DataLoader[Any], steps: int, n_examples: int) -> float:
    """Returns the sampling rate: the mean number of examples in a batch, divided by the number of examples.

    Raises:
        ConfigError: If the number of examples per batch cannot be read from a batch sampler.
    """
    batches = loader.batch_sampler
    if batches is None:
        return 1 / n_examples  # batch_size=None: each step gets one example of the data set
    if not isinstance(batches, BatchSampler):
        fix = "the size of its batches is unknown: set batch_size of the loader, or use a BatchSampler of torch"
        raise ConfigError("loader.batch_sampler", type(batches).__name__, fix)
    if batches.drop_last:
        return batches.batch_size / n_examples
    sampler: Any = batches.sampler
    return len(sampler) / (steps * n_examples)


def _without_batches(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Returns a loader of the same examples without the batch size and order, which have been read already.

    A user-defined sampler is kept, so that the run warns that it does not use the sampler.
    """
    samplers: dict[str, Any] = {}
    if loader.batch_size is None:
        samplers["batch_sampler"] = loader.batch_sampler
    elif not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        samplers["sampler"] = loader.sampler
    return DataLoader(loader.dataset, collate_fn=loader.collate_fn, num_workers=loader.num_workers, **samplers)


def _sampling(rate: float) -> Sampling:
    """Returns Poisson sampling with this rate; full batches if a batch has at least as many examples as the data."""
    if rate >= 1:
        return FullBatch()
    return Poisson(rate)


def _strategy(optimizer: torch.optim.Optimizer, model: nn.Module) -> Strategy:
    """Returns the strategy that performs the steps of this optimiser on one client's gradients."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]  # in the order of `Layout`
    learning_rate, steps = from_torch(optimizer, trained)
    if isinstance(steps, Sgd):
        return fedavg(learning_rate)
    return fedavg(learning_rate, optimizer=steps, optimizer_state="keep")
