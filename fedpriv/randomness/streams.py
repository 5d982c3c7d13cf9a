"""Random streams by name: each (purpose, round, index, client) of a run has a separate stream.

Initial values, cohorts and links are computed from the public seed. Batches, noise and everything else that must stay
secret are computed from a secret that a process draws when it begins to train and never writes, so no file can
reproduce the noise. The one exception is the key of the secret draw of the current epoch (`Randomness.epoch_key`),
which determines no noise.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Literal, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.randomness.keystream import Keystream

PublicPurpose = Literal["init", "cohort", "topology"]
SecretPurpose = Literal[
    "batch", "allocation", "noise", "local", "secret_cohort", "cohort_epoch", "spread", "views", "score"
]
_PUBLIC = ("init", "cohort", "topology")


class PairSecrets(Protocol):
    """A source of the secrets that only the two clients of a pair have."""

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        """Returns 32 bytes, the same for (i, j) and (j, i), and different for every other pair and purpose."""
        ...


_calls = count()
_NOISE: frozenset[str] = frozenset({"noise", "spread"})  # purposes for which two processes may never share a stream
_EPOCHS: frozenset[str] = frozenset({"allocation", "cohort_epoch"})  # purposes with one draw per epoch


def new_secret() -> int:
    """Returns 128 bits of the operating system's cryptographic randomness.

    The bits are hashed together with the machine, the process, the time and a counter. So secrets differ even if the
    operating system's generator repeats itself, as in clones of a virtual machine.

    Raises:
        PrivacyError: If the operating system's generator gives the same bits twice in a row.
    """
    drawn = secrets.token_bytes(32)
    if drawn == secrets.token_bytes(32):
        raise PrivacyError("the operating system's random number generator repeats itself, so no noise would be secret")
    here = f"{uuid.getnode()}/{os.getpid()}/{time.time_ns()}/{time.perf_counter_ns()}/{next(_calls)}".encode()
    return int.from_bytes(hashlib.blake2b(drawn + here, digest_size=16, person=b"fedpriv new seed").digest(), "big")


@dataclass(frozen=True)
class Randomness:
    """The named random streams of one run.

    Args:
        seed: Public seed of initial values, cohorts and links.
        secret_seed: The secret that determines noise and batches; drawn from the operating system by default. Give it
                only in tests, because anyone who has it can subtract the noise.
        attempt: Label of the releases, for runs that share a ledger or a budget, such as the trials of a search.
        run: Digest of the run's settings, so that runs with the same given secret but other settings share no noise.
        epochs: Secret keys of the draws of epochs that an earlier process began, by number.
        process: Number of the process that draws noise. A fork of this process raises an error instead.

    The object can be neither pickled nor copied, because two copies would draw the same noise, and a pickle could be
    written to a file. The processes of one run share its `seeds`.
    """

    seed: int = 0
    secret_seed: int = field(default_factory=new_secret, repr=False)
    attempt: int = 0
    run: str = ""
    epochs: Mapping[int, bytes] = field(default_factory=dict[int, bytes], repr=False)
    process: int = field(default_factory=os.getpid, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.secret_seed < 0:
            raise ConfigError("secret_seed", "(negative)", "must be a whole number of 128 random bits; or leave it out")

    def __reduce__(self) -> NoReturn:
        raise PrivacyError(
            "a run in progress cannot be copied or pickled: both copies would add the same noise, and the "
            "difference of their releases would have none. Begin a second run, or resume this one from its folder"
        )

    def seeds(self) -> tuple[int, int, int, str, Mapping[int, bytes]]:
        """Returns the arguments with which another process of the same run draws the same numbers. Never write them to
        a file.
        """
        return self.seed, self.secret_seed, self.attempt, self.run, self.epochs

    def stream(
        self, purpose: PublicPurpose | SecretPurpose, round_index: int = 0, index: int = 0, client: int = 0
    ) -> Keystream:
        """Returns the stream with this name, from its start. The same name always returns the same numbers."""
        if purpose in _NOISE:
            self._check_process()
        return Keystream(self._key(purpose, round_index, index, client))

    def first_words(
        self, purpose: SecretPurpose, round_index: int, index: int, clients: Sequence[int], sizes: Sequence[int]
    ) -> NDArray[np.int64]:
        """Returns the first `sizes[i]` words of each client's stream, one client after another."""
        words = np.empty(sum(sizes), "<i8")
        start = 0
        for key, size in zip(self._keys(purpose, round_index, index, clients), sizes, strict=True):
            if size:
                Keystream(key).fill(words[start : start + size])
            start += size
        return words

    def keys(self, purpose: SecretPurpose, round_index: int, index: int, clients: Sequence[int]) -> Tensor:
        """Returns the key of each client's stream, as little-endian numbers: `[k, 8]` in int32."""
        joined = bytearray().join(self._keys(purpose, round_index, index, clients))
        return torch.from_numpy(np.frombuffer(joined, "<i4")).view(-1, 8)

    def key_bytes(self, purpose: SecretPurpose, round_index: int, index: int, clients: Sequence[int]) -> list[bytes]:
        """Returns the key of each client's stream, 32 bytes each; see `keys`."""
        return list(self._keys(purpose, round_index, index, clients))

    def key(self, purpose: SecretPurpose, round_index: int, index: int, client: int) -> bytes:
        """Returns the key of one client's stream; see `keys`."""
        return next(self._keys(purpose, round_index, index, [client]))

    def _check_process(self) -> None:
        """Raises an error in a fork of the process that made this object, because both processes would draw the same
        noise.

        Raises:
            PrivacyError: If this is another process.
        """
        if os.getpid() != self.process:
            raise PrivacyError(
                f"this run belongs to process {self.process}, and process {os.getpid()} has a copy of it with "
                "the same noise: the difference of their results would have no noise. Start the run in the "
                "process that trains"
            )

    def _keys(self, purpose: SecretPurpose, round_index: int, index: int, clients: Sequence[int]) -> Iterator[bytes]:
        if purpose in _NOISE:
            self._check_process()
        prefix = self._name(purpose, round_index, index)
        for client in clients:
            hasher = prefix.copy()
            hasher.update(b"%d" % client)
            yield hasher.digest()

    def of_examples(
        self, purpose: SecretPurpose, round_index: int, index: int, examples: Iterable[tuple[int, int]], size: int
    ) -> NDArray[np.float64]:
        """Returns uniform numbers in [0, 1) for examples, each from the example's stream, `[n, size]`.

        Args:
            purpose: The purpose of the numbers.
            round_index: The round.
            index: Number of the query result within the round.
            examples: The client of each example, and its position in that client's data.
            size: Number of draws for each example.
        """
        prefix = self._name(purpose, round_index, index)
        rows = list[NDArray[np.float64]]()
        for client, position in examples:
            hasher = prefix.copy()
            hasher.update(b"%d/%d" % (client, position))
            rows.append(Keystream(hasher.digest()).random(size))
        if rows:
            return np.stack(rows)
        return np.empty((0, size))

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        """See `PairSecrets`. This is a simulation, in which one process derives the secrets of all pairs from the
        secret seed.
        """
        name = f"{self.run}/{purpose}/{min(i, j)}/{max(i, j)}".encode()
        return hashlib.blake2b(name, digest_size=32, key=self._secret, person=b"fedpriv pair").digest()

    def pair_stream(
        self, i: int, j: int, round_index: int, index: int, secrets: PairSecrets | None = None
    ) -> Keystream:
        """Returns the stream that two clients share for one query result of one round; see `pair_key`."""
        return Keystream(self.pair_key(i, j, round_index, index, secrets))

    def pair_key(self, i: int, j: int, round_index: int, index: int, secrets: PairSecrets | None = None) -> bytes:
        """Returns the key of the stream that two clients share for one query result of one round.

        Args:
            i: One client.
            j: The other client.
            round_index: The round.
            index: Number of the query result within the round.
            secrets: Source of their secret; by default simulated from the secret seed.
        """
        self._check_process()
        name = f"{self.run}/{self.attempt}/{round_index}/{index}".encode()
        key = (secrets or self).pair_secret(i, j, "noise")
        return hashlib.blake2b(name, digest_size=32, key=key, person=b"fedpriv pairs").digest()

    def epoch_key(self, epoch: int) -> bytes:
        """Returns the key of the secret draws of one epoch, which reveals no other key and no noise.

        An epoch of random allocation (of examples to batches, or of clients to rounds) has one draw for all its rounds.
        A checkpoint stores the key of the current epoch, so that a resumed run makes the same draw.
        """
        if epoch in self.epochs:
            return self.epochs[epoch]
        name = f"{self.run}/{self.attempt}/{epoch}".encode()
        return hashlib.blake2b(name, digest_size=32, key=self._secret, person=b"fedpriv epoch").digest()

    def torch_seed(self, purpose: PublicPurpose | SecretPurpose, round_index: int = 0, client: int = 0) -> int:
        """Returns a 63-bit seed for torch's generators (initial weights, dropout). Not for noise."""
        return int.from_bytes(self._key(purpose, round_index, 0, client)[:8], "little") >> 1

    def _key(self, purpose: PublicPurpose | SecretPurpose, round_index: int, index: int, client: int) -> bytes:
        name = self._name(purpose, round_index, index)
        name.update(b"%d" % client)
        return name.digest()

    def _name(self, purpose: PublicPurpose | SecretPurpose, round_index: int, index: int) -> hashlib.blake2b:
        """Returns the hash of a stream's name without the client's number."""
        name = f"{purpose}/{round_index}/{index}/"
        if purpose in _PUBLIC:
            return hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=32, person=b"fedpriv public")
        if purpose in _EPOCHS:
            return hashlib.blake2b(
                name.encode(), digest_size=32, key=self.epoch_key(round_index), person=b"fedpriv epoch"
            )
        label = f"{self.run}/{self.attempt}/{name}".encode()
        return hashlib.blake2b(label, digest_size=32, key=self._secret, person=b"fedpriv stream")

    @cached_property
    def _secret(self) -> bytes:
        return hashlib.blake2b(str(self.secret_seed).encode(), digest_size=32, person=b"fedpriv secret").digest()


def normal(stream: Keystream, dim: int) -> Tensor:
    """Returns `dim` standard normal draws in float64."""
    return torch.from_numpy(stream.standard_normal(dim))


def laplace(stream: Keystream, dim: int) -> Tensor:
    """Returns `dim` draws of Laplace(1) in float64: the difference of two exponentials."""
    return torch.from_numpy(stream.standard_exponential(dim) - stream.standard_exponential(dim))


def torch_generators(device: torch.device) -> list[torch.Generator]:
    """Returns torch's global generators, from which a model may draw: the CPU's and the device's."""
    if device.type == "cuda":
        on_device = [torch.cuda.default_generators[device.index or 0]]
    else:
        on_device = []
    return [torch.default_generator, *on_device]
