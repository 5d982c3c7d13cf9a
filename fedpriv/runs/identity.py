"""The identity of a run: its settings and model, which must not change when the run is resumed, and its source of
randomness.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.layout import fingerprint
from fedpriv.errors import FedprivError
from fedpriv.network.rounds import TrainState
from fedpriv.privacy.ledger import LedgerPosition
from fedpriv.randomness.streams import Randomness, new_secret
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.settings_text import format_difference
from fedpriv.storage.identity import digest

_OTHER_VERSION = (
    "has other settings, or was written by another version; resume with its own config.yaml, and with the "
    "version of fedpriv that began it"
)

_MAY_CHANGE = ("rounds", "privacy.epsilon", "privacy.noise_multiplier")

KNOWN_NOISE = "the noise itself, to whoever knows the secret_seed of this test run"
"""The facts that a run with a given secret seed reveals in addition to what epsilon covers."""


def _other_settings(before: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Returns the error for a resume with other settings; it names the changed settings if they are known."""
    differing = format_difference(
        {name: text for name, text in before.items() if not name.startswith("config.")}, words
    )
    if not differing:
        others = "strategy, privacy, rounds, network, sizes, seed and kind of model"
        return f"{_OTHER_VERSION} (the difference is not in {others})"
    return (
        f"has other settings ({differing}): resume with the original ones. For more rounds or another epsilon, "
        "extend the run in another folder (extend); for other data, start a new run"
    )


@dataclass(frozen=True)
class Draws:
    """The source of noise and batches of one process.

    Attributes:
        secret_seed: The secret seed of a test, if given.
        private: True if the run adds private noise.
    """

    secret_seed: int | None
    private: bool

    def secret(self, seed: int) -> int:
        """Returns the given secret seed or else a new one; for a run without privacy, the public seed."""
        if self.secret_seed is not None:
            return self.secret_seed
        if self.private:
            return new_secret()
        return abs(seed)


@dataclass(frozen=True)
class RunIdentity:
    """The properties of a run that stay the same after a resume, and the randomness of this process.

    Attributes:
        settings: Digest of everything that must be the same after a resume.
        randomness: The random streams. In a run without privacy, all streams are computed from the public seed. In a
            private run, noise and batches are computed from a secret that each process draws anew at its start and
            never writes.
        name: Random name of the run, by which its ledger and its reservation in a budget are recognised.
        model: Digest of the model's layers, frozen parameters and buffers; empty until they are known.
        words: The settings by name.
        rounds: Number of rounds that the run plans.
        fixed_settings: See `fedpriv.runs.checkpoint.Checkpoint`.
    """

    settings: str
    randomness: Randomness
    name: str
    model: str = ""
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    rounds: int = 0
    fixed_settings: str = ""

    @staticmethod
    def new(settings: str, seed: int | None, draws: Draws, words: Mapping[str, str]) -> RunIdentity:
        """Returns the identity of a new run.

        Args:
            settings: Digest of everything that must be the same after a resume.
            seed: The public seed, if given.
            draws: The source of noise and batches.
            words: The settings by name.
        """
        if seed is None:
            seed = secrets.randbits(62)
        randomness = Randomness(seed, draws.secret(seed), run=settings)
        return RunIdentity(settings, randomness, secrets.token_hex(16), words=words)

    @staticmethod
    def resumed(
        settings: str, saved: Checkpoint, folder: Path | None, draws: Draws, words: Mapping[str, str]
    ) -> RunIdentity:
        """Returns the identity of a run that resumes from a checkpoint: the same public seed, and a new secret.

        Args:
            settings: Digest of everything that must be the same after a resume.
            saved: The checkpoint.
            folder: The run's folder, for error messages.
            draws: The source of noise and batches.
            words: The settings by name.

        Raises:
            FedprivError: If the run was saved with other settings.
        """
        if saved.settings != settings:
            raise FedprivError(f"{folder} {_other_settings(saved.words, words)}")
        seed = int(saved.seed, 16)
        randomness = Randomness(seed, draws.secret(seed), saved.attempt, settings, saved.epoch_keys)
        return RunIdentity(settings, randomness, saved.run, words=saved.words)

    @staticmethod
    def extended(
        settings: str,
        saved: Checkpoint,
        folder: Path | None,
        draws: Draws,
        words: Mapping[str, str],
        fixed_settings: str,
    ) -> RunIdentity:
        """Returns the identity of a run that extends the finished run of a checkpoint.

        Args:
            settings: Digest of the new run's settings.
            saved: The checkpoint.
            folder: The earlier run's folder, for error messages.
            draws: The source of noise and batches.
            words: The new run's settings by name.
            fixed_settings: See `Checkpoint.fixed_settings`.

        Raises:
            FedprivError: If the runs differ in more than rounds, target and noise.
        """
        if saved.fixed_settings != fixed_settings:
            named = [name for name in {**saved.words, **words} if name not in _MAY_CHANGE]
            named = [name for name in named if not name.startswith("config.")]
            before = {name: saved.words[name] for name in named if name in saved.words}
            after = {name: words[name] for name in named if name in words}
            differ = format_difference(before, after) or "values of the model, the loss, the problem or the network"
            raise FedprivError(
                f"{folder} has other settings ({differ}): a run that extends it may change only the number of "
                "rounds, the target epsilon and the noise multiplier"
            )
        seed = int(saved.seed, 16)
        randomness = Randomness(seed, draws.secret(seed), secrets.randbits(62), settings)
        return RunIdentity(settings, randomness, secrets.token_hex(16), words=words)

    def for_ranks(self) -> tuple[object, ...]:
        """Returns the values from which the other processes of this run build the same identity; see `from_main`."""
        return self.settings, self.randomness.seeds(), self.name, self.model, dict(self.words)

    @staticmethod
    def from_main(sent: tuple[Any, ...]) -> RunIdentity:
        """Returns the identity for which the main process sent `for_ranks`."""
        settings, seeds, name, model, words = sent
        return RunIdentity(settings, Randomness(*seeds), name, model, words)

    def with_model(self, model: nn.Module, saved: Checkpoint | None, folder: Path | None) -> RunIdentity:
        """Returns the same identity with the digest of its model.

        Raises:
            FedprivError: If the run was saved with another model.
        """
        model_digest = fingerprint(model)
        if saved is not None and saved.model != model_digest:
            raise FedprivError(
                f"the run in {folder} began with another model, or with other frozen parameters or buffers; resume it "
                "with its own model"
            )
        return replace(self, model=model_digest)

    def checkpoint(
        self,
        progress: TrainState,
        mark: LedgerPosition,
        seconds: float,
        first_nonfinite: dict[str, int],
        epoch_rounds: int | None,
        first_round: int,
    ) -> Checkpoint:
        """Returns a checkpoint of this run, with the fields that are known here.

        Args:
            progress: The state from which the run resumes.
            mark: The present position in the ledger.
            seconds: Time spent so far.
            first_nonfinite: See `fedpriv.runs.results.Result`.
            epoch_rounds: Number of rounds that share one secret draw; None if rounds share none.
            first_round: The first round in which this process releases values.
        """
        epochs = dict[str, str]()
        if epoch_rounds is not None:
            epoch = progress.round // epoch_rounds
            # this process drew the epoch from its first round on, or loaded the draw; otherwise the draw is lost
            if first_round <= epoch * epoch_rounds or epoch in self.randomness.epochs:
                epochs[str(epoch)] = self.randomness.epoch_key(epoch).hex()
        return Checkpoint(
            progress=progress.stored(),
            records=mark.releases,
            head=mark.head,
            seconds=seconds,
            settings=self.settings,
            seed=f"{self.randomness.seed:x}",
            run=self.name,
            attempt=self.randomness.attempt,
            model=self.model,
            first_nonfinite=first_nonfinite,
            words=dict(self.words),
            rounds=self.rounds,
            fixed_settings=self.fixed_settings,
            epochs=epochs,
        )


def restore_state(saved: Checkpoint, first: TrainState, folder: Path | None) -> TrainState:
    """Returns the state in a checkpoint. `first`, the run's first state, defines the structure of the state.

    Raises:
        FedprivError: If the structure of the saved state differs, for example because it was saved by another version.
    """
    try:
        return first.restored(saved.progress)
    except (KeyError, TypeError, ValueError) as error:
        raise FedprivError(f"{folder} {_OTHER_VERSION}") from error


def check_models(models: Sequence[str]) -> None:
    """Raises an error for processes with models that differ in layers, frozen parameters or buffers.

    Args:
        models: Each process's digest of its model.

    Raises:
        FedprivError: If the digests differ.
    """
    if len({*models}) > 1:
        fix = "create the same model in each process (torch.manual_seed), or load it from a file"
        raise FedprivError(f"the processes of this run have models with different frozen parameters or buffers: {fix}")


def digest_settings(clients: Sequence[Client], *settings: Any) -> str:  # noqa: ANN401 - settings of every kind
    """Returns a digest of settings and of the clients' models, losses and problems, without their data or code."""
    client_set = as_client_set(clients)
    # a run without augmentation adds nothing to the digest
    if client_set.augmentation == Augmentation():
        views = []
    else:
        views = [client_set.augmentation]
    kinds = [(type(layer), [p.shape for p in layer.parameters(False)]) for layer in clients[0].modules()]
    return digest(*settings, kinds, list(client_set.problems), *views)
