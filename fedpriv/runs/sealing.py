"""Takes the secrets out of a run's folder: moves them under another key, or destroys them when the run is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.errors import FedprivError
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.storage import files, secret_store
from fedpriv.storage.folder import RunFolder

_CHECKPOINT, _RESULT, _STATE = "checkpoint.pt", "result.json", "client_state.*"


def secrets_in_words(folder: Path) -> str:
    """Returns where the secret seed of a run is.

    Raises:
        FedprivError: the folder holds no run, or its checkpoint cannot be read.
    """
    return secret_store.where_is(Checkpoint.load(folder / _CHECKPOINT, torch.device("meta")).secret_seed)


def move_secrets(folder: Path, where: str) -> None:
    """Encrypts the secret seed of a run under a new key, or puts it into the folder as it is; deletes the old key.

    Args:
        folder: The run's folder.
        where: See `fedpriv.storage.secret_store`.

    Raises:
        ConfigError: the seed cannot be there.
        FedprivError: another process has the folder, the run is sealed, or what decrypts its seed is missing.
    """
    with RunFolder(folder):
        path = folder / _CHECKPOINT
        checkpoint = Checkpoint.load(path, torch.device("cpu"))
        secret = checkpoint.with_secret(folder).secret_seed
        moved = replace(checkpoint, secret_seed=secret_store.protect(secret, where))
        files.erase(path, moved.dumps())
        secret_store.destroy(checkpoint.secret_seed)


def seal_run(folder: Path, *, unfinished: bool = False) -> str | None:
    """Destroys the secret seed and the private state of a run, so that nobody can compute its noise again.

    What was released, the ledger, its epsilon and statement stay as they are. The run can no longer be resumed or
    extended. A key in the keyring is destroyed first: then copies of the folder are of no use, either. A seed that lay
    in the folder as it is may live on in copies of it, and a run that extends this one has the same seed: seal it, too.

    Args:
        folder: The run's folder.
        unfinished: Also seal a run that has not ended, which then never will.

    Returns:
        The key of the ledger's seals, in hexadecimal digits, which `show --verify` needs and which reveals no noise;
        None if the seed cannot be decrypted.

    Raises:
        FedprivError: another process has the folder, or the run is unfinished or sealed already.
    """
    with RunFolder(folder):
        path = folder / _CHECKPOINT
        checkpoint = Checkpoint.load(path, torch.device("cpu"))
        if not unfinished and not (folder / _RESULT).exists() and checkpoint.round < checkpoint.rounds:
            raise FedprivError(
                f"{folder} has made {checkpoint.round} of {checkpoint.rounds} rounds, and could never go on: finish it "
                f"(fedpriv resume {folder}), or give it up (fedpriv seal {folder} --unfinished)"
            )
        if checkpoint.is_sealed:
            raise FedprivError(f"{folder} is sealed already")
        key = _seal_key(checkpoint, folder)
        secret_store.destroy(checkpoint.secret_seed)
        for state in folder.glob(_STATE):
            files.erase(state)
        files.erase(path, checkpoint.sealed().dumps())
        return key


def _seal_key(checkpoint: Checkpoint, folder: Path) -> str | None:
    """Returns the key of the ledger's seals; None if the secret cannot be decrypted, which must not keep it alive."""
    try:
        return checkpoint.randomness(folder).seal_key().hex()
    except FedprivError:
        return None
