"""The arguments of `train` and `Training`, each declared, typed and described once."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.client import Client
from fedpriv.evaluation.best_model import Keep
from fedpriv.evaluation.custom_metrics import CustomMetric
from fedpriv.evaluation.early_stopping import Stop
from fedpriv.evaluation.finite_check import StopOn
from fedpriv.network.rounds import RoundNetwork
from fedpriv.planning.compute import Compute
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.results import Sink
from fedpriv.settings.checks import Count, Finite, RoundCount, Whole
from fedpriv.storage.folder import RunFolder
from fedpriv.strategies.base import Strategy

P = ParamSpec("P")
OptionsT = TypeVar("OptionsT")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class TrainingOptions:
    """Arguments of `Training`.

    Args:
        clients: The data owners (see `make_clients`). All start from the first client's parameters.
        strategy: The algorithm, e.g. `fedpriv.inexact_admm()`.
        privacy: The privacy settings, e.g. `fedpriv.Privacy(epsilon=3, delta=1e-5)`.
        rounds: Number of rounds.
        seed: Public seed of cohorts and links; drawn by default.
        secret_seed: Seed of noise and batches, for tests and figures that must repeat exactly. Anyone with this seed
            can subtract the noise, and all output with epsilon states this. By default, noise follows from random bits
            of the operating system, which the process keeps in memory and never writes. A run without privacy follows
            from `seed` alone.
        network: The communication network: `Star(n_clients)`, a server and all clients, by default, or a `Graph`.
        test: Public test data for metrics, as (input, target) pairs; of a loader its data set.
        compute: Settings of speed.
        evaluate_every: Rounds between evaluations on the test data; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder). By default they are written as often as possible
            within 5 % of the run's time. A crash loses the rounds since the last checkpoint.
        folder: Where ledger and checkpoint are written, for `resume`; None keeps the run in memory.
        settings: Digest of the configuration, if there is one. It is checked on resume.
        resume: Resume from the folder's checkpoint, with new noise, or start from the beginning if the run was killed
            before its first one. Releases after the checkpoint stay charged, and are not released or charged again.
        extend: Folder of a finished run to extend: its model and state are taken over, `rounds` includes its rounds,
            and epsilon covers both parts together. The further rounds have separate noise, computed from what the
            target leaves. Only `rounds`, the target epsilon and the noise multiplier may differ. `folder`, if given,
            must be new.
        compare: For runs with constraints and without privacy: also solves the problem with all data in one place, and
            reports the relative difference of the objectives.
        optimum: Smallest value of the objective, if known. Then the result has the gap to it, computed on the training
            data without noise: for experiments on public data only.
        stop_on: When to end the run: when a released model is not finite (`"nonfinite"`), also when its test loss is
            not (`"nonfinite_loss"`), or never (`"nothing"`). The whole plan is then charged.
        stop: Ends the run when a metric on the test data no longer improves, e.g. `Stop("accuracy", patience=5)`. The
            whole plan is then charged, since the stop depends on query results: it saves time, not epsilon.
        keep: The model of the result: the `"last"` one, or the one of the round with the `"best"` test metric: the
            metric of `stop`, or accuracy, else loss. The choice costs no epsilon, since test data are public and the
            models are released anyway. The metric that chose a model is optimistic, so evaluate the model on other test
            data. A resumed run continues from its last model.
        save_node_models: If True, also writes each node's model to the folder, `node_models.pt`.
        metrics: Additional metrics on the test data, by name: functions of (outputs, targets) of all test examples, or
            objects with `update`, `compute` and `reset`, as in torchmetrics. They are reported as `test_<name>`.
        client_tests: A public test set of each client, None for a client without one. Reports then have test metrics
            over clients, each client's model on its own set: `client_test_accuracy_min`, `_p10`, `_median`, `_p90`,
            `_max` and `_mean`. Without `test` all sets together are the test data.
        client_names: A public name for each client: results, `fedpriv show` and pictures refer to clients by name, and
            the result has the test metrics of each client under its name.
    """

    clients: Sequence[Client]
    strategy: Strategy
    privacy: Privacy
    _: KW_ONLY
    rounds: RoundCount
    seed: int | None = None
    secret_seed: Whole | None = None
    network: RoundNetwork | None = None
    test: Dataset[Any] | DataLoader[Any] | None = None
    compute: Compute = Compute()
    evaluate_every: Count = 1
    checkpoint_every: Count | None = None
    folder: str | Path | RunFolder | None = None
    settings: str = ""
    resume: bool = False
    extend: str | Path | None = None
    compare: bool = False
    optimum: Finite | None = None
    stop_on: StopOn = "nonfinite"
    stop: Stop | None = None
    keep: Keep = "last"
    save_node_models: bool = False
    metrics: Mapping[str, CustomMetric] | None = None
    client_tests: Sequence[Dataset[Any] | DataLoader[Any] | None] | None = None
    client_names: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class TrainOptions(TrainingOptions):
    """Arguments of `train`: the arguments of `Training`, and the targets of reports.

    Args:
        sinks: Receive a report every round, e.g. `fedpriv.reports.sinks.TensorBoard(Path("runs/a"))`.
        progress: Show a progress bar on standard error; if that is neither a terminal nor a notebook, about 20 lines.
            By default it is shown on a terminal only.
    """

    __: KW_ONLY
    sinks: Sequence[Sink] = ()
    progress: bool | None = None


def takes_options(options: Callable[P, OptionsT]) -> Callable[[Callable[[OptionsT], R]], Callable[P, R]]:
    """Decorator that gives a function the arguments of an options class instead of one object of it.

    The function's signature, annotations and the `Args` of its docstring are taken from the class, so that `help`,
    editors and `fedpriv.settings.checks.checked` show and check the same arguments.

    Args:
        options: The dataclass with the arguments as fields.
    """

    def decorate(function: Callable[[OptionsT], R]) -> Callable[P, R]:
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(options(*args, **kwargs))

        functools.update_wrapper(wrapper, function)
        _declare(wrapper, options, first=())
        return wrapper

    return decorate


def initialised_by(
    options: Callable[P, OptionsT],
) -> Callable[[Callable[[S, OptionsT], None]], Callable[Concatenate[S, P], None]]:
    """Decorator like `takes_options`, for the constructor of a class."""

    def decorate(method: Callable[[S, OptionsT], None]) -> Callable[Concatenate[S, P], None]:
        def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            method(self, options(*args, **kwargs))

        functools.update_wrapper(wrapper, method)
        _declare(wrapper, options, first=("self",))
        return wrapper

    return decorate


def described_arguments(options: type) -> str:
    """Returns the `Args` section of an options class, including its base classes, indented as in its source."""
    sections = list[str]()
    for parent in reversed(options.__mro__):
        described = re.search(r"\n {4}Args:\n(.*)", parent.__dict__.get("__doc__") or "", re.DOTALL)
        if described:
            sections.append(described[1].rstrip())
    return "    Args:\n" + "\n".join(sections) + "\n"


def _declare(wrapper: Any, options: Any, first: tuple[str, ...]) -> None:  # noqa: ANN401 - functions and classes
    """Gives a wrapper the signature, annotations and described arguments of an options class."""
    leading = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first]
    parameters = inspect.signature(options).parameters.values()
    result = wrapper.__annotations__.get("return")
    wrapper.__signature__ = inspect.Signature([*leading, *parameters], return_annotation=result)
    wrapper.__annotations__ = get_type_hints(options, include_extras=True)
    if result is not None:
        wrapper.__annotations__["return"] = result
    if wrapper.__doc__ and "\n    Returns:" in wrapper.__doc__:
        summary, returns = wrapper.__doc__.split("\n    Returns:", 1)
        wrapper.__doc__ = f"{summary}\n{described_arguments(options)}\n    Returns:{returns}"
