"""Runs with a ledger in a folder, whole and stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from privacy_worlds import clients_of, digits_of, record

import fedpriv as fp

SIZES = (20, 15)
PRIVACY = fp.Privacy(noise_multiplier=5.0)
record_of = partial(record, noise_multiplier=5.0)


def training_in(folder: Path, data=None, *, rounds: int = 8, privacy: fp.Privacy = PRIVACY, **options) -> fp.Training:
    folder.mkdir(exist_ok=True)
    return fp.Training(
        clients_of(data or digits_of(SIZES)),
        fp.inexact_admm(),
        privacy,
        rounds=rounds,
        folder=folder,
        checkpoint_every=3,
        compute=fp.Compute(dtype="float64", device="cpu"),
        **{"seed": 0, "secret_seed": 0, **options},
    )


def run_until(training: fp.Training, stop: int) -> None:
    for report in training:
        if report.round == stop:
            break


def stopped(folder: Path, stop: int = 5) -> Path:
    """A run of 8 rounds that was killed after ``stop``; its checkpoint is of round 3."""
    training = training_in(folder)
    for report in training:
        if report.round == stop:
            training._directory.save = lambda *_: None
            break
    return folder / "ledger.jsonl"
