"""Two processes never share a noise stream: forks, copies, and generators of the operating system that repeat."""

from __future__ import annotations

import copy
import os
import pickle
import secrets
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import PrivacyError
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness, new_secret

RECORD = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")


def run_in_fork(work: Callable[[], bytes]) -> bytes:
    """What a forked process answers."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 65536)
    os.close(reader)
    os.waitpid(child, 0)
    return answer


def noise_or_error(randomness: Randomness) -> bytes:
    zeros = torch.zeros(1, 10, dtype=torch.float64)
    try:
        return add_noise(zeros, [1.0], fp.Gaussian(), RECORD, randomness, [0])._value.numpy().tobytes()
    except PrivacyError as error:
        return str(error).encode()


def test_noise_in_fork_after_seeding_raises():
    torch.set_num_threads(1)
    randomness = Randomness(0)
    assert len(noise_or_error(randomness)) == 80
    assert b"has a copy of it with the same noise" in run_in_fork(lambda: noise_or_error(randomness))


def test_forked_run_raises_in_child_only():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    datasets = [
        torch.utils.data.TensorDataset(torch.randn(9, 5, generator=generator), torch.arange(9) % 3) for _ in range(3)
    ]
    clients = fp.make_clients(torch.nn.Linear(5, 3), torch.nn.CrossEntropyLoss(), datasets)
    training = fp.Training(clients, fp.gradient_descent(0.1), fp.Privacy(epsilon=3), rounds=2)
    rounds = iter(training)
    next(rounds)

    def second_round() -> bytes:
        try:
            next(rounds)
        except fp.FedprivError as error:
            return str(error).encode()
        return b"released"

    assert b"with the same noise" in run_in_fork(second_round)
    next(rounds)


@pytest.mark.parametrize(
    "draw",
    [
        lambda randomness: randomness.keys("noise", 0, 0, [0]),
        lambda randomness: randomness.stream("noise"),
        lambda randomness: randomness.stream("spread"),
        lambda randomness: randomness.pair_key(0, 1, 0, 0),
    ],
)
def test_fork_draws_public_streams_only(draw: Callable[[Randomness], object]):
    randomness = Randomness(*Randomness(0).seeds())
    draw(randomness)

    def in_child() -> bytes:
        randomness.stream("cohort")
        try:
            draw(randomness)
        except PrivacyError:
            return b"refused"
        return b"drawn"

    assert run_in_fork(in_child) == b"refused"


def test_processes_with_sent_seeds_share_noise():
    torch.set_num_threads(1)
    randomness = Randomness(0)
    sent = pickle.dumps(randomness.seeds())
    assert Randomness(*pickle.loads(sent)) == randomness
    assert run_in_fork(lambda: noise_or_error(Randomness(*pickle.loads(sent)))) == noise_or_error(randomness)


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copy_of_training_raises(copy_of: Callable[[object], object]):
    """Two copies of a run in memory would add the same noise, and a pickle would hold the secret."""
    data = [TensorDataset(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(2)]
    clients = fp.make_clients(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data)
    training = fp.Training(clients, fp.fedavg(learning_rate=0.1), privacy=fp.Privacy(epsilon=1), rounds=3)
    randomness = training._identity.randomness
    with pytest.raises(PrivacyError, match="cannot be copied or pickled"):
        copy_of(randomness)
    with pytest.raises((PrivacyError, TypeError, AttributeError)):
        copy.deepcopy(training)


def test_randomness_created_in_fork_is_fresh():
    torch.set_num_threads(1)
    answers = {run_in_fork(lambda: noise_or_error(Randomness(0))) for _ in range(3)} | {noise_or_error(Randomness(0))}
    assert {len(answer) for answer in answers} == {80} and len(answers) == 4


def test_cloned_machines_draw_different_secrets(monkeypatch: pytest.MonkeyPatch):
    """As after a snapshot of a virtual machine: each clone reads the same bytes, in the same order."""
    tape = [os.urandom(32) for _ in range(8)]

    def clone() -> bytes:
        bits = iter(tape)
        monkeypatch.setattr(secrets, "token_bytes", lambda size: next(bits))
        return b"".join(new_secret().to_bytes(16, "big") for _ in range(4))

    drawn = [run_in_fork(clone) for _ in range(3)] + [clone()]
    assert {len(secret) for secret in drawn} == {64} and len({*drawn}) == 4


def test_constant_system_generator_raises(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    with pytest.raises(PrivacyError, match="repeats itself"):
        new_secret()


def test_secret_bits_unbiased():
    drawn = [new_secret() for _ in range(2000)]
    ones = sum(secret.bit_count() for secret in drawn)
    assert max(drawn) < 2**128 and abs(ones - 128_000) < 5 * 256**0.5 * 2000**0.5 / 2
