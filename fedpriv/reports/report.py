"""A run's folder, as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, repeat
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, counted, cut
from fedpriv.evaluation import metrics
from fedpriv.evaluation.finite_check import first_rounds_in_words
from fedpriv.evaluation.verdict import constraint_verdict
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.runs.curves import column_of
from fedpriv.runs.integrity import IntegrityProblem, findings, unsealed
from fedpriv.runs.results import why_no_more
from fedpriv.runs.run_files import RESTORE, RunFiles
from fedpriv.storage import strict_json
from fedpriv.storage.saved import CONFIG, checked

_OF_A_RUN = ("config.yaml", "ledger.jsonl", "checkpoint.pt", "metrics.jsonl", "result.json")


@dataclass(frozen=True)
class Run:
    """A run's folder, read and checked.

    Args:
        files: Its files, read.
        config: `config.yaml`, with all defaults filled in.
        key: Secret key of the ledger's seals; None does not check them.
    """

    files: RunFiles
    config: dict[str, Any]
    key: bytes | None = None

    @staticmethod
    def read(folder: Path, key: bytes | None = None) -> Run:
        """Read a folder, finished or not.

        Raises:
            FedprivError: it is not the folder of a run, or a file in it is damaged.
        """
        found = {path.name for path in folder.glob("*") if path.name in _OF_A_RUN}
        if found == {"config.yaml"}:
            raise FedprivError(
                f"{folder} holds a run that was stopped before it began; start it: fedpriv resume {folder}"
            )
        if "config.yaml" not in found or found == {"config.yaml", "metrics.jsonl"}:
            if "ledger.jsonl" in found:
                missing = "config.yaml"
            else:
                missing = "ledger.jsonl"
            raise FedprivError(f"{folder} holds no run (no {missing}); name a folder that fedpriv train made")
        files = RunFiles.read(folder)
        return Run(files, checked(CONFIG, files.config, folder / "config.yaml", RESTORE), key)

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return self.files.folder

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row for each round."""
        return self.files.metrics

    @property
    def result(self) -> dict[str, Any] | None:
        """`result.json`; None while the run is unfinished."""
        return self.files.result

    @cached_property
    def findings(self) -> list[IntegrityProblem]:
        """What is wrong with its files; empty if they are as the run left them."""
        found = findings(self.files)
        if found or self.key is None:
            seal = None
        else:
            seal = unsealed(self.files, self.key)
        return [*found, *([] if seal is None else [seal])]

    @property
    def integrity(self) -> str:
        """`"sound"`, `"altered"` or `"incomplete"`."""
        kinds = {finding.kind for finding in self.findings}
        if "altered" in kinds:
            return "altered"
        if kinds:
            return "incomplete"
        return "sound"

    @cached_property
    def spent(self) -> PrivacySpent | None:
        """What was spent, counted again from the ledger; None if files are altered or missing.

        A run that its strategy ended early is charged for its whole plan, which is more than the ledger holds.
        """
        if self.findings:
            return None
        counted, said = self.files.counted, self.result
        if said is None:
            return counted
        counted = replace(counted, not_covered=tuple(said["not_covered"]))
        if float(said["epsilon"]) <= counted.epsilon:
            return counted
        each, accountant = tuple(float(one) for one in said["per_client_epsilon"]), said["accountant"]
        return replace(counted, epsilon=float(said["epsilon"]), per_client=each, accountant=accountant)

    @property
    def privacy(self) -> str:
        """What was spent, in one line, or why it is unknown."""
        if self.spent is not None:
            return str(self.spent)
        return f"unknown: the run is {self.integrity} ({'; '.join(finding.text for finding in self.findings)})"

    @property
    def evidence(self) -> str:
        """How many ledger records epsilon was counted from, and how they were checked."""
        ledger = self.files.ledger
        records = counted(len(ledger.texts), "record")
        if ledger.altered:
            return f"{records}, the chain of which is broken"
        if self.key is not None and not self.findings:
            sealed = "; every line sealed with the key"
        else:
            sealed = ""
        return f"{records} in a chain, head {ledger.links[-1].chain}{sealed}"

    @property
    def target(self) -> float | None:
        """Epsilon that the run may spend; None without a limit."""
        return self.config["privacy"]["epsilon"]

    @property
    def title(self) -> str:
        """Strategy, model and data, in one line."""
        strategy, model, data = (self.config[section]["name"] for section in ("strategy", "model", "data"))
        if self.config["strategy"]["variant"] == "published":
            variant = " as published"
        else:
            variant = ""
        return f"{strategy}{variant}: {model} on {data}"

    @property
    def _is_graph(self) -> bool:
        return self.config["network"]["topology"]["name"] != "star"

    @property
    def rounds(self) -> int:
        """Number of finished rounds, the larger of what `result.json` and the metrics say."""
        if self.result is None:
            said = 0
        else:
            said = self.result["rounds"]
        return max(said, self.metrics[-1]["round"] if self.metrics else 0)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric, where it was measured."""
        return column_of(self.metrics, name)

    def to_json(self) -> dict[str, Any]:
        """What `fedpriv show --json` prints."""
        where = {"folder": str(self.folder), "finished": self.result is not None}
        spent, told = self.spent, [finding.text for finding in self.findings]
        checks = {"integrity": self.integrity, "findings": told, "sealed": None if self.key is None else not told}
        if spent is None:
            epsilon = None
        else:
            epsilon = strict_json.epsilon(spent.epsilon)
        if self.result is not None:
            if spent is not None:
                each = self.result["per_client_epsilon"]
            else:
                each = None
            return {**where, **self.result, "epsilon": epsilon, "per_client_epsilon": each, **checks}
        own = metrics.custom_rows(dict.fromkeys(name for row in self.metrics for name in row))
        every = (*metrics.TESTED, *own, *metrics.OF_NODES, *metrics.OF_RUN)
        last: dict[str, Any] = {m.name: row[m.name] for row in self.metrics for m in every if m.name in row}
        for of, row in product(metrics.SPREADS, metrics.TESTED):
            name, parts = f"{of}_{row.name}", metrics.SPREADS[of]
            found = {part: self.column(f"{name}_{part}")[1] for part in parts}
            if all(found.values()):
                last[name] = {part: values[-1] for part, values in found.items()}
        promise = {name: getattr(spent, name, None) for name in ("delta", "unit", "relation", "trust", "accountant")}
        return {**where, "rounds": self.rounds, **last, "epsilon": epsilon, **promise, **checks}

    def rows(self) -> dict[str, str]:
        """What `fedpriv show` prints, as names and values."""
        facts = self.to_json()
        measured = metrics.texts_of(
            facts if self._is_graph else {**facts, "spectral_gap": None}, [*metrics.rows(), *metrics.custom_rows(facts)]
        )
        if "relative difference" in measured:
            measured["relative difference"] += _unless_converged(facts)
        rows = {
            "run": self.title,
            "rounds": f"{self.rounds}{self._and_why()}",
            "first not finite": first_rounds_in_words(facts.get("first_nonfinite", {})),
            **measured,
            "privacy": self.privacy,
            "ledger": self.evidence,
            "extends": self._earlier(),
            "if left here": None if self.result else "the whole plan is charged, since the stop may depend on the data",
            "constraints": constraint_verdict(facts),
            "worst constraint value": _estimated(facts),
            "KKT residuals": ", ".join(
                f"{name} {_shown(value, '{:.2g}')}" for name, value in facts.get("kkt", {}).items()
            ),
            "certificate": facts.get("status"),
            "clients": _named(facts.get("client_names", [])),
            "parameters": _parts(facts.get("parameters")),
            "noise multiplier": _shown(facts.get("noise_multiplier"), "{:.4g}"),
            "time": _shown(facts.get("seconds"), "{:.1f} s"),
            "folder": str(self.folder),
        }
        return {name: value for name, value in rows.items() if value}

    def _earlier(self) -> str:
        """What of the run an earlier one has made; empty where it extends none."""
        extended = self.files.ledger.header.extended
        if extended is None:
            return ""
        made = f"{counted(extended.rounds, 'round')}, {counted(extended.records, 'record')}"
        return (
            f"an earlier run ({made}), which the epsilon here counts; it holds if the answers of that run did not "
            "decide how many rounds follow, and with how much noise"
        )

    def _and_why(self) -> str:
        if self.result is None:
            return " so far; the run is not finished"
        said, spent = self.result, self.spent
        if spent is None:
            return ""
        return why_no_more(said["ended"], said["planned_rounds"], spent, said.get("status"))


def _shown(value: float | str | None, form: str) -> str:
    if value is None:
        return ""
    return form.format(float(value))


def _named(names: list[str]) -> str:
    if names:
        return f"{len(names)}: {cut(', '.join(names))}"
    return ""


def _parts(parameters: dict[str, int] | None) -> str:
    if parameters is None:
        return ""
    return f"{parameters['trained']:,} trained, {parameters['frozen']:,} frozen"


def _estimated(facts: dict[str, Any]) -> str:
    """Of a private run: its noise is a part of what is said."""
    widths = facts.get("constraint_confidence", {}).get("half_width", [])
    rows = zip(facts.get("constraint_estimates", []), widths, facts.get("client_names") or repeat(""), strict=False)
    # a client with fewer constraints has zeros in the rest of its row, and no noise there
    found = [(*pair, name) for values, wide, name in rows for pair in zip(values, wide, strict=False) if pair[1] > 0]
    if not found:
        return ""
    value, width, name = max(found)
    if facts.get("estimates_of_reported_model"):
        of = "the largest"
    else:
        of = "at a point before the last, the largest"
    whose = f"{len(found)} noisy ones{f', that of {name}' if name else ''}"
    besides = "clipped losses and fractions that are not the client's own come on top"
    return f"{value:.3g} ± {width:.2g} (95 %; {of} of {whose}; it holds where <= 0; {besides})"


def _unless_converged(facts: dict[str, Any]) -> str:
    unsure = not facts.get("centralised", {"converged": True})["converged"]
    if unsure:
        return " to a method in one place that has not converged"
    return ""
