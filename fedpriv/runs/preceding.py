"""Counts the releases of a finished run in a later run on the same examples: statistics first, then training.

The later run has its own model and state. Its ledger begins with the records of the earlier run, so an epsilon computed
from it covers both, and its noise is computed for the rest of its target epsilon. These records have round -1, because
they were made before its first round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.planning.plan import FirstPart, Plan
from fedpriv.privacy.ledger_file import Extended
from fedpriv.runs import integrity
from fedpriv.runs.run_files import RunFiles


@dataclass(frozen=True)
class PrecedingRun:
    """A finished run whose releases a later run counts.

    Attributes:
        folder: Its folder.
        first: Its releases, as releases before the first round.
        budget: The `id` of the lifetime budget that it used; None if it used none.
        float64_noise: Reasons why all its noise was float64 noise, as text.
        not_covered: Facts about the data that it revealed and epsilon does not cover, as text.
        first_run: Random name of the run.
        metrics: Empty, because the rounds of the later run are counted from 0.
    """

    folder: Path
    first: FirstPart
    budget: str | None
    float64_noise: tuple[str, ...]
    not_covered: tuple[str, ...]
    first_run: str | None
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @staticmethod
    def read(folder: str | Path, n_clients: int) -> PrecedingRun:
        """Reads and checks the folder of a finished run.

        Args:
            folder: The folder.
            n_clients: Number of clients of the later run, which must be the same clients.

        Raises:
            ConfigError: If the run has other clients, or releases whose cost depends on their rounds or differs between
                clients.
            FedprivError: If the folder holds no run, the run is unfinished or ended early, or its files were altered.
        """
        path = Path(folder)
        files = RunFiles.read(path)
        integrity.raise_problems(integrity.find_problems(files))
        if files.result is None or files.result["ended"] != "rounds":
            raise FedprivError(
                f"{path} is not finished, or ended early: finish that run first (resume), or leave after out"
            )
        header = files.ledger.header
        if header.n_clients != n_clients:
            fix = f"has {header.n_clients} clients instead of {n_clients}: both runs need the same clients"
            raise ConfigError("after", str(path), fix)
        records = files.ledger.records
        if any(record.batches is not None or record.time is not None for record in records):
            fix = (
                "has noise over time, cyclic batches or random allocation, whose cost depends on the rounds: account "
                "for both runs with a lifetime budget (privacy.budget) instead"
            )
            raise ConfigError("after", str(path), fix)
        if any(record.clients is not None or isinstance(record.noise_multiplier, tuple) for record in records):
            fix = (
                "has releases of some clients, or noise that differs between clients, so its cost would depend on the "
                "order of the clients: account for both runs with a lifetime budget (privacy.budget) instead"
            )
            raise ConfigError("after", str(path), fix)
        return PrecedingRun(
            path,
            FirstPart.counted(records),
            header.budget,
            header.float64_noise,
            files.not_covered,
            files.ledger.first_run,
        )

    @property
    def header(self) -> Extended:
        """The facts about the run that the header of the later run's ledger contains."""
        return Extended(0, len(self.first.records), self.first_run)


def check_preceding(plan: Plan) -> None:
    """Raises an error unless the releases before the first round protect what the plan's releases protect.

    Raises:
        ConfigError: If units, neighbouring relations or trust differ, so that no joint epsilon is known.
    """
    if plan.first is None or plan.first.rounds > 0:
        return
    before, after = (
        {(record.unit, record.relation, record.shared, record.trust, record.non_private) for record in records}
        for records in (plan.first.records, plan.releases.records.kinds)
    )
    if before and after and before != after:
        fix = (
            f"its releases have {_in_words(before)}, but those of this run have {_in_words(after)}: use the same "
            "privacy unit, relation and trust, or account for both runs with fedpriv.total"
        )
        raise ConfigError("after", "(the earlier run)", fix)


def _in_words(kinds: set[tuple[Any, ...]]) -> str:
    return " and ".join(sorted(", ".join(str(fact) for fact in kind if fact) for kind in kinds))
