"""What makes a run this run: settings that must not change, and the seeds that all its random numbers follow from."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedpriv.clients.client import Client
from fedpriv.clients.layout import fingerprint
from fedpriv.engines.local import Progress
from fedpriv.errors import FedprivError
from fedpriv.privacy.ledger import Mark
from fedpriv.randomness.streams import Randomness, new_secret
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.storage.identity import digest

_OTHER_VERSION = (
    "was made with other settings, or by another version; resume with its own config.yaml, and the version of fedpriv "
    "that began it"
)


@dataclass(frozen=True)
class Identity:
    """What a run and its resumption have in common.

    Attributes:
        settings: Digest of everything that must be the same after a resume.
        randomness: The run's streams. Their name follows from `settings` and the models' first values, so that runs of
            one secret seed share noise only where they differ in their data alone.
        model: Fingerprint of what the rows of parameters do not hold of the model; empty until that is known.
    """

    settings: str
    randomness: Randomness
    model: str = ""

    @staticmethod
    def new(
        settings: str, clients: Sequence[Client], *, seed: int | None, secret_seed: int | None, private: bool
    ) -> Identity:
        """Of a run that begins; one that makes no promise has nothing to hide, so its public seed repeats it."""
        if secret_seed is None:
            secret_seed = new_secret() if private or seed is None else abs(seed)
        # models of one kind may start elsewhere: the first answers of two such runs must not share noise
        run = digest(settings, clients[0].model, clients[0].loss)
        return Identity(settings, Randomness(secrets.randbits(62) if seed is None else seed, secret_seed, run=run))

    @staticmethod
    def resumed(settings: str, saved: Checkpoint, folder: Path | None, *, secret_seed: int | None) -> Identity:
        """Of a run that goes on.

        Raises:
            FedprivError: it began with other settings, or with another secret seed.
        """
        if saved.settings != settings or secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(f"{folder} {_OTHER_VERSION}")
        return Identity(settings, saved.randomness())

    def with_fresh_noise(self) -> Identity:
        """The same run with noise that no earlier attempt had."""
        return replace(self, randomness=replace(self.randomness, attempt=secrets.randbits(62)))

    def with_model(self, model: nn.Module, saved: Checkpoint | None, folder: Path | None) -> Identity:
        """The same with its model.

        Raises:
            FedprivError: the run was saved with another one.
        """
        found = fingerprint(model)
        if saved is not None and saved.model != found:
            raise FedprivError(f"{folder} has another model, or other frozen values or buffers; resume with its own")
        return replace(self, model=found)

    def checkpoint(self, progress: Progress, mark: Mark, seconds: float, first_nonfinite: dict[str, int]) -> Checkpoint:
        """This run, so far."""
        seed, secret, attempt = self.randomness.seed, self.randomness.secret_seed, self.randomness.attempt
        return Checkpoint(
            progress.stored(),
            mark.releases,
            mark.head,
            seconds,
            self.settings,
            f"{seed:x}",
            f"{secret:x}",
            self.randomness.run,
            attempt,
            self.model,
            first_nonfinite,
        )


def restored(saved: Checkpoint, first: Progress, folder: Path | None) -> Progress:
    """Where a saved run stopped that began as `first`, which need have no more than its kind of state.

    Raises:
        FedprivError: its strategy kept other things, as another version's may.
    """
    try:
        return first.restored(saved.progress)
    except (KeyError, TypeError, ValueError) as error:
        raise FedprivError(f"{folder} {_OTHER_VERSION}") from error


def of_settings(clients: Sequence[Client], *settings: Any) -> str:  # noqa: ANN401 - settings of every kind
    """Digest of these settings and of the clients' kind of model and problems, in this order: never of their data."""
    kinds = [(type(part), [p.shape for p in part.parameters(False)]) for part in clients[0].modules()]
    return digest(*settings, kinds, [client.problem for client in clients])
