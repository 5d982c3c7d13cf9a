"""Extends a finished run by more rounds: reads the data that the new run needs from the folder of the earlier run.

The new run has a separate folder; the earlier folder is only read. The ledger of the new run begins with all records of
the earlier run, so an epsilon computed from it covers both parts. Noise and batches of the further rounds are drawn
anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.planning.plan import FirstPart
from fedpriv.privacy.ledger_file import Extended
from fedpriv.privacy.settings import Privacy
from fedpriv.runs import integrity
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.results import convert_to_reports
from fedpriv.runs.run_files import RunFiles


@dataclass(frozen=True)
class EarlierRun:
    """A finished run that another one extends.

    Attributes:
        folder: The folder of the earlier run.
        checkpoint: The last checkpoint of the earlier run.
        first: The rounds of the earlier run with all their releases.
        metrics: The rows of the earlier run's `metrics.jsonl`; empty without this file.
        budget: The `id` of the lifetime budget that the earlier run used; None if it used none.
        float64_noise: Reasons why all noise of the earlier run was float64 noise, as text.
        not_covered: Facts about the data that the earlier run revealed and epsilon does not cover, as text.
        first_run: Random name of the first run in the chain of runs that extend each other, up to the earlier run.
    """

    folder: Path
    checkpoint: Checkpoint
    first: FirstPart
    metrics: list[dict[str, Any]]
    budget: str | None
    float64_noise: tuple[str, ...]
    not_covered: tuple[str, ...]
    first_run: str | None

    @staticmethod
    def read(folder: str | Path, device: torch.device) -> EarlierRun:
        """Reads and checks the folder of a finished run.

        Args:
            folder: The folder of the earlier run.
            device: Device of the tensors of its state.

        Raises:
            FedprivError: If the folder holds no run, the run is unfinished or ended early, or its files were altered.
        """
        path = Path(folder)
        checkpoint = Checkpoint.load(path / "checkpoint.pt", device)
        files = RunFiles.read(path)
        integrity.raise_problems(integrity.find_problems(files))
        if checkpoint.round < checkpoint.rounds:
            raise FedprivError(
                f"{path} has finished {checkpoint.round} of {checkpoint.rounds} rounds: finish this run first "
                "(resume). A run that ended early cannot be extended, because its end may depend on the data"
            )
        if checkpoint.client_state != "memory":
            fix = (
                f"the run in {path} stores the clients' state on disk, and only runs with the state in memory can be "
                "extended"
            )
            raise ConfigError("compute.client_state", checkpoint.client_state, fix)
        records = files.ledger.records
        if len(records) != checkpoint.records:
            raise FedprivError(f"{path} has released results after its last checkpoint: resume this run first")
        first = FirstPart(checkpoint.round, tuple(records))
        header = files.ledger.header
        return EarlierRun(
            path,
            checkpoint,
            first,
            files.metrics,
            header.budget,
            header.float64_noise,
            files.not_covered,
            files.ledger.first_run,
        )

    @property
    def header(self) -> Extended:
        """The facts about the earlier run that the header of the new run's ledger contains."""
        return Extended(self.first.rounds, len(self.first.records), self.first_run)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rounds of the earlier run, in the form of reports."""
        return convert_to_reports(self.metrics)


def get_common_settings(privacy: Privacy) -> Privacy:
    """Returns the privacy settings that a run must share with a run that extends it. The target epsilon is removed and
    the noise multiplier is set to 1, because these two may differ.
    """
    if privacy.private:
        return replace(privacy, epsilon=None, noise_multiplier=1.0)
    return privacy
