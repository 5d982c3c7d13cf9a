"""Saves and resumes a run. A checkpoint may contain private state of clients, so protect it like the data.

A checkpoint contains nothing from which the noise can be computed. With random allocation it contains the key of the
secret draw of the current epoch, so that each example stays in the same batch in the resumed run.
"""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass, field, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from fedpriv.errors import FedprivError
from fedpriv.network.engines import StateName
from fedpriv.network.rounds import TrainState
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.storage import files


@dataclass(frozen=True)
class Checkpoint:
    """The data from which a stopped run resumes.

    Attributes:
        progress: The state of strategy and network after a round, as returned by `TrainState.stored`.
        records: Number of records in the ledger when the checkpoint was written.
        head: The `chain` hash of the last of these records; None if the ledger has no chain.
        seconds: Time spent so far.
        settings: Digest of the settings, which must not change between stop and resume.
        seed: The run's public seed.
        run: Random name of the run.
        attempt: Label of the run's releases, see `fedpriv.privacy.record.Record`.
        model: Digest of the model's layers, frozen parameters and buffers.
        first_nonfinite: See `fedpriv.runs.results.Result`.
        stopping: Number of rounds without improvement of the metric of `stop`; see
            `fedpriv.evaluation.early_stopping.EarlyStopping`.
        max_physical_batch_size: See `fedpriv.planning.compute.Compute`.
        client_state: See `Compute`. On disk, `progress` lists the clients' rows in the files next to this one.
        processes: Number of processes of the run.
        words: The settings by name. A resume with other settings lists the differences to them.
        data: Keyed digests of the clients' examples, and the key of the digests; see
            `fedpriv.clients.data_fingerprints`.
        rounds: Number of rounds that the run planned.
        fixed_settings: Digest of the settings that a run shares with one that extends it: all but the number of rounds,
            the target and the noise multiplier.
        kept: The models of the round with the best test metric; see `fedpriv.evaluation.best_model.BestModel`.
        epochs: The key of the secret draws of the current epoch, in hexadecimal digits, by the number of the epoch; see
            `fedpriv.randomness.streams.Randomness.epoch_key`.
        plan: All planned releases, see `fedpriv.runs.planned_releases`.
    """

    progress: dict[str, Any]
    records: int
    head: str | None
    seconds: float
    settings: str
    seed: str
    run: str
    attempt: int
    model: str
    first_nonfinite: dict[str, int]
    stopping: dict[str, float] = field(default_factory=dict[str, float])
    max_physical_batch_size: int | None = None
    client_state: StateName = "memory"
    processes: int = 1
    words: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    rounds: int = 0
    fixed_settings: str = ""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    epochs: dict[str, str] = field(default_factory=dict[str, str])
    plan: str = ""

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return int(self.progress["round"])

    @property
    def epoch_keys(self) -> dict[int, bytes]:
        """The keys of `epochs`, by number."""
        return {int(epoch): bytes.fromhex(key) for epoch, key in self.epochs.items()}

    def save(self, path: Path) -> None:
        """Writes the checkpoint to the physical disk. After a crash either the old or the new file exists.

        Raises:
            FedprivError: If the file cannot be written.
        """
        try:
            files.write_whole(path, self.dumps())
        except OSError as error:
            fix = "correct the cause, e.g. free some space, and resume the run"
            raise FedprivError(f"{path} could not be written ({error.strerror}); {fix}") from error

    def dumps(self) -> bytes:
        """Returns the content of the checkpoint's file."""
        content = io.BytesIO()
        payload = {field.name: getattr(self, field.name) for field in fields(self)}
        torch.save({**payload, "words": _packed(self.words)}, content)
        return content.getvalue()

    @staticmethod
    def load(path: Path, device: torch.device) -> Checkpoint:
        """Reads a checkpoint. With the device `meta` the tensors have no values, which is faster.

        Raises:
            FedprivError: If the file does not exist or cannot be read.
        """
        try:
            content = files.open_for_reading(path)
        except FileNotFoundError:
            fix = f"restore the file, or start another run: fedpriv train {path.with_name('config.yaml')} --out NEW"
            raise FedprivError(f"{path} does not exist; {fix}") from None
        try:
            with content:
                payload: dict[str, Any] = torch.load(content, map_location=device, weights_only=True)
            if "epochs" not in payload:
                raise FedprivError(
                    f"{path} was written by an earlier version of fedpriv: continue with the version that began "
                    "the run, or start a new run (the privacy cost of the old run remains)"
                )
            missing = {field.name for field in fields(TrainState)} ^ {*payload["progress"]}
            if missing:
                raise KeyError(", ".join(sorted(missing)))
            head: str | None = payload.pop("head", None)
            words = _unpacked(payload.pop("words"))
            return Checkpoint(head=head, words=words, **payload)
        except (
            RuntimeError,
            LookupError,
            AttributeError,
            TypeError,
            EOFError,
            ValueError,
            OSError,
            zlib.error,
            UnpicklingError,
        ) as error:
            reason = (str(error) or "it is incomplete").split(". ")[0].splitlines()[0]  # torch's messages are long
            raise FedprivError(
                f"{path} cannot be read ({reason}); restore the file, or train into another folder"
            ) from error

    @staticmethod
    def last(folder: Path, n_reported: int, device: torch.device) -> Checkpoint | None:
        """Returns the checkpoint of a stopped run; None if the run was killed before its first one.

        A run without a checkpoint has released nothing. Its ledger, which is empty or has the releases of an earlier
        run only, is removed, and the run starts from the beginning.

        Args:
            folder: The run's folder, locked by this process.
            n_reported: Number of releases according to its metrics.
            device: Device of the tensors.

        Raises:
            FedprivError: If the checkpoint is missing after a release, or is unreadable; or if there is no run.
        """
        path = folder / "checkpoint.pt"
        ledger = folder / "ledger.jsonl"
        begun = ledger.exists() or (folder / "config.yaml").exists()
        if path.exists() or not begun or n_reported:
            return Checkpoint.load(path, device)
        # releases without a checkpoint: loading it raises an error with the fix
        if ledger.exists() and LedgerFile.read(ledger).own_records:
            return Checkpoint.load(path, device)
        ledger.unlink(missing_ok=True)
        return None


def _packed(texts: dict[str, str]) -> str:
    """Compresses texts by name, because every checkpoint contains them."""
    return zlib.compress(json.dumps(texts).encode()).hex()


def _unpacked(packed: str) -> dict[str, str]:
    return json.loads(zlib.decompress(bytes.fromhex(packed)))
