"""Measures the cost of crashes: runs of seven strategies, each killed repeatedly with SIGKILL and resumed.

A run is trained in a separate process, which is killed after a random time and restarted with `resume`, until the run
is finished. The table has the number of kills, the rounds lost by each (released before the kill and after the last
checkpoint), the final epsilon over the planned one, and the test accuracy with kills and without.

    python benchmarks/speed/kills.py --kills 15 --markdown kills.md      (five minutes on one core)
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from fedpriv.config import build, load_config, to_yaml
from fedpriv.errors import FedprivError
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.run_files import RunFiles

GRAPH = "network.topology=ring"
STRATEGIES = {
    "iadmm_prox": ["strategy=iadmm_prox"],
    "fedavg": ["strategy={name: fedavg, learning_rate: 0.5, local_steps: 2}"],
    "scaffold": ["strategy={name: scaffold, learning_rate: 0.5, local_steps: 2}"],
    "dp_svrg": ["strategy={name: dp_svrg, epoch_length: 5}"],
    "gradient_tracking": ["strategy=gradient_tracking", GRAPH],
    "dual_averaging": ["strategy=dual_averaging", GRAPH],
    "fedavg, random allocation": [
        "strategy={name: fedavg, learning_rate: 0.5}",
        "privacy={epsilon: 3, sampling: {allocation: {batches: 10}}}",
    ],
}


def config_of(name: str, rounds: int) -> Any:
    root = Path(__file__).parents[2]
    words = ["data.partition.n_clients=10", "strategy={name: fedavg, learning_rate: 0.5}", "privacy={epsilon: 3}"]
    common = [f"rounds={rounds}", "seed=0", "log={tensorboard: false, evaluate_every: 1000}", "compute.threads=1"]
    return load_config(root / "configs" / "digits_iadmm.yaml", [*words, *common, *STRATEGIES[name]])


def train(config: Any, folder: Path, pause: float) -> None:
    """Trains in this process, in the folder, from the last checkpoint if there is one."""
    training = build(config, folder, resume=(folder / "ledger.jsonl").exists())
    for _ in training:
        time.sleep(pause)
    training.result()


def start(config: Any, folder: Path, pause: float) -> int:
    """Starts a process that trains; returns its number."""
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    try:
        train(config, folder, pause)
    except BaseException as error:
        (folder / "error").write_text(repr(error))
        os._exit(1)
    os._exit(0)


def lost(folder: Path) -> int:
    """Returns the number of rounds that were released but are not in the checkpoint."""
    try:
        files = RunFiles.read(folder)
        checkpoint = Checkpoint.load(folder / "checkpoint.pt", torch.device("meta"))
    except FedprivError:
        return 0
    released = max((record.round for record in files.ledger.records), default=-1) + 1
    return max(released - checkpoint.round, 0)


def killed_until_done(config: Any, folder: Path, kills: int, pause: float, seed: int) -> list[int]:
    """Trains to the end in spite of `kills` kills; returns the number of rounds lost by each."""
    draws = random.Random(seed)
    losses: list[int] = []
    average = config.rounds * pause / (kills + 1)
    while True:
        child = start(config, folder, pause)
        patience = None
        if len(losses) < kills:
            patience = time.monotonic() + 0.5 + draws.expovariate(1 / average)
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, (folder / "error").read_text()
                return losses
            if patience is not None and time.monotonic() > patience:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                losses.append(lost(folder))
                break
            time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=15, help="for each strategy")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a round takes beside its arithmetic")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = [
        "| strategy | kills | rounds lost in each: mean, most | epsilon over plan | accuracy without, with kills |"
    ]
    lines.append("|---|---|---|---|---|")
    for number, name in enumerate(options.strategies):
        config = config_of(name, options.rounds)
        with tempfile.TemporaryDirectory() as place:
            whole, folder = Path(place) / "whole", Path(place) / "run"
            for made in (whole, folder):
                made.mkdir(0o700)
                (made / "config.yaml").write_text(to_yaml(config))
            train(config, whole, 0.0)
            losses = killed_until_done(config, folder, options.kills, options.pause, number)
            results = [RunFiles.read(made).result for made in (whole, folder)]
            assert results[0] is not None and results[1] is not None
            ratio = results[1]["epsilon"] / results[0]["epsilon"]
            accuracies = ", ".join(f"{100 * result['test_accuracy']:.1f}" for result in results)
            mean = sum(losses) / max(len(losses), 1)
            most = max(losses, default=0)
            lines.append(f"| {name} | {len(losses)} | {mean:.2f}, {most} | {ratio:.3f} | {accuracies} |")
            print(lines[-1], flush=True)
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
