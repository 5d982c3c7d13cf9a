"""Save and resume a run. A checkpoint holds private state and the secret seed: keep it as safe as the data.

The seed may be encrypted in it under a key that lies elsewhere (`fedpriv.storage.secret_store`). `fedpriv seal` takes
seed and state away, and leaves what `show`, `account` and `statement` need.
"""

from __future__ import annotations

import io
import json
import zlib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from fedpriv.errors import FedprivError
from fedpriv.network.engines import StateName
from fedpriv.network.rounds import TrainState
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.randomness.streams import Randomness
from fedpriv.storage import files, secret_store


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a stopped run needs to go on.

    Attributes:
        progress: State of strategy and network after a round, as `TrainState.stored` gives it.
        records: Number of ledger records at that time.
        head: The `chain` hash of the last of these; None if the ledger has no chain.
        seconds: Time spent so far.
        settings: Digest of the settings, which must not change between stop and resume.
        seed: The run's public seed.
        secret_seed: The seed of noise and batches, which nobody else may know, as the file holds it: in hexadecimal
            digits, encrypted, or the word that says that it was destroyed; see `fedpriv.storage.secret_store`.
        run: Digest of the settings, from which, with the seed, the noise follows.
        attempt: A label that differs after every resume with fresh noise.
        model: Digest of the model's layers, frozen parameters and buffers.
        first_nonfinite: See `fedpriv.runs.results.Result`.
        stopping: How long the metric of `stop` has not improved; see `fedpriv.evaluation.early_stopping.EarlyStopping`.
        chunk: See `fedpriv.planning.compute.Compute`; None in files of earlier versions.
        state: See `Compute`. On disk, `progress` says which rows of the files beside this one are the clients'.
        processes: Number of processes that the run had.
        words: The settings by name, to say which differ on a resume with others.
        data: Keyed digests of the clients' examples, see `fedpriv.clients.data_fingerprints`.
        rounds: Number of rounds that the run planned; 0 in files of earlier versions.
        fixed_settings: Digest of the settings that a run has in common with one that extends it: all but the number of
            rounds, the target and the noise multiplier.
        streams: Public name of the noise of all attempts, see `Randomness.streams_name`.
        kept: The models of the round that tested best; see `fedpriv.evaluation.best_model.BestModel`.
        code: Digest of the loss, of numbers of layers and of the user's code, see `fedpriv.runs.identity.CodeIdentity`;
            empty in files of earlier versions.
        code_parts: Short digests of its parts by name.
        plan: All planned releases, see `fedpriv.runs.planned_releases`; empty in files of earlier versions.
    """

    progress: dict[str, Any]
    records: int
    head: str | None
    seconds: float
    settings: str
    seed: str
    secret_seed: str
    run: str
    attempt: int
    model: str
    first_nonfinite: dict[str, int]
    stopping: dict[str, float] = field(default_factory=dict[str, float])
    chunk: int | None = None
    state: StateName = "memory"
    processes: int = 1
    words: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    rounds: int = 0
    fixed_settings: str = ""
    streams: str = ""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    code: str = ""
    code_parts: dict[str, str] = field(default_factory=dict[str, str])
    plan: str = ""

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return int(self.progress["round"])

    @property
    def is_sealed(self) -> bool:
        """True if the secret seed was destroyed: the run can neither go on nor repeat its noise."""
        return secret_store.is_destroyed(self.secret_seed)

    def with_secret(self, folder: Path) -> Checkpoint:
        """Returns the same checkpoint with its secret seed decrypted.

        Raises:
            FedprivError: the seed was destroyed, or what decrypts it is missing.
        """
        return replace(self, secret_seed=secret_store.reveal(self.secret_seed, folder))

    def sealed(self) -> Checkpoint:
        """Returns the same checkpoint without its secrets: the seed, private state, and digests of the data."""
        progress: dict[str, Any] = dict.fromkeys(self.progress)
        progress["round"] = self.round
        return replace(self, progress=progress, data={}, stopping={}, secret_seed=secret_store.DESTROYED)

    def randomness(self, folder: Path | str = "this run") -> Randomness:
        """Returns the run's random streams.

        Args:
            folder: The run's folder, for error messages.

        Raises:
            FedprivError: the secret seed was destroyed, or what decrypts it is missing.
        """
        secret_seed = int(secret_store.reveal(self.secret_seed, folder), 16)
        return Randomness(int(self.seed, 16), secret_seed, self.attempt, self.run)

    def save(self, path: Path) -> None:
        """Writes the checkpoint to the physical disk; a crash leaves the old file or the new one.

        Raises:
            FedprivError: the file cannot be written.
        """
        try:
            files.write_whole(path, self.dumps())
        except OSError as error:
            fix = "free some space and resume the run"
            raise FedprivError(f"{path} could not be written ({error.strerror}); {fix}") from error

    def dumps(self) -> bytes:
        """Returns the content of the checkpoint's file."""
        content = io.BytesIO()
        payload = {field.name: getattr(self, field.name) for field in fields(self)}
        packed = {"words": _packed(self.words), "code_parts": _packed(self.code_parts)}
        torch.save({**payload, **packed}, content)
        return content.getvalue()

    @staticmethod
    def load(path: Path, device: torch.device) -> Checkpoint:
        """Reads a checkpoint. On the device `meta` tensors have no values, which is fast.

        Raises:
            FedprivError: the file does not exist, or cannot be read.
        """
        try:
            content = files.opened(path)
        except FileNotFoundError:
            fix = f"restore it, or start another run: fedpriv train {path.with_name('config.yaml')} --out NEW"
            raise FedprivError(f"{path} does not exist; {fix}") from None
        try:
            with content:
                payload: dict[str, Any] = torch.load(content, map_location=device, weights_only=True)
            if "secret_seed" not in payload or "streams" not in payload:
                raise FedprivError(
                    f"{path} was written by an earlier fedpriv, whose noise this one cannot repeat: go on with the "
                    "version that began the run, or start a new run (what this one has spent stays spent)"
                )
            missing = {field.name for field in fields(TrainState)} ^ {*payload["progress"]}
            if missing:
                raise KeyError(", ".join(sorted(missing)))
            head: str | None = payload.pop("head", None)
            words = _unpacked(payload.pop("words"))
            code_parts = dict[str, str]()
            if "code_parts" in payload:  # not in files of earlier versions
                code_parts = _unpacked(payload.pop("code_parts"))
            return Checkpoint(head=head, words=words, code_parts=code_parts, **payload)
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
            reason = (str(error) or "it ends too early").split(". ")[0].splitlines()[0]  # torch's messages are long
            raise FedprivError(f"{path} cannot be read ({reason}); restore it or start the run anew") from error

    @staticmethod
    def last(folder: Path, n_reported: int, device: torch.device) -> Checkpoint | None:
        """Returns the checkpoint of a stopped run; None if the run was killed before its first one.

        Such a run has released nothing: its empty ledger is removed, and it begins again.

        Args:
            folder: The run's folder, locked by this process.
            n_reported: Number of releases according to its metrics.
            device: Where tensors go.

        Raises:
            FedprivError: the checkpoint is missing though something was released, or unreadable; or there is no run.
        """
        path = folder / "checkpoint.pt"
        ledger = folder / "ledger.jsonl"
        begun = ledger.exists() or (folder / "config.yaml").exists()
        if path.exists() or not begun or n_reported:
            return Checkpoint.load(path, device)
        # answers without a checkpoint: loading it raises the error that says what to do
        if ledger.exists() and read_ledger(ledger):
            return Checkpoint.load(path, device)
        ledger.unlink(missing_ok=True)
        return None


def _packed(texts: dict[str, str]) -> str:
    """Returns texts by name in a form that is small, since it is written again and again."""
    return zlib.compress(json.dumps(texts).encode()).hex()


def _unpacked(packed: str) -> dict[str, str]:
    return json.loads(zlib.decompress(bytes.fromhex(packed)))
