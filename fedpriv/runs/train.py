"""A run in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from fedpriv.checks import Count, checked
from fedpriv.clients.client import Client
from fedpriv.engines.rounds import RoundNetwork
from fedpriv.measuring.custom_metrics import CustomMetric
from fedpriv.measuring.early_stopping import Stop
from fedpriv.measuring.finite_check import StopOn
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.arguments import check_sinks, explain
from fedpriv.runs.compute import Compute
from fedpriv.runs.results import Result, Sink
from fedpriv.runs.training import Training
from fedpriv.storage.folder import RunFolder
from fedpriv.strategies.base import Strategy


@checked("", explain)
def train(
    clients: Sequence[Client],
    strategy: Strategy,
    privacy: Privacy,
    *,
    rounds: Count,
    seed: int | None = None,
    secret_seed: int | None = None,
    network: RoundNetwork | None = None,
    test: Dataset[Any] | None = None,
    compute: Compute | None = None,
    evaluate_every: Count = 1,
    checkpoint_every: Count = 10,
    folder: str | Path | RunFolder | None = None,
    settings: str = "",
    resume: bool = False,
    fresh_noise: bool = False,
    extend: str | Path | None = None,
    compare: bool = False,
    optimum: float | None = None,
    stop_on: StopOn = "nonfinite",
    stop: Stop | None = None,
    metrics: Mapping[str, CustomMetric] | None = None,
    client_tests: Sequence[Dataset[Any] | None] | None = None,
    client_names: Sequence[str] | None = None,
    sinks: Sequence[Sink] = (),
    progress: bool = False,
) -> Result:
    """Train and return the result.

    Args:
        clients: The data owners (see `make_clients`). All start from the first client's parameters.
        strategy: The algorithm, e.g. `fedpriv.inexact_admm()`.
        privacy: The privacy settings, e.g. `fedpriv.Privacy(epsilon=3, delta=1e-5)`.
        rounds: Number of rounds.
        seed: Public seed of cohorts and links; drawn by default.
        secret_seed: Seed of noise and batches, to repeat a run exactly: who knows it can subtract the noise. By default
            128 bits come from the operating system and are stored in the checkpoint only. In a run without privacy it
            follows from `seed`, if that is given.
        network: Who sends to whom: `Star(n_clients)`, a server and all clients, by default, or a `Graph`.
        test: Public test data for metrics, as (input, target) pairs.
        compute: Settings of speed.
        evaluate_every: Rounds between evaluations on the test data; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder).
        folder: Where ledger and checkpoint are written, for `resume`; None keeps the run in memory.
        settings: Digest of the configuration, if there is one. It is checked on resume, and the noise depends on it
            (and on all other settings), so that other settings never share noise.
        resume: Go on from the folder's checkpoint, or from the start if the run was killed before its first one.
        fresh_noise: On resume, charge the releases past the checkpoint and draw new noise, instead of repeating them.
        extend: Folder of a finished run to go on with: its model and state are taken over, `rounds` counts its rounds
            too, and epsilon is for both parts together. The further rounds have noise of their own, computed from what
            the target leaves. Only `rounds`, the target epsilon and the noise multiplier may differ. `folder`, if
            given, is a new one.
        compare: For runs with constraints and without privacy: also solve the problem with all data in one place, and
            report the relative difference of the objectives.
        optimum: Smallest value of the objective, if known. Then the result has the gap to it, computed on the training
            data without noise: for experiments on public data only.
        stop_on: End the run when a released model is not finite (`"nonfinite"`), also when its test loss is not
            (`"nonfinite_loss"`), or never (`"nothing"`). The whole plan is then charged.
        stop: End the run when a metric on the test data no longer improves, e.g. `Stop("accuracy", patience=5)`. The
            whole plan is then charged, since the stop depends on answers: it saves time, not epsilon.
        metrics: Metrics of your own on the test data, by name: functions of (outputs, targets) of all test examples,
            or objects with `update`, `compute` and `reset`, as torchmetrics' are. They are reported as `test_<name>`.
        client_tests: A public test set of each client, None for a client without one. Reports then have test metrics
            over clients, each client's model on its own set: `client_test_accuracy_min`, `_p10`, `_median`, `_p90`,
            `_max` and `_mean`. Without `test` all sets together are the test data.
        client_names: A name for each client, which is public: results, `fedpriv show` and pictures call clients by it,
            and the result has each one's test metrics under its name.
        sinks: Receive a report every round, e.g. `fedpriv.reports.sinks.TensorBoard(Path("runs/a"))`.
        progress: Show a progress bar on standard error; where that is no terminal and no notebook, about 20 lines.

    Returns:
        The result, with the trained module as `model` and an upper bound on the epsilon as `spent`.

    Guarantee: everything that the strategy learns of the data is noised and counted first. An answer that would pass
    the target epsilon is refused, and ends the run. Python warnings say what weakens privacy, and when a model or a
    test loss is not finite.

    Raises:
        ConfigError: settings cannot work; raised before data are read, with field, value and fix.
        FedprivError: data or a folder cannot be used.
    """
    check_sinks(sinks)
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
        extend=extend,
        compare=compare,
        optimum=optimum,
        stop_on=stop_on,
        stop=stop,
        metrics=metrics,
        client_tests=client_tests,
        client_names=client_names,
    )
    if progress:
        from fedpriv.runs.progress_display import ProgressDisplay  # rich

        sinks = [*sinks, ProgressDisplay(rounds, training.progress.round)]
    try:
        for report in training:
            for sink in sinks:
                sink.write(report)
    finally:
        for sink in sinks:
            sink.close()
    return training.result()
