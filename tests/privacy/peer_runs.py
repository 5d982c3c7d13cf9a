"""Runs on a few digits for each of three clients, as those of the simulator in which flaws were found."""

from __future__ import annotations

from privacy_worlds import Data, clients_of, digits_of

import fedpriv as fp

SIZES = (12, 9, 15)


def training_of(privacy: fp.Privacy, rounds: int = 10, data: Data | None = None, **options) -> fp.Training:
    options = {"seed": 0, "secret_seed": 0, **options}
    return fp.Training(clients_of(data or digits_of(SIZES)), fp.inexact_admm(), privacy, rounds=rounds, **options)
