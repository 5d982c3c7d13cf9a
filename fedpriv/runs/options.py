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
        seed: Public seed of cohorts and links; by default a random one.
        secret_seed: Seed of noise and batches, for tests and figures that must repeat exactly. Keep it secret, because
            the noise can be computed from it and subtracted; every printed epsilon is followed by a note about this. By
            default, noise is computed from random bits of the operating system, which the process keeps in memory and
            never writes to disk. In a run without privacy, `seed` determines all random numbers.
        network: The connections: `Star(n_clients)` (default), which is a server and all clients, or a `Graph`.
        test: Public test data for metrics, as (input, target) pairs; for a loader, its data set is used.
        compute: Settings of the computation.
        evaluate_every: Rounds between evaluations on the test data, 1 by default; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder). By default checkpoints are written as often as
            possible while they take at most 5 % of the run's time. A crash loses the rounds since the last checkpoint.
        folder: Folder of the ledger and the checkpoint, for `resume`; None (default) keeps the run in memory.
        settings: Digest of the configuration, if there is one. It is checked on resume.
        resume: True resumes from the folder's checkpoint, with new noise, or from the start if the run was killed
            before its first checkpoint. Values that were released after the checkpoint stay counted in epsilon; they
            are not released or counted again.
        extend: Folder of a finished run to extend. The new run continues with the model and state of the finished run;
            `rounds` includes the finished rounds, and epsilon covers both parts together. The noise of the further
            rounds is independent of the earlier noise, and its scale is computed from the remaining part of the target
            epsilon. Only `rounds`, the target epsilon and the noise multiplier may differ. `folder`, if given, must be
            a new folder.
        after: Folder of a finished run on the same clients and examples, such as that of `fedpriv.describe(...,
            folder=...)`, whose releases this run counts: they come first in its ledger, and the target epsilon covers
            both. The run has its own model, and its noise is computed from the remaining part of the target epsilon.
            A resume needs it only if the run was killed before its first checkpoint.
        compare_centralized: If True, the problem is also solved with all data in one place, and the relative difference
            of the objectives is reported. It can be used in runs with constraints and without privacy.
        optimum: Smallest value of the objective, if known. The result then contains the gap to it, computed on the
            training data without noise. The gap is not private, so use this option for experiments on public data only.
        stop_on: Ends the run when a released model is not finite (`"nonfinite"`, default), also when its test loss is
            not finite (`"nonfinite_loss"`), or never (`"nothing"`). The epsilon of a run that ends in this way counts
            all planned rounds.
        stop: Ends the run when a metric on the test data no longer improves, e.g. `Stop("accuracy", patience=5)`. Its
            epsilon then counts all planned rounds, because the stop depends on query results. So stopping early saves
            time, but does not reduce epsilon.
        keep: Model of the result: the `"last"` model (default), or the `"best"` model on the test data, by the metric
            of `stop`, or else by accuracy, or else by loss. The choice costs no epsilon, because test data are public
            and the models are released anyway. However, the metric that selected the model overestimates its quality,
            so evaluate the model on other test data. A resumed run continues from its last model.
        save_node_models: True also writes each node's model to the folder, as `node_models.pt`.
        metrics: Custom metrics on the test data, by name: functions of (outputs, targets) of all test examples, or
            objects with `update`, `compute` and `reset`, such as torchmetrics'. They are reported as `test_<name>`.
        client_tests: The public test set of each client; None for a client without a test set. Reports then contain
            test metrics over clients, where each client's model is evaluated on the client's set:
            `client_test_accuracy_min`, `_p10`, `_median`, `_p90`, `_max` and `_mean`. If `test` is not given, all these
            sets together are the test data.
        client_names: Public name of each client. Results, `fedpriv show` and pictures use it, and the result contains
            each client's test metrics under this name.
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
    after: str | Path | None = None
    compare_centralized: bool = False
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
    """Arguments of `train`: the arguments of `Training`, and the receivers of reports.

    Args:
        sinks: Receivers of a report after every round, e.g. `fedpriv.reports.sinks.TensorBoard(Path("runs/a"))`.
        progress: True shows a progress bar on standard error; outside of terminals and notebooks it prints about 20
            lines instead. By default the bar is shown on a terminal only.
    """

    __: KW_ONLY
    sinks: Sequence[Sink] = ()
    progress: bool | None = None


def takes_options(options: Callable[P, OptionsT]) -> Callable[[Callable[[OptionsT], R]], Callable[P, R]]:
    """Decorator for a function that expects an object of an options class. The decorated function accepts the fields of
    the class as arguments.

    The function's signature, annotations and the `Args` of its docstring are taken from the class, so that `help`,
    editors and `fedpriv.settings.checks.validate_arguments` show and check the same arguments.

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


def init_takes_options(
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


def format_arguments(options: type) -> str:
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
        wrapper.__doc__ = f"{summary}\n{format_arguments(options)}\n    Returns:{returns}"
