"""Atomic save and resume. A checkpoint holds released and client-local state; keep it as safe as the data."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from fedpriv.errors import FedprivError
from fedpriv.simulation import Progress


@dataclass(frozen=True)
class Checkpoint:
    """A stopped run.

    Attributes:
        progress: The run's state.
        records: Number of ledger records when it was saved.
        seconds: Time spent so far.
        settings: Fingerprint of what must not change between stop and resume.
        seed: The run's public seed.
        secret_seed: The one that noise follows from, which may be known to nobody else.
        run: Names the run's noise.
        attempt: Names the noise that is in use: another one after every resume with fresh noise.
        model: Fingerprint of all that the state's rows do not hold of the model.
    """

    progress: Progress
    records: int
    seconds: float
    settings: str
    seed: str
    secret_seed: str
    run: str
    attempt: int
    model: str

    def save(self, path: Path) -> None:
        """Write beside `path`, flush to disk, then rename over it: a crash leaves the old file or the new one.

        Raises:
            FedprivError: the disk does not take it.
        """
        progress = {name: getattr(self.progress, name) for name in Progress.__dataclass_fields__}
        payload = {**asdict(self, dict_factory=_without_progress), "progress": progress}
        new = path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                torch.save(payload, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except (OSError, RuntimeError) as error:
            raise FedprivError(f"{path} could not be written ({error}); free some space and resume the run") from error

    @staticmethod
    def load(path: Path, device: torch.device) -> Checkpoint:
        """Read a checkpoint.

        Raises:
            FedprivError: there is none, or it cannot be read.
        """
        if not path.exists():
            raise FedprivError(f"{path} does not exist: the run stopped before its first checkpoint; start it anew")
        try:
            payload: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
            if "secret_seed" not in payload:
                raise FedprivError(
                    f"{path} was written by an earlier fedpriv, whose noise this one cannot repeat: go on with the "
                    "version that began the run, or start a new run (what this one has spent stays spent)"
                )
            progress = Progress(**payload.pop("progress"))
            return Checkpoint(progress=progress, **payload)
        except (RuntimeError, KeyError, TypeError, EOFError, UnpicklingError) as error:
            reason = (str(error) or "it ends too early").split(". ")[0].splitlines()[0]  # torch goes on about it
            raise FedprivError(f"{path} cannot be read ({reason}); restore it or start the run anew") from error


def _without_progress(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if name != "progress"}
