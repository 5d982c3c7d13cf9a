"""What of a run is on the disk: its folder, its ledger, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger import Guard, Ledger
from fedpriv.privacy.ledger_file import facts_of_pairs
from fedpriv.privacy.pricing import pairs_of
from fedpriv.randomness.streams import Randomness
from fedpriv.runs import integrity
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.planning import Plan
from fedpriv.runs.results import read_metrics, releases_told
from fedpriv.runs.run_files import config_in
from fedpriv.storage.folder import RunFolder
from fedpriv.storage.identity import of_config


class Keeper:
    """Keeps a run where it can be resumed; without a folder the run is in memory, and nothing here does anything.

    Args:
        folder: Where to.
        every: Rounds between checkpoints.
    """

    def __init__(self, folder: Path | RunFolder | None, every: int) -> None:
        self.folder, self._every = RunFolder(folder) if isinstance(folder, Path) else folder, every

    @property
    def path(self) -> Path | None:
        """The folder's path; None of a run in memory."""
        return None if self.folder is None else self.folder.path

    def last(self, device: torch.device) -> Checkpoint | None:
        """Where the run to resume stopped; None where it was killed before its first checkpoint.

        Raises:
            ConfigError: there is no folder.
            FedprivError: what it holds cannot be resumed.
        """
        path = self._needed()
        return Checkpoint.last(path, releases_told(path / "metrics.jsonl"), device)

    def rows(self, finished: int) -> list[dict[str, Any]]:
        """What was reported of the first `finished` rounds before a resume."""
        rows = read_metrics(self._needed() / "metrics.jsonl") if finished else []
        return [{**row, "epsilon": float(row["epsilon"])} for row in rows if row["round"] <= finished]

    def ledger(
        self, guard: Guard, plan: Plan, randomness: Randomness, saved: Checkpoint | None, *, fresh_noise: bool
    ) -> Ledger:
        """The run's ledger: a new one, or the one on the disk, which replays what it has beyond the checkpoint.

        Args:
            guard: What it asks before it admits a record.
            plan: The run's plan.
            randomness: The run's streams.
            saved: Where the run stopped; None of one that begins.
            fresh_noise: See `Ledger.resume`.

        Raises:
            LedgerError: what is on the disk does not fit the run, or cannot be written.
        """
        if self.folder is None:
            return Ledger(guard)
        folder, digests, seals = self.folder.path, randomness.digest_key(), randomness.seal_key()
        path = folder / "ledger.jsonl"
        if saved is None:
            ledger = Ledger(guard, path, _header(plan, config_in(folder)), digests, seals)
        else:
            integrity.check_resumed(folder, plan, seals)
            keys = {"digest_key": digests, "seal_key": seals}
            ledger = Ledger.resume(path, guard, saved.records, fresh_noise=fresh_noise, **keys)
        ledger.may_write = self.folder.check
        return ledger

    def check(self) -> None:
        """Stop where another run has taken the folder.

        Raises:
            FedprivError: one has.
        """
        if self.folder is not None:
            self.folder.check()

    def is_due(self, finished: int, *, last: bool) -> bool:
        """Whether a checkpoint is due after so many rounds."""
        return self.folder is not None and (last or finished % self._every == 0)

    def save(self, checkpoint: Checkpoint, ledger: Ledger) -> None:
        """Write a checkpoint, and before it all that it counts on."""
        if self.folder is not None:
            self.folder.check()
            ledger.sync()
            checkpoint.save(self.folder.path / "checkpoint.pt")

    def _needed(self) -> Path:
        if self.folder is None:
            raise ConfigError("folder", None, "name the folder of the run to resume")
        return self.folder.path


def _header(plan: Plan, config: dict[str, Any] | None) -> dict[str, Any]:
    """What the first line of a ledger tells of its run."""
    named = {} if config is None else {"config": of_config(config)}
    paired = facts_of_pairs(pairs_of(plan.privacy, plan.n_clients))
    return {"n_clients": plan.n_clients, "delta": plan.privacy.delta, **paired, **named, "planned": len(plan.records)}
