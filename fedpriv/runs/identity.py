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
from fedpriv.storage.code_identity import code_digest, code_in_parts
from fedpriv.storage.identity import digest

_OTHER_VERSION = (
    "was made with other settings, or by another version; resume with its own config.yaml, and the version of fedpriv "
    "that began it"
)


_OTHER_CODE = (
    "was made with another loss or model, or with other code of your own (what differs: {what}): other answers may "
    "not have the same noise. Resume with what it began with; or with fresh noise (--fresh-noise), which charges the "
    "repeated rounds again"
)
_UNKNOWN_PART = "a setting of the loss or of a layer, or the code of a class or function, or what it reads"
_MOST_PARTS = 5  # that an error names


_MAY_CHANGE = ("rounds", "privacy.epsilon", "privacy.noise_multiplier")


def _other_settings(before: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Returns the error for a resume with other settings, with the names of those that differ where they are known."""
    differing = difference({name: text for name, text in before.items() if not name.startswith("config.")}, words)
    if not differing:
        others = "strategy, privacy, rounds, network, sizes, seed and kind of model"
        return f"{_OTHER_VERSION} (what differs is none of {others})"
    return (
        f"was made with other settings ({differing}): resume with those that it began with. More rounds, or another "
        "epsilon, are a run that extends it, in another folder (extend); other data are another run"
    )


@dataclass(frozen=True)
class CodeIdentity:
    """What answers depend on beside settings and data: loss, settings of layers, the user's code.

    Attributes:
        digest: Digest of all.
        parts: Short digests of its parts by name, to say which differ on a resume.
    """

    digest: str = ""
    parts: Mapping[str, str] = field(default_factory=dict[str, str])

    def difference(self, before: Mapping[str, str]) -> str:
        """Returns the names of the parts that differ from those that a run began with; earlier versions kept none."""
        differing = [name for name in {**before, **self.parts} if before.get(name) != self.parts.get(name)]
        if not before or not differing:
            return _UNKNOWN_PART
        more = len(differing) - _MOST_PARTS
        if more > 0:
            differing[_MOST_PARTS:] = [f"{more} more"]
        return "; ".join(differing)


@dataclass(frozen=True)
class RunIdentity:
    """The digests and seeds that a run and its resumption have in common.

    Attributes:
        settings: Digest of everything that must be the same after a resume.
        words: The settings by name.
        randomness: The run's random streams. They depend on `settings` and the initial parameters, so runs with the
            same secret seed share noise only if they differ in nothing but their data.
        model: Digest of the model's layers, frozen parameters and buffers; empty until they are known.
        rounds: Number of rounds that the run plans.
        fixed_settings: See `fedpriv.runs.checkpoint.Checkpoint`.
        code: Of its loss, its model and the user's code; empty where no folder keeps it.
    """

    settings: str
    randomness: Randomness
    model: str = ""
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    rounds: int = 0
    fixed_settings: str = ""
    code: CodeIdentity = CodeIdentity()

    @staticmethod
    def new(
        settings: str,
        clients: Sequence[Client],
        *,
        seed: int | None,
        secret_seed: int | None,
        private: bool,
        words: Mapping[str, str] | None = None,
        code_of: Sequence[object] = (),
    ) -> RunIdentity:
        """Returns the identity of a new run, with fresh seeds where none are given.

        Without privacy, and with a given `seed`, everything follows from the public seed.

        Args:
            settings: Digest of everything that must be the same after a resume.
            clients: The clients, of which the first has the model that all start from.
            seed: The public seed, if it is given.
            secret_seed: The secret seed, if it is given.
            private: Whether the run adds private noise.
            words: The settings by name.
            code_of: Settings that a user may have programmed: with a given secret seed, other code has other noise.
        """
        named: list[object] = [settings, clients[0].model, clients[0].loss]
        if secret_seed is not None:
            # a class that is edited keeps its name, and the difference of two such runs would have no noise
            code = code_digest(*code_of, clients[0].model, clients[0].loss)
            if code:
                named.append(code)
        if secret_seed is None:
            if private or seed is None:
                secret_seed = new_secret()
            else:
                secret_seed = abs(seed)
        # models of one kind may start elsewhere: the first answers of two such runs must not share noise
        run = digest(*named)
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
        code: CodeIdentity = CodeIdentity(),
        fresh_noise: bool = False,
    ) -> RunIdentity:
        """Returns the identity of a run that is resumed.

        Args:
            settings: Digest of its settings.
            saved: Its last checkpoint.
            folder: Its folder, for errors.
            secret_seed: The secret seed, if one is given.
            words: Its settings by name.
            code: Of its loss, its model and the user's code, see `identify_code`.
            fresh_noise: Whether it will draw new noise, so that its code may be another.

        Raises:
            FedprivError: the run began with other settings, other code, or another secret seed.
        """
        if saved.settings != settings:
            raise FedprivError(f"{folder} {_other_settings(saved.words, words or {})}")
        if secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(
                f"{folder} was made with other settings, another secret_seed: leave it out, the folder has its own"
            )
        is_other_code = code.digest and saved.code and code.digest != saved.code
        if is_other_code and not fresh_noise:
            raise FedprivError(f"{folder} {_OTHER_CODE.format(what=code.difference(saved.code_parts))}")
        return RunIdentity(settings, saved.randomness(), words=saved.words)

    @staticmethod
    def extended(
        settings: str,
        saved: Checkpoint,
        folder: Path,
        *,
        fixed_settings: str,
        secret_seed: int | None,
        words: Mapping[str, str],
    ) -> RunIdentity:
        """Returns the identity of a run that extends the one in `folder`, with noise and batches of its own.

        Args:
            settings: Digest of all settings of the new run.
            saved: The last checkpoint of the earlier one.
            folder: The folder of the earlier one.
            fixed_settings: See `fedpriv.runs.checkpoint.Checkpoint`; of the new run.
            secret_seed: The secret seed, if one is given.
            words: The settings of the new run by name.

        Raises:
            FedprivError: other settings differ than a longer run may change, or the secret seed.
        """
        if saved.fixed_settings != fixed_settings:
            named = [name for name in {**saved.words, **words} if name not in _MAY_CHANGE]
            named = [name for name in named if not name.startswith("config.")]
            before = {name: saved.words[name] for name in named if name in saved.words}
            after = {name: words[name] for name in named if name in words}
            differ = difference(before, after) or "values of the model, the loss, the problem or the network"
            raise FedprivError(
                f"{folder} was made with other settings ({differ}): a run that extends it may change the number of "
                "rounds, the target epsilon and the noise multiplier alone"
            )
        if secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(f"{folder} was made with another secret_seed: leave it out, the folder has its own")
        return RunIdentity(settings, saved.randomness(), words=words).with_fresh_noise()

    def with_fresh_noise(self) -> RunIdentity:
        """Returns the same identity with noise that no earlier attempt had."""
        return replace(self, randomness=replace(self.randomness, attempt=secrets.randbits(62)))

    def with_model(self, model: nn.Module, saved: Checkpoint | None, folder: Path | None) -> RunIdentity:
        """Returns the same identity with the digest of its model.

        Raises:
            FedprivError: the run was saved with another model.
        """
        model_digest = fingerprint(model)
        if saved is not None and saved.model != model_digest:
            raise FedprivError(f"{folder} has another model, or other frozen values or buffers; resume with its own")
        return replace(self, model=model_digest)

    def checkpoint(
        self, progress: TrainState, mark: LedgerPosition, seconds: float, first_nonfinite: dict[str, int]
    ) -> Checkpoint:
        """Returns a checkpoint of this run, with the fields that are known here."""
        return Checkpoint(
            progress=progress.stored(),
            records=mark.releases,
            head=mark.head,
            seconds=seconds,
            settings=self.settings,
            seed=f"{self.randomness.seed:x}",
            secret_seed=f"{self.randomness.secret_seed:x}",
            run=self.randomness.run,
            attempt=self.randomness.attempt,
            model=self.model,
            first_nonfinite=first_nonfinite,
            words=dict(self.words),
            rounds=self.rounds,
            fixed_settings=self.fixed_settings,
            streams=self.randomness.streams_name(),
            code=self.code.digest,
            code_parts=dict(self.code.parts),
        )


def restored(saved: Checkpoint, first: TrainState, folder: Path | None) -> TrainState:
    """Returns the state in a checkpoint; `first`, the run's first state, shows which state its strategy keeps.

    Raises:
        FedprivError: the strategy that was saved keeps other state, as another version's may.
    """
    try:
        return first.restored(saved.progress)
    except (KeyError, TypeError, ValueError) as error:
        raise FedprivError(f"{folder} {_OTHER_VERSION}") from error


def check_models(models: Sequence[str]) -> None:
    """Refuses processes whose models differ in layers, frozen parameters or buffers.

    Args:
        models: Each process's digest of its model.

    Raises:
        FedprivError: the digests differ.
    """
    if len({*models}) > 1:
        fix = "make the same in each (torch.manual_seed), or load it from a file"
        raise FedprivError(f"processes of this run have models with other frozen values or buffers: {fix}")


def identify_code(clients: Sequence[Client], code_of: Sequence[object]) -> CodeIdentity:
    """Returns the digests of what answers depend on beside settings and data.

    A copy of a run's folder that went on with another loss or other code would draw the noise that the run itself draws
    for other answers, and their difference would have none.

    Args:
        clients: The clients, of which the first has the loss and the model of all.
        code_of: Settings that a user may have programmed.
    """
    model = clients[0].model
    loss = clients[0].loss
    parts = {"the loss": digest(loss), **code_in_parts(*code_of, model, loss, layers=model)}
    return CodeIdentity(digest(loss, code_digest(*code_of, model, loss, layers=model)), parts)


def digest_settings(clients: Sequence[Client], *settings: Any) -> str:  # noqa: ANN401 - settings of every kind
    """Returns a digest of settings and of the clients' models and problems, in this order, but not of their data."""
    client_set = as_client_set(clients)
    # no augmentation adds nothing to the digest
    if client_set.augmentation == Augmentation():
        views = []
    else:
        views = [client_set.augmentation]
    kinds = [(type(layer), [p.shape for p in layer.parameters(False)]) for layer in clients[0].modules()]
    return digest(*settings, kinds, list(client_set.problems), *views)
