"""A run's files: keeping them up to date, and going on from them after a stop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedpriv.errors import ConfigError
from fedpriv.planning.plan import FirstPart, Plan
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.ledger import FollowerLedger, Ledger, PrivacyFilter
from fedpriv.privacy.ledger_file import LedgerFile, facts_of_pairs, facts_of_time
from fedpriv.privacy.release.pairwise import pairs_of
from fedpriv.randomness.streams import Randomness
from fedpriv.runs import integrity
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.extending import EarlierRun
from fedpriv.runs.results import read_metrics, releases_told
from fedpriv.runs.run_files import config_in
from fedpriv.runs.settings_in_words import settings_in_words
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder
from fedpriv.storage.identity import of_config


class RunDirectory:
    """Writes what a later `resume` needs into a folder, and reads it back. Without a folder nothing is kept.

    Args:
        folder: The run's folder; None keeps nothing.
        every: Rounds between checkpoints.
    """

    def __init__(self, folder: str | Path | RunFolder | None, every: int) -> None:
        if isinstance(folder, (str, Path)):
            self.folder = RunFolder(Path(folder))
        else:
            self.folder = folder
        self._every = every

    @property
    def path(self) -> Path | None:
        """The folder's path; None if nothing is kept."""
        if self.folder is None:
            return None
        return self.folder.path

    def last(self, device: torch.device) -> Checkpoint | None:
        """The newest checkpoint of the run to resume; None if it was killed before its first.

        Args:
            device: Where the tensors go.

        Raises:
            ConfigError: there is no folder.
            FedprivError: the folder's run cannot be resumed.
        """
        path = self._needed()
        return Checkpoint.last(path, releases_told(path / "metrics.jsonl"), device)

    def matrix(self) -> Factor | None:
        """That of the noise of the run to resume, where it is correlated between rounds; its seal is checked later.

        Raises:
            LedgerError: the ledger is missing, or has no header.
        """
        return LedgerFile.read(self._needed() / "ledger.jsonl").header.factor

    def first_part(self) -> FirstPart | None:
        """The rounds of an earlier run which the run to resume extends; None if it extends none.

        Raises:
            LedgerError: the ledger is missing or damaged.
        """
        return FirstPart.of(LedgerFile.read(self._needed() / "ledger.jsonl"))

    def rows(self, finished: int) -> list[dict[str, Any]]:
        """The rows of metrics that the run wrote about its first `finished` rounds, before it stopped."""
        if finished:
            rows = read_metrics(self._needed() / "metrics.jsonl")
        else:
            rows = []
        return [{**row, "epsilon": float(row["epsilon"])} for row in rows if row["round"] <= finished]

    def ledger(
        self,
        guard: PrivacyFilter,
        plan: Plan,
        randomness: Randomness,
        saved: Checkpoint | None,
        *,
        fresh_noise: bool,
        budget: str | None = None,
        earlier: EarlierRun | None = None,
    ) -> Ledger:
        """The run's ledger: a new one, or that of a stopped run, whose answers after the checkpoint are repeated.

        Args:
            guard: Refuses answers that would pass the budget.
            plan: What the run is going to release.
            randomness: The run's random streams.
            saved: The checkpoint to go on from; None for a new run.
            fresh_noise: See `Ledger.resume`.
            budget: The `id` of the budget that the run draws on, if it has one.
            earlier: The run that a new one extends; its records come first, and its metrics.

        Raises:
            LedgerError: the ledger in the folder belongs to another run or is damaged, or a new one cannot be written.
        """
        if self.folder is None:
            ledger = Ledger(guard)
            ledger.begin_with(() if earlier is None else earlier.first.records)
            return ledger
        folder, digests, seals = self.folder.path, randomness.digest_key(), randomness.seal_key()
        path = folder / "ledger.jsonl"
        if saved is None:
            ledger = Ledger(guard, path, _header(plan, config_in(folder), budget, earlier), digests, seals)
        else:
            integrity.check_resumed(folder, plan, seals)
            keys = {"digest_key": digests, "seal_key": seals}
            ledger = Ledger.resume(path, guard, saved.records, fresh_noise=fresh_noise, **keys)
        ledger.may_write = self.folder.check
        if earlier is not None:
            ledger.begin_with(earlier.first.records)
            if earlier.metrics:
                self.folder.write("metrics.jsonl", _metrics(earlier, LedgerFile.read(path)).encode())
        return ledger

    def config_in_words(self) -> dict[str, str]:
        """The configuration in the folder by name, but for logging; empty where there is none."""
        if self.folder is None:
            config = None
        else:
            config = config_in(self.folder.path)
        if config is None:
            return {}
        return settings_in_words(config={name: part for name, part in config.items() if name != "log"})

    def check(self) -> None:
        """Make sure that no other run writes to the folder.

        Raises:
            FedprivError: one does.
        """
        if self.folder is not None:
            self.folder.check()

    def is_due(self, finished: int, *, last: bool) -> bool:
        """Whether to write a checkpoint after `finished` rounds; `last` is the end of the run."""
        return self.folder is not None and (last or finished % self._every == 0)

    def save(self, checkpoint: Checkpoint, ledger: Ledger | FollowerLedger) -> None:
        """Write a checkpoint, once the ledger's records before it are safely on the disk."""
        if self.folder is not None:
            self.folder.check()
            ledger.sync()
            checkpoint.save(self.folder.path / "checkpoint.pt")

    def _needed(self) -> Path:
        if self.folder is None:
            raise ConfigError("folder", None, "name the folder of the run to resume")
        return self.folder.path


def _metrics(earlier: EarlierRun, ledger: LedgerFile) -> str:
    """The metrics of an earlier run, with the hashes of the ledger of the run that extends it."""
    rows = [{**row, **({"head": ledger.head(row["releases"])} if "head" in row else {})} for row in earlier.metrics]
    return "".join(strict_json.dumps(row) + "\n" for row in rows)


def _header(
    plan: Plan, config: dict[str, Any] | None, budget: str | None, earlier: EarlierRun | None
) -> dict[str, Any]:
    """The first line of a ledger: public facts that identify its run."""
    named = ({} if config is None else {"config": of_config(config)}) | ({} if budget is None else {"budget": budget})
    paired = facts_of_pairs(pairs_of(plan.privacy, plan.n_clients))
    if earlier is None:
        extended = {}
    else:
        extended = {"extended": asdict(earlier.header)}
    known = {**paired, **facts_of_time(plan.privacy.over_time), **named, **extended}
    return {"n_clients": plan.n_clients, "delta": plan.privacy.delta, **known, "planned": len(plan.records)}
