"""A run in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from fedpriv.clients.client import Client
from fedpriv.engines.local import RoundNetwork
from fedpriv.measuring.health import StopOn
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.compute import Compute
from fedpriv.runs.results import Result, Sink
from fedpriv.runs.training import Training
from fedpriv.storage.folder import RunFolder
from fedpriv.strategies.base import Strategy


def train(
    clients: Sequence[Client],
    strategy: Strategy,
    privacy: Privacy,
    *,
    rounds: int,
    seed: int | None = None,
    secret_seed: int | None = None,
    network: RoundNetwork | None = None,
    test: Dataset[Any] | None = None,
    compute: Compute | None = None,
    evaluate_every: int = 1,
    checkpoint_every: int = 10,
    folder: Path | RunFolder | None = None,
    settings: str = "",
    resume: bool = False,
    fresh_noise: bool = False,
    compare: bool = False,
    optimum: float | None = None,
    stop_on: StopOn = "nonfinite",
    sinks: Sequence[Sink] = (),
    progress: bool = False,
) -> Result:
    """Train and return the result.

    Args:
        clients: The data owners (see `make_clients`). All start from the first client's parameters.
        strategy: The algorithm, e.g. `fedpriv.inexact_admm()`.
        privacy: The promise, e.g. `fedpriv.Privacy(epsilon=3, delta=1e-5)`.
        rounds: Number of rounds.
        seed: Public seed of cohorts and links; drawn by default.
        secret_seed: Seed of noise and batches, to repeat a run exactly: whoever knows it can subtract the noise. By
            default 128 bits come from the operating system and are kept in the checkpoint, and nowhere else. Where the
            run makes no promise there is nothing to hide, and it follows from `seed`, if that is given.
        network: Who hears whom; a star of everyone by default.
        test: Public test data for metrics.
        compute: Speed settings.
        evaluate_every: Rounds between evaluations on the test data; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder).
        folder: Keeps ledger and checkpoint, for `resume`; None keeps the run in memory.
        settings: Fingerprint of the configuration, if there is one. With a digest of all other settings it is checked
            on resume and names the run's noise, so that runs of one secret seed share none unless they differ in their
            data alone.
        resume: Go on from the folder's checkpoint, or from the start where the run was killed before its first one.
        fresh_noise: On resume, charge the releases past the checkpoint and draw new noise instead of replaying.
        compare: At the end of an exact run with constraints, solve the problem with all data in one place as well and
            report the relative difference of the objectives.
        optimum: Smallest value of the objective, where it is known. Then the result tells the gap to it, which is
            computed on the training data without noise: for experiments on public data only.
        stop_on: End the run, charged whole, when a released model is not finite (`"nonfinite"`), when its test loss is
            not either (`"nonfinite_loss"`), or never (`"nothing"`). Reports and result tell of it in any case.
        sinks: Take a report every round, e.g. `fedpriv.reports.sinks.TensorBoard(Path("runs/a"))`.
        progress: Show a bar on standard error, where that is a terminal or a notebook.

    Returns:
        The result: its `spent` is an upper bound, its `model` the trained module.

    Guarantee: what a strategy hears of the data is noised and counted first; an answer that would pass the target
    epsilon is not made, and ends the run. What weakens the promise is a Python warning, and so is a model or a test
    loss that is not finite.

    Raises:
        ConfigError: settings that cannot work, before any data is touched; names field, value and fix.
        FedprivError: data, or a folder, that cannot be used.
    """
    training = Training(
        clients,
        strategy,
        privacy,
        rounds=rounds,
        seed=seed,
        secret_seed=secret_seed,
        network=network,
        test=test,
        compute=compute,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        folder=folder,
        settings=settings,
        resume=resume,
        fresh_noise=fresh_noise,
        compare=compare,
        optimum=optimum,
        stop_on=stop_on,
    )
    if progress:
        from fedpriv.runs.live import bar  # rich

        sinks = [*sinks, *bar(rounds, training.progress.round)]
    try:
        for report in training:
            for sink in sinks:
                sink.write(report)
    finally:
        for sink in sinks:
            sink.close()
    return training.result()
