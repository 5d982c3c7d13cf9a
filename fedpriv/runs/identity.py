"""What must not change when a run is resumed: its settings, model and seeds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.layout import fingerprint
from fedpriv.data.augmentation import Augmentation
from fedpriv.errors import FedprivError
from fedpriv.network.rounds import TrainState
from fedpriv.privacy.ledger import LedgerPosition
from fedpriv.randomness.streams import Randomness, new_secret
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.settings_in_words import difference
from fedpriv.storage.identity import digest

_OTHER_VERSION = (
    "was made with other settings, or by another version; resume with its own config.yaml, and the version of fedpriv "
    "that began it"
)


_MAY_CHANGE = ("rounds", "privacy.epsilon", "privacy.noise_multiplier")


def _other_settings(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What a resume with other settings is told: which they are, where that is known."""
    told = difference({name: text for name, text in before.items() if not name.startswith("config.")}, now)
    if not told:
        others = "strategy, privacy, rounds, network, sizes, seed and kind of model"
        return f"{_OTHER_VERSION} (what differs is none of {others})"
    return (
        f"was made with other settings ({told}): resume with those that it began with. More rounds, or another "
        "epsilon, are a run that extends it, in another folder (extend); other data are another run"
    )


@dataclass(frozen=True)
class RunIdentity:
    """What a run and its resumption have in common.

    Attributes:
        settings: Digest of everything that must be the same after a resume.
        words: The settings by name.
        randomness: The run's random streams. They depend on `settings` and the initial parameters, so runs with the
            same secret seed share noise only if they differ in nothing but their data.
        model: Digest of the model's layers, frozen parameters and buffers; empty until they are known.
        rounds: Number of rounds that the run plans.
        kept: See `fedpriv.runs.checkpoint.Checkpoint`.
    """

    settings: str
    randomness: Randomness
    model: str = ""
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    rounds: int = 0
    kept: str = ""

    @staticmethod
    def new(
        settings: str,
        clients: Sequence[Client],
        *,
        seed: int | None,
        secret_seed: int | None,
        private: bool,
        words: Mapping[str, str] | None = None,
    ) -> RunIdentity:
        """For a new run. Without privacy, and with a given `seed`, everything follows from the public seed."""
        if secret_seed is None:
            if private or seed is None:
                secret_seed = new_secret()
            else:
                secret_seed = abs(seed)
        # models of one kind may start elsewhere: the first answers of two such runs must not share noise
        run = digest(settings, clients[0].model, clients[0].loss)
        randomness = Randomness(secrets.randbits(62) if seed is None else seed, secret_seed, run=run)
        return RunIdentity(settings, randomness, words=words or {})

    @staticmethod
    def resumed(
        settings: str,
        saved: Checkpoint,
        folder: Path | None,
        *,
        secret_seed: int | None,
        words: Mapping[str, str] | None = None,
    ) -> RunIdentity:
        """For a run that is resumed; `words` are its settings by name.

        Raises:
            FedprivError: it began with other settings, or with another secret seed.
        """
        if saved.settings != settings:
            raise FedprivError(f"{folder} {_other_settings(saved.words, words or {})}")
        if secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(
                f"{folder} was made with other settings, another secret_seed: leave it out, the folder has its own"
            )
        return RunIdentity(settings, saved.randomness(), words=saved.words)

    @staticmethod
    def extended(
        settings: str, saved: Checkpoint, folder: Path, *, kept: str, secret_seed: int | None, words: Mapping[str, str]
    ) -> RunIdentity:
        """For a run that extends the one in `folder`. Its noise and batches are those of no earlier attempt.

        Args:
            settings: Digest of all settings of the new run.
            saved: The last checkpoint of the earlier one.
            folder: The folder of the earlier one.
            kept: See `fedpriv.runs.checkpoint.Checkpoint`; of the new run.
            secret_seed: The secret seed, if one is given.
            words: The settings of the new run by name.

        Raises:
            FedprivError: other settings differ than a longer run may change, or the secret seed.
        """
        if saved.kept != kept:
            named = [name for name in {**saved.words, **words} if name not in _MAY_CHANGE]
            before, now = (
                {name: which[name] for name in named if name in which and not name.startswith("config.")}
                for which in (saved.words, words)
            )
            differ = difference(before, now) or "values of the model, the loss, the problem or the network"
            raise FedprivError(
                f"{folder} was made with other settings ({differ}): a run that extends it may change the number of "
                "rounds, the target epsilon and the noise multiplier alone"
            )
        if secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(f"{folder} was made with another secret_seed: leave it out, the folder has its own")
        return RunIdentity(settings, saved.randomness(), words=words).with_fresh_noise()

    def with_fresh_noise(self) -> RunIdentity:
        """The same run with noise that no earlier attempt had."""
        return replace(self, randomness=replace(self.randomness, attempt=secrets.randbits(62)))

    def with_model(self, model: nn.Module, saved: Checkpoint | None, folder: Path | None) -> RunIdentity:
        """The same, with the digest of its model.

        Raises:
            FedprivError: the run was saved with another model.
        """
        found = fingerprint(model)
        if saved is not None and saved.model != found:
            raise FedprivError(f"{folder} has another model, or other frozen values or buffers; resume with its own")
        return replace(self, model=found)

    def checkpoint(
        self, progress: TrainState, mark: LedgerPosition, seconds: float, first_nonfinite: dict[str, int]
    ) -> Checkpoint:
        """A checkpoint of this run."""
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
            words=dict(self.words),
            rounds=self.rounds,
            kept=self.kept,
        )


def restored(saved: Checkpoint, first: TrainState, folder: Path | None) -> TrainState:
    """The progress in a checkpoint; `first`, the run's first progress, says which state its strategy keeps.

    Raises:
        FedprivError: the strategy that was saved keeps other state, as another version's may.
    """
    try:
        return first.restored(saved.progress)
    except (KeyError, TypeError, ValueError) as error:
        raise FedprivError(f"{folder} {_OTHER_VERSION}") from error


def check_models(models: Sequence[str]) -> None:
    """Refuse processes whose models differ in layers, frozen parameters or buffers.

    Args:
        models: Each process's digest of its model.

    Raises:
        FedprivError: they do.
    """
    if len({*models}) > 1:
        fix = "make the same in each (torch.manual_seed), or load it from a file"
        raise FedprivError(f"processes of this run have models with other frozen values or buffers: {fix}")


def of_settings(clients: Sequence[Client], *settings: Any) -> str:  # noqa: ANN401 - settings of every kind
    """Digest of these settings and of the clients' models and problems, in this order, but not of their data."""
    roster = as_client_set(clients)
    if roster.augmentation == Augmentation():
        views = []
    else:
        views = [roster.augmentation]
    kinds = [(type(part), [p.shape for p in part.parameters(False)]) for part in clients[0].modules()]
    return digest(*settings, kinds, list(roster.problems), *views)
