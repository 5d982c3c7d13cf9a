"""The files of a run: writes them during a run, and reads them to resume it after a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedpriv.errors import ConfigError, LedgerError
from fedpriv.planning.plan import FirstPart, Plan
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.ledger import FollowerLedger, Ledger, PrivacyFilter
from fedpriv.privacy.ledger_file import LedgerFile, make_correlation_facts, make_pairwise_facts
from fedpriv.privacy.release.pairwise import make_pairs
from fedpriv.runs import integrity
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.extending import EarlierRun
from fedpriv.runs.line_files import METRICS, MetricsFile
from fedpriv.runs.planned_releases import PlannedReleases
from fedpriv.runs.preceding import PrecedingRun
from fedpriv.runs.results import Result, convert_to_reports, count_releases, read_metrics
from fedpriv.runs.run_files import SETTINGS_FILE, find_settings_path, read_config, read_settings
from fedpriv.runs.settings_text import format_settings
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder
from fedpriv.storage.identity import digest_config

LARGEST_SHARE = 0.05
"""Largest share of a run's time that is used to write checkpoints, if `checkpoint_every` is not given."""


class RunDirectory:
    """Writes the data for a later `resume` into a folder, and reads them back. Without a folder nothing is stored.

    Args:
        folder: The run's folder; None stores nothing.
        every: Rounds between checkpoints. None writes them as often as possible within the share `LARGEST_SHARE` of the
            run's time.
    """

    def __init__(self, folder: str | Path | RunFolder | None, every: int | None) -> None:
        if isinstance(folder, (str, Path)):
            self.folder = RunFolder(Path(folder))
        else:
            self.folder = folder
        self._every = every
        self._saved_at = 0.0
        self._saved_round = 0
        self._next_save = 0
        self._plan = ""  # the planned releases, packed

    @property
    def path(self) -> Path | None:
        """The folder's path; None if nothing is stored."""
        if self.folder is None:
            return None
        return self.folder.path

    def last(self, device: torch.device) -> Checkpoint | None:
        """Returns the newest checkpoint of the run to resume; None if the run was killed before its first checkpoint.

        Args:
            device: Device of the tensors.

        Raises:
            ConfigError: If there is no folder.
            FedprivError: If the folder's run cannot be resumed.
        """
        path = self._needed()
        return Checkpoint.last(path, count_releases(path / METRICS), device)

    def matrix(self) -> Factor | None:
        """Returns the noise matrix of the run to resume; None if its noise is independent between rounds.

        Raises:
            LedgerError: If the ledger is missing, or has no header.
        """
        return LedgerFile.read(self._needed() / "ledger.jsonl").header.factor

    def float64_noise(self) -> tuple[str, ...]:
        """Returns the reasons why all noise of the run to resume was float64 noise, as text.

        Raises:
            LedgerError: If the ledger is missing, or has no header.
        """
        return LedgerFile.read(self._needed() / "ledger.jsonl").header.float64_noise

    def not_covered(self) -> tuple[str, ...]:
        """Returns the facts that the run to resume reveals and epsilon does not count, as text.

        Raises:
            LedgerError: If the ledger is missing, or has no header.
        """
        return LedgerFile.read(self._needed() / "ledger.jsonl").header.not_covered

    def first_part(self) -> FirstPart | None:
        """If the run to resume extends an earlier run, returns the rounds of the earlier run, else None.

        Raises:
            LedgerError: If the ledger is missing or damaged.
        """
        return FirstPart.of(LedgerFile.read(self._needed() / "ledger.jsonl"))

    def rows(self, finished: int) -> list[dict[str, Any]]:
        """Returns the rows of metrics that the run wrote for its first `finished` rounds, before it stopped."""
        if finished == 0:
            return []
        rows = read_metrics(self._needed() / METRICS)
        return convert_to_reports([row for row in rows if row["round"] <= finished])

    def ledger(
        self,
        guard: PrivacyFilter,
        plan: Plan,
        name: str,
        saved: Checkpoint | None,
        *,
        budget: str | None = None,
        earlier: EarlierRun | PrecedingRun | None = None,
        float64_noise: tuple[str, ...] = (),
        not_covered: tuple[str, ...] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Ledger:
        """Opens the run's ledger: a new one, or the ledger of a stopped run.

        The header of a new ledger contains a hash of the run's settings, which are already in the folder.

        Args:
            guard: Raises errors for releases that would exceed the budget.
            plan: The planned releases of the run.
            name: Random name of the run.
            saved: The checkpoint from which the run resumes; None for a new run.
            budget: The `id` of the budget that the run uses, if it has one.
            earlier: The run that a new one extends or counts; its records and metrics come first.
            float64_noise: Reasons why all noise of the run is float64 noise, as text; recorded in the ledger's header.
            not_covered: Facts that the run reveals and epsilon does not count, as text; recorded in the ledger's
                header.
            settings: The settings of a new run, written to `settings.json` unless the folder has a configuration.

        Raises:
            LedgerError: If the ledger in the folder belongs to another run, is damaged, or records another rounding of
                noise or fewer revealed facts; or if a new one cannot be written.
        """
        if self.folder is None:
            ledger = Ledger(guard)
            ledger.begin_with(() if earlier is None else earlier.first.records)
            return ledger
        folder = self.folder.path
        self._plan = PlannedReleases.of(plan).packed()
        path = folder / "ledger.jsonl"
        if saved is None:
            if settings is not None and not path.exists() and find_settings_path(folder).name == SETTINGS_FILE:
                self.folder.write(SETTINGS_FILE, (strict_json.dumps(settings, indent=2) + "\n").encode())
            header = _header(plan, name, read_settings(folder), budget, earlier)
            if float64_noise:
                header["float64_noise"] = list(float64_noise)
            if not_covered:
                header["not_covered"] = list(not_covered)
            ledger = Ledger(guard, path, header)
        else:
            check_rounding(LedgerFile.read(path), float64_noise)
            check_not_covered(LedgerFile.read(path), not_covered)
            integrity.check_resumed(folder, plan)
            ledger = Ledger.resume(path, guard, saved.records)
        ledger.may_write = self.folder.check
        if earlier is not None:
            ledger.begin_with(earlier.first.records)
            if earlier.metrics:
                self.folder.write(METRICS, _metrics_with_new_heads(earlier, LedgerFile.read(path)).encode())
        return ledger

    def config_in_words(self) -> dict[str, str]:
        """Returns the settings of the folder's configuration by name, without logging; empty if there is none."""
        if self.folder is None:
            config = None
        else:
            config = read_config(self.folder.path)
        if config is None:
            return {}
        return format_settings(config={name: section for name, section in config.items() if name != "log"})

    def open_metrics(self, finished: int) -> MetricsFile | None:
        """Opens the file to which the metrics of each round after the first `finished` rounds are written; returns None
        without a folder.
        """
        if self.folder is None or read_settings(self.folder.path) is None:
            return None
        return MetricsFile(self.folder.path / METRICS, finished)

    def finish(self, result: Result, facts: Mapping[str, Any], *, nodes: bool) -> None:
        """Writes the model and the result of a run that is over; `result.json` comes last.

        Args:
            result: The result.
            facts: The contents of `result.json`.
            nodes: True to also write each node's model.
        """
        if self.folder is not None:
            result.save(self.folder.path, nodes=nodes)
            self.folder.write("result.json", (strict_json.dumps(facts, indent=2) + "\n").encode())

    def check(self) -> None:
        """Checks that no other run writes to the folder.

        Raises:
            FedprivError: If another run writes to the folder.
        """
        if self.folder is not None:
            self.folder.check()

    @property
    def next_save(self) -> int:
        """Latest number of finished rounds after which the next checkpoint is due."""
        return self._next_save

    def is_due(self, finished: int, *, last: bool) -> bool:
        """True if a checkpoint is due after `finished` rounds; `last` marks the end of the run."""
        return self.folder is not None and (last or finished >= self._next_save)

    def save(self, checkpoint: Checkpoint, ledger: Ledger | FollowerLedger) -> None:
        """Writes a checkpoint, after the ledger's earlier records are safely on disk."""
        if self.folder is None:
            return
        began = time.monotonic()
        self.folder.check()
        ledger.sync()
        replace(checkpoint, plan=self._plan).save(self.folder.path / "checkpoint.pt")
        self._plan_next_save(checkpoint.round, began)

    def _plan_next_save(self, finished: int, began: float) -> None:
        """Sets the time of the next checkpoint, after a checkpoint that was written from the time `began` until now."""
        now = time.monotonic()
        if self._every is not None:
            self._next_save = (finished // self._every + 1) * self._every
        else:
            rounds = finished - self._saved_round
            interval = 1
            if rounds > 0:
                seconds_per_round = max((began - self._saved_at) / rounds, 1e-6)
                cheap = math.ceil((now - began) / LARGEST_SHARE / seconds_per_round)
                interval = min(cheap, 2 * rounds)  # one slow write, or one quick round, is not decisive
            self._next_save = finished + max(interval, 1)
        self._saved_at = now
        self._saved_round = finished

    def _needed(self) -> Path:
        """Returns the folder's path; raises an error on a resume without a folder."""
        if self.folder is None:
            raise ConfigError("folder", None, "set the folder of the run to resume")
        return self.folder.path


def check_rounding(ledger: LedgerFile, float64_noise: tuple[str, ...]) -> None:
    """Raises an error if a run would add float64 noise to a ledger with a header that promises exact rounding.

    Raises:
        LedgerError: If the run would add such noise, e.g. because it began on a CPU and is resumed on another device.
    """
    new = [kind for kind in float64_noise if kind not in ledger.header.float64_noise]
    if new:
        raise LedgerError(
            f"{ledger.path}, line 1 declares exactly rounded noise, but {' and '.join(new)} is not rounded exactly: "
            "resume on the original device (compute.device), or train into another folder"
        )


def check_not_covered(ledger: LedgerFile, not_covered: tuple[str, ...]) -> None:
    """Raises an error if the run reveals facts that the ledger's header does not list. Later statements of epsilon are
    made from this header.

    Raises:
        LedgerError: If there are such facts, e.g. because the run began without an optimum and is resumed with one.
    """
    new = [fact for fact in not_covered if fact not in ledger.header.not_covered]
    if new:
        raise LedgerError(
            f"{ledger.path}, line 1 does not list {' and '.join(new)}, which the run would reveal and epsilon "
            "does not cover: resume without log.optimum, or train into another folder"
        )


def _metrics_with_new_heads(earlier: EarlierRun | PrecedingRun, ledger: LedgerFile) -> str:
    """Returns the metrics of an earlier run, with the hashes of the ledger of the run that extends it."""
    rows = list[dict[str, Any]]()
    for row in earlier.metrics:
        if "head" in row:
            row = {**row, "head": ledger.head(row["releases"])}
        rows.append(row)
    return "".join(strict_json.dumps(row) + "\n" for row in rows)


def _header(
    plan: Plan,
    name: str,
    settings: dict[str, Any] | None,
    budget: str | None,
    earlier: EarlierRun | PrecedingRun | None,
) -> dict[str, Any]:
    """Returns the first line of a ledger: public facts that identify its run."""
    # in the order of the file, which determines its hashes
    facts: dict[str, Any] = {"run": name, "n_clients": plan.n_clients, "delta": plan.privacy.delta}
    facts |= make_pairwise_facts(make_pairs(plan.privacy, plan.n_clients))
    facts |= make_correlation_facts(plan.privacy.over_time)
    if settings is not None:
        facts["config"] = digest_config(settings)
    if budget is not None:
        facts["budget"] = budget
    if earlier is not None:
        facts["extended"] = asdict(earlier.header)
    facts["planned"] = len(plan.records)
    return facts
