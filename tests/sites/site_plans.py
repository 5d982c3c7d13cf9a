"""A site with a small budget, and plans that it may accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from sites_in_memory import config_of, public_info, sites_of

from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Site, propose
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.plan_filter import single_site_record

DIM = 640
BUDGET = 2.2
NORTH = 0


@dataclass
class Plans:
    """A site with a small budget, and plans of epsilon 2 that it may accept."""

    folder: Path
    site: Site
    plans: Sequence[FederationPlan]
    joined: set[int] = field(default_factory=set)
    next_round: dict[int, int] = field(default_factory=dict)

    def join(self, number: int) -> None:
        plan = self.plans[number]
        self.site.join(plan.text, plan.fingerprint)
        self.joined.add(number)

    def ask(self, number: int) -> str | None:
        """Asks the plan's next round; returns the code of the refusal, None for an answer."""
        at = self.next_round.get(number, 0)
        self.next_round[number] = at + 1
        question = pack(TrainRequest(self.plans[number].hash, at, torch.zeros(DIM)))
        return unpack_response(self.site.answer(question), DIM).code

    def restart(self) -> None:
        self.site.close()
        self.site = Site(self.folder)

    def ledger(self, number: int) -> Path:
        return self.folder / "runs" / self.plans[number].hash / "ledger.jsonl"

    def released(self) -> list[tuple[int, int]]:
        """Plan and round of every line of the site's ledgers."""
        lines = []
        for number in range(len(self.plans)):
            path = self.ledger(number)
            if path.exists():
                lines += [(number, record.round) for record in LedgerFile.read(path).records]
        return lines

    def epsilon(self) -> float:
        """What all ledgers of the site cost together, counted without its accountant."""
        records = []
        for number in range(len(self.plans)):
            path = self.ledger(number)
            if path.exists():
                records += [single_site_record(record, NORTH, 4) for record in LedgerFile.read(path).records]
        return account(records, 1, 1e-5).epsilon if records else 0.0


FEDAVG = ("strategy={name: fedavg, learning_rate: .5}", "privacy.epsilon=2")
# a site with pairs foresees where its budget ends, and signs that it is absent from then on
PAIRS = ("strategy={name: dp_gd}", "privacy.epsilon=2", "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}")


def plans_of(
    folder: Path, count: int, budget: float = BUDGET, rounds: int = 4, overrides: Sequence[str] = FEDAVG
) -> Plans:
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(*overrides, f"rounds={rounds}")
    sites = sites_of(folder, config, (budget, 50.0, 50.0, 50.0))
    cards = [site.card for site in sites.values()]
    proposals = [propose(config, cards, public_info(config)) for _ in range(count)]
    for number, site in sites.items():
        if number != NORTH:
            site.close()
    return Plans(folder / "north", sites[NORTH], proposals)
