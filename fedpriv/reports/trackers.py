"""Sends the reports of a run to an experiment tracker: Weights & Biases, or MLflow.

Only values of reports are sent: metrics on public test data, released numbers, epsilon, settings. Data that these
libraries would add by default (source code, version control, console output, use of processor and memory) are disabled.

A tracker records the time at which it receives a round. The time between two rounds could reveal the number of examples
or clients drawn in secret. Rounds are therefore sent together, at the end, unless you set `live`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.reports.tags import list_scalars
from fedpriv.settings import validate_arguments

if TYPE_CHECKING:
    from fedpriv.runs import RoundReport


class _Tracker(ABC):
    """Stores the numbers of rounds until they may be sent."""

    def __init__(self, *, live: bool) -> None:
        self._is_live = live
        self._waiting = dict[int, dict[str, float]]()

    def write(self, report: RoundReport) -> None:
        """Adds the numbers of one round."""
        self.add(report.round, list_scalars(report.metrics, report.epsilon, report.target))

    def add(self, round_number: int, values: Mapping[str, float]) -> None:
        """Adds numbers of one round by tag."""
        self._waiting[round_number] = {**values}
        if self._is_live:
            self._send_waiting()

    def close(self) -> None:
        """Sends the remaining rounds, and ends the tracker's run."""
        self._send_waiting()
        self._finish()

    def _send_waiting(self) -> None:
        for round_number, values in self._waiting.items():
            self._send(round_number, values)
        self._waiting.clear()

    @abstractmethod
    def _send(self, round_number: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


@validate_arguments("sinks")
class WandB(_Tracker):
    """A run of Weights & Biases (extra `fedpriv[wandb]`); `WANDB_MODE=offline` writes it to a folder instead.

    Args:
        project: Name of the project.
        name: Name of the run; W&B generates one by default.
        settings: Config of the run in W&B.
        folder: Folder in which W&B writes its own files, in a subfolder `wandb`.
        live: Send each round when it ends. Readers of the tracker can then see the duration of each round.

    Raises:
        ConfigError: If the library is not installed.
        FedprivError: If W&B cannot start a run, e.g. since there is no login.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        folder: str | Path = ".",
        live: bool = False,
    ) -> None:
        super().__init__(live=live)
        wandb = _imported("wandb", "wandb")
        only_what_is_sent = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                config=dict(settings or {}),
                dir=str(folder),
                settings=only_what_is_sent,
                reinit="create_new",
            )
        except wandb.errors.Error as error:
            raise FedprivError(
                f"Weights & Biases cannot start a run ({error}); log in with `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def _send(self, round_number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round_number)

    def _finish(self) -> None:
        self._run.finish()


@validate_arguments("sinks")
class MLflow(_Tracker):
    """A run of MLflow (extra `fedpriv[mlflow]`), at the server or database in `MLFLOW_TRACKING_URI`.

    All numbers have the time at which the run was opened.

    Args:
        experiment: Name of the experiment; it is created if it does not exist.
        name: Name of the run; MLflow generates one by default.
        settings: Parameters of the run in MLflow.
        address: Tracking server, database or folder, instead of `MLFLOW_TRACKING_URI`.
        live: Send each round when it ends. Users who watch the server can then see the duration of each round.

    Raises:
        ConfigError: If the library is not installed.
        FedprivError: If MLflow cannot start a run, e.g. since its server does not respond.
    """

    def __init__(
        self,
        experiment: str,
        name: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        address: str | None = None,
        live: bool = False,
    ) -> None:
        super().__init__(live=live)
        self._mlflow = _imported("mlflow", "mlflow")
        entities = import_module("mlflow.entities")
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=address)
            existing = self._client.get_experiment_by_name(experiment)
            if existing is None:
                number = self._client.create_experiment(experiment)
            else:
                number = existing.experiment_id
            info = self._client.create_run(number, run_name=name).info
            self._run, self._opened = info.run_id, info.start_time
            parameters = [entities.Param(key, str(value)) for key, value in (settings or {}).items()]
            self._client.log_batch(self._run, params=parameters)
        except self._mlflow.MlflowException as error:
            raise FedprivError(f"MLflow cannot start a run ({error}); check the tracking URI and its server") from error

    def _send(self, round_number: int, values: Mapping[str, float]) -> None:
        metric = import_module("mlflow.entities").Metric
        self._client.log_batch(
            self._run, metrics=[metric(tag, value, self._opened, round_number) for tag, value in values.items()]
        )

    def _finish(self) -> None:
        self._client.set_terminated(self._run)


def _imported(module: str, extra: str) -> Any:  # noqa: ANN401 - a library without types
    """Imports an optional library.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        fix = f"is not installed; run: pip install 'fedpriv[{extra}]'"
        raise ConfigError("sinks", module, fix) from error
