"""Five hospitals with their own data and site folders, and the run of one process with the same absences."""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
import yaml
from signed import Authority

from fedpriv.clients.population import Population
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import load_config, to_yaml
from fedpriv.config.building import divide_examples, load_data, make_population
from fedpriv.config.schema import Config
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.streams import Randomness
from fedpriv.sites import FederationPlan, Site, propose
from fedpriv.sites.federation import RespondingStar
from fedpriv.sites.resolved_plan import ResolvedPlan

CONFIG = Path(__file__).parents[2] / "configs" / "hospitals.yaml"
NAMES = ("north", "east", "south", "west", "centre")
# scikit-learn brings them: for machines without Adult
DIGITS = (
    "data={name: digits, flat: true, partition: {kind: iid, n_clients: 5}}",
    "model=softmax",
    "loss=cross_entropy",
    "strategy={name: fedavg, learning_rate: 2.0}",
    "privacy.epsilon=8",
)


def adult() -> Path | None:
    """Where the files of Adult are, if they are here."""
    folder = Path(os.environ.get("FEDPRIV_DATA", "")) / "adult"
    return folder if "FEDPRIV_DATA" in os.environ and (folder / "adult.data.gz").exists() else None


@dataclass(frozen=True)
class Hospitals:
    """Sites that have accepted a plan, and the server's folder."""

    folder: Path
    config: Config
    plan: FederationPlan

    @property
    def server(self) -> Path:
        return self.folder / "server"


def hospitals(folder: Path, budgets: Mapping[str, float], authority: Authority | None = None) -> Hospitals:
    """Make all of them, with a budget over the plan's epsilon for each, 2 where none is given.

    Args:
        folder: Where all folders are made.
        budgets: By name of the hospital.
        authority: Signs everybody's certificate; None for a plan without certificates.
    """
    source = adult()
    config = load_config(CONFIG, [] if source else DIGITS)
    epsilon = config.privacy.epsilon or 0.0
    split = load_data(config)
    cards = []
    for number, name in enumerate(NAMES):
        limit = {"epsilon": budgets.get(name, 2.0) * epsilon, "delta": config.privacy.delta}
        site_settings = {"name": name, "budget": limit, "data": config.data.model_dump(mode="json"), "client": number}
        if source is not None:
            own = folder / f"{name}-data"
            share = divide_examples(config.data, split)[number].indices
            write_part(source, own, [int(index) for index in share])
            site_settings = {"name": name, "budget": limit, "data": {"name": "adult", "root": str(own)}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(site_settings))
        site = Site.create(folder / name, folder / f"{name}.yaml")
        if authority is not None:
            authority.site(site, folder / name)
        cards.append(site.card)
        site.close()
    coordinator = None if authority is None else authority.server(folder / "keys")
    plan = propose(config, cards, PublicDataInfo.of([split.test], split.n_classes), coordinator)
    for name in NAMES:
        site = Site(folder / name)
        site.join(plan.text, plan.fingerprint)
        site.close()
    found = Hospitals(folder, config, plan)
    found.server.mkdir(mode=0o700)
    (found.server / "config.yaml").write_text(to_yaml(config))
    (found.server / "plan.yaml").write_text(plan.text)
    return found


def write_part(source: Path, own: Path, rows: Sequence[int]) -> None:
    """A hospital's file: its own rows of Adult, of those without missing values, and the public test rows."""
    lines = gzip.decompress((source / "adult.data.gz").read_bytes()).decode().splitlines()
    complete = [line for line in lines if line.strip() and "?" not in line]
    own.mkdir(mode=0o700)
    (own / "adult.data").write_text("\n".join(complete[row] for row in rows) + "\n")
    (own / "adult.test").write_bytes(gzip.decompress((source / "adult.test.gz").read_bytes()))


class Missing(RespondingStar):
    """A star on which given clients are absent from given rounds."""

    absent: Mapping[int, Sequence[int]]

    def participants(self, round_index: int, randomness: Randomness) -> torch.Tensor:
        away = self.absent.get(round_index, ())
        self.restrict_to(
            torch.tensor([one for one in super().participants(round_index, randomness).tolist() if one not in away])
        )
        return self._drawn


def accuracy_in_one_process(found: Hospitals, absent: Mapping[int, Sequence[int]], n_runs: int) -> float:
    """Mean accuracy of runs of the plan in one process with the same absent sites."""
    resolved_plan, split = ResolvedPlan.of(found.plan), load_data(found.config)
    evaluate = Evaluator(resolved_plan.model, resolved_plan.loss, split.test)
    accuracies = []
    for secret in range(n_runs):
        clients = make_population(found.config, split)
        population = Population(clients)
        start = population.reset_models(resolved_plan.start)
        ledger = Ledger(Accountant(len(clients), resolved_plan.plan.privacy.delta))
        sums = ClippedSums(select_backend("auto", population).backend, len(clients), torch.device("cpu"))
        randomness = Randomness(resolved_plan.seed, secret)
        oracle = data_oracle(population, sums, resolved_plan.plan.privacy, ledger, randomness)
        progress = initial_state(resolved_plan.strategy, start.expand(len(clients), -1))
        network = Missing(len(clients))
        network.absent = absent
        for done in run_rounds(
            resolved_plan.strategy, oracle, network, progress, randomness, rounds=resolved_plan.rounds
        ):
            progress = done.progress
        accuracies.append(float(evaluate(progress.models.mean(0))["test_accuracy"]))
    return fmean(accuracies)
