"""Reads the files of a run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedpriv.clients.datasets import PUBLISHED
from fedpriv.errors import ConfigError, FedprivError, LedgerError
from fedpriv.evaluation import metrics
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.results import read_metrics
from fedpriv.storage import strict_yaml
from fedpriv.storage.file_schemas import RESULT, validate_fields
from fedpriv.storage.files import read

CONFIG_FILE = "config.yaml"
SETTINGS_FILE = "settings.json"
RESTORE = "restore the file from a copy"
_REMAKE = f"{RESTORE}, or delete it; fedpriv resume then writes it again"


def make_missing_run_error(
    folder: Path, missing: str, fix: str = "name a folder created by fedpriv train"
) -> FedprivError:
    """Returns the error for a folder that lacks a file of a run, with the fix.

    Args:
        folder: Path of the folder.
        missing: Name of the file.
        fix: Suggested fix if the folder contains no run.
    """
    if missing == CONFIG_FILE and (folder / SETTINGS_FILE).exists():
        return FedprivError(
            f"{folder} contains the run of a Python program (settings.json, no config.yaml), but this command "
            "needs a configuration: use the run in that program (fedpriv.train with resume=True or "
            "extend=FOLDER); fedpriv show, report, statement and account can read the folder"
        )
    if missing == CONFIG_FILE and (folder / "ledger.jsonl").exists():
        return FedprivError(
            f"{folder} has neither config.yaml nor settings.json: restore the file from a copy. For runs of "
            f"Python programs, earlier versions wrote neither; fedpriv account {folder} computes its epsilon"
        )
    return FedprivError(f"{folder} contains no run (no {missing}); {fix}")


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, finished or not.

    Attributes:
        folder: Path of the run's folder.
        config: `config.yaml`; None if there is none.
        settings: The settings of the run: `config.yaml` or, for the run of a Python program, `settings.json`; None if
            there is neither.
        result: `result.json`; None while the run is unfinished.
        checkpoint: The last checkpoint, with tensors that have no values; None if there is none or it cannot be read.
        unread: Reason why the checkpoint cannot be read; None if it can, or there is none.
        metrics: `metrics.jsonl`, one row for each round.
        ledger: The ledger.
    """

    folder: Path
    config: dict[str, Any] | None
    settings: dict[str, Any] | None
    result: dict[str, Any] | None
    checkpoint: Checkpoint | None
    unread: str | None
    metrics: list[dict[str, Any]]
    ledger: LedgerFile

    @staticmethod
    def read(folder: Path) -> RunFiles:
        """Reads a folder, also of a run in progress.

        Files are read in the reverse order of writing. So in a run in progress, a file can contain fewer rounds than
        the files that are read after it, but never more.

        Raises:
            FedprivError: If a file is damaged.
            LedgerError: If there is no ledger.
        """
        path = folder / "result.json"
        result = None
        if path.exists():
            result = validate_fields(RESULT, _parsed(path, json.loads), path, _REMAKE, metrics.list_result_names())
        checkpoint, unread = _checkpoint_in(folder)
        return RunFiles(
            folder=folder,
            config=read_config(folder),
            settings=read_settings(folder),
            result=result,
            checkpoint=checkpoint,
            unread=unread,
            metrics=read_metrics(folder / "metrics.jsonl"),
            ledger=LedgerFile.read(folder / "ledger.jsonl"),
        )

    @cached_property
    def counted(self) -> PrivacySpent:
        """The epsilon of the releases in the ledger's records.

        Raises:
            LedgerError: If the ledger is damaged or altered.
        """
        header = self.ledger.header
        if header.n_clients is None or header.delta is None:
            raise LedgerError(f"{self.ledger.path}, line 1 has no n_clients or no delta; {RESTORE}")
        counted = account(self.ledger.records, header.n_clients, header.delta)
        return replace(
            counted, float64_noise=(*counted.float64_noise, *header.float64_noise), not_covered=self.not_covered
        )

    @property
    def settings_path(self) -> Path:
        """Path of the file that holds `settings`."""
        return find_settings_path(self.folder)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Facts about the data that the run reveals and epsilon does not count, from the ledger and the result."""
        by_result = ()
        if self.result is not None:
            by_result = self.result["not_covered"]
        return tuple(dict.fromkeys((*self.ledger.header.not_covered, *by_result)))


def describe_fixed_data(config: dict[str, Any] | None) -> str | None:
    """Returns the settings that determine the clients' examples, as text, if equal settings mean equal examples.

    Returns None if the data are the user's files or come from user code. In that case rows may be added or removed
    between two runs, and the same row may belong to different clients although the configuration is the same.
    """
    section = (config or {}).get("data")
    if config is None or not isinstance(section, dict) or str(section.get("name")) not in PUBLISHED:
        return None
    return json.dumps([section, config.get("problem")], sort_keys=True, default=str)


def read_config(folder: Path) -> dict[str, Any] | None:
    """Reads the `config.yaml` of a folder, without validation; None if there is none.

    Raises:
        FedprivError: If the file is not a YAML mapping.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        return None
    config = _parsed(path, lambda text: strict_yaml.read(text, str(path)))
    if not isinstance(config, dict):
        raise FedprivError(f"{path} is damaged; {RESTORE}")
    return config


def find_config_file(folder: Path, fix: str = "name a folder created by fedpriv train") -> Path:
    """Returns the path of the configuration of a run.

    Args:
        folder: Path of the run's folder.
        fix: Suggested fix if the folder contains no run.

    Raises:
        FedprivError: If there is no configuration, because a Python program made the run or the folder contains no run.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise make_missing_run_error(folder, CONFIG_FILE, fix)
    return path


def find_settings_path(folder: Path) -> Path:
    """Returns the path of a run's settings: `config.yaml` or, if there is none, `settings.json`."""
    path = folder / CONFIG_FILE
    if path.exists():
        return path
    return folder / SETTINGS_FILE


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Reads the settings of a run, without validation: `config.yaml` or `settings.json`; None if there is neither.

    Raises:
        FedprivError: If the file is not a mapping.
    """
    path = find_settings_path(folder)
    if path.name == CONFIG_FILE:
        return read_config(folder)
    if not path.exists():
        return None
    settings = _parsed(path, json.loads)
    if not isinstance(settings, dict):
        raise FedprivError(f"{path} is damaged; {RESTORE}")
    return settings


def _checkpoint_in(folder: Path) -> tuple[Checkpoint | None, str | None]:
    """Reads the checkpoint in a folder. Returns it and the reason why it cannot be read; each may be None."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return None, None
    try:
        return Checkpoint.load(path, torch.device("meta")), None
    except FedprivError as error:
        return None, str(error)


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401 - JSON and YAML hold anything
    try:
        return parse(read(path).decode())
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            reason = f" ({error.fix})"
        else:
            reason = ""
        raise FedprivError(f"{path} is damaged{reason}; {RESTORE}") from error
