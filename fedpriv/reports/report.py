"""Reads a run's folder and shows it as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, repeat
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, format_count, truncate
from fedpriv.evaluation import describe_choice, format_constraint_verdict, format_first_rounds, metrics
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.runs import (
    CONFIG_FILE,
    RESTORE,
    SETTINGS_FILE,
    IntegrityProblem,
    RunFiles,
    explain_fewer_rounds,
    find_problems,
    get_column,
    make_missing_run_error,
)
from fedpriv.storage import CONFIG, strict_json, validate_fields

_OF_A_RUN = (CONFIG_FILE, SETTINGS_FILE, "ledger.jsonl", "checkpoint.pt", "metrics.jsonl", "result.json")


@dataclass(frozen=True)
class Run:
    """A run's folder, read and checked.

    Args:
        files: Its files, read.
        config: The settings, with all defaults filled in: `config.yaml` or, of a Python program's run, `settings.json`.
    """

    files: RunFiles
    config: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Run:
        """Reads the folder of a run, finished or not.

        Raises:
            FedprivError: If the folder is not the folder of a run, or a file in it is damaged.
        """
        names = {path.name for path in folder.glob("*") if path.name in _OF_A_RUN}
        if names == {CONFIG_FILE}:
            raise FedprivError(
                f"{folder} contains a run that was stopped before its first round; start it: fedpriv resume {folder}"
            )
        settings = names & {CONFIG_FILE, SETTINGS_FILE}
        if not settings or names <= {*settings, "metrics.jsonl"}:
            missing = "ledger.jsonl"
            if "ledger.jsonl" in names:
                missing = CONFIG_FILE
            raise make_missing_run_error(folder, missing)
        files = RunFiles.read(folder)
        return Run(files, validate_fields(CONFIG, files.settings, files.settings_path, RESTORE))

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
        """Problems with the run's files; empty if they are unchanged since the run."""
        return find_problems(self.files)

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
        """The privacy spent, computed again from the ledger; None if files are altered or missing.

        A run that its strategy ended early is charged for its whole plan, which is more than the ledger contains.
        """
        if self.findings:
            return None
        counted = self.files.counted
        result = self.result
        if result is None:
            return counted
        if float(result["epsilon"]) <= counted.epsilon:
            return counted
        return replace(
            counted,
            epsilon=float(result["epsilon"]),
            per_client=tuple(float(value) for value in result["per_client_epsilon"]),
            accountant=result["accountant"],
        )

    @property
    def privacy(self) -> str:
        """The privacy spent, in one line, or the reason why it is unknown."""
        if self.spent is not None:
            return str(self.spent)
        return f"unknown: the run is {self.integrity} ({'; '.join(finding.text for finding in self.findings)})"

    @property
    def evidence(self) -> str:
        """The number of ledger records from which epsilon was computed, and their checks."""
        ledger = self.files.ledger
        records = format_count(len(ledger.texts), "record")
        if ledger.altered:
            return f"{records}, with a broken chain"
        return f"{records} in a chain, head {ledger.links[-1]}"

    @property
    def target(self) -> float | None:
        """Limit of epsilon for the run; None without a limit."""
        return self.config["privacy"]["epsilon"]

    @property
    def title(self) -> str:
        """Strategy, model and data, in one line."""
        strategy, model, data = (self.config[section]["name"] for section in ("strategy", "model", "data"))
        variant = ""
        if self.config["strategy"]["variant"] == "published":
            variant = " as published"
        return f"{strategy}{variant}: {model} on {data}"

    @property
    def _is_graph(self) -> bool:
        return self.config["network"]["topology"]["name"] != "star"

    @property
    def rounds(self) -> int:
        """Number of finished rounds: the larger of the numbers in `result.json` and in the metrics."""
        rounds = 0
        if self.result is not None:
            rounds = self.result["rounds"]
        if self.metrics:
            rounds = max(rounds, self.metrics[-1]["round"])
        return rounds

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Returns the rounds in which a metric was measured, and its values."""
        return get_column(self.metrics, name)

    def to_json(self) -> dict[str, Any]:
        """Returns the output of `fedpriv show --json`."""
        identity = {"folder": str(self.folder), "finished": self.result is not None}
        spent = self.spent
        texts = [finding.text for finding in self.findings]
        checks = {"integrity": self.integrity, "findings": texts}
        epsilon = None
        if spent is not None:
            epsilon = strict_json.encode_epsilon(spent.epsilon)
        if self.result is not None:
            per_client = None
            if spent is not None:
                per_client = self.result["per_client_epsilon"]
            return {**identity, **self.result, "epsilon": epsilon, "per_client_epsilon": per_client, **checks}

        # for an unfinished run, the last value of each metric
        custom = metrics.make_custom_metrics(dict.fromkeys(name for row in self.metrics for name in row))
        measurable = (*metrics.TESTED, *custom, *metrics.OF_NODES, *metrics.OF_RUN)
        last: dict[str, Any] = {m.name: row[m.name] for row in self.metrics for m in measurable if m.name in row}
        for prefix, row in product(metrics.SPREADS, metrics.TESTED):
            name = f"{prefix}_{row.name}"
            columns = {statistic: self.column(f"{name}_{statistic}")[1] for statistic in metrics.SPREADS[prefix]}
            if all(columns.values()):
                last[name] = {statistic: values[-1] for statistic, values in columns.items()}
        promise = {name: getattr(spent, name, None) for name in ("delta", "unit", "relation", "trust", "accountant")}
        return {**identity, "rounds": self.rounds, **last, "epsilon": epsilon, **promise, **checks}

    def rows(self) -> dict[str, str]:
        """Returns the output of `fedpriv show`, as names and values."""
        facts = self.to_json()
        measurable = facts
        if not self._is_graph:
            measurable = {**facts, "spectral_gap": None}
        measured = metrics.format_metrics(measurable, [*metrics.list_metrics(), *metrics.make_custom_metrics(facts)])
        if "relative difference" in measured:
            measured["relative difference"] += _unless_converged(facts)
        rows = {
            "run": self.title,
            "rounds": f"{self.rounds}{self._why_fewer()}",
            "first not finite": format_first_rounds(facts.get("first_nonfinite", {})),
            **measured,
            "model": describe_choice(facts),
            "privacy": self.privacy,
            "ledger": self.evidence,
            "extends": self._earlier(),
            "if abandoned now": None
            if self.result
            else "the whole plan is charged, since the stop may depend on the data",
            "constraints": format_constraint_verdict(facts),
            "worst constraint value": _worst_estimate(facts),
            "KKT residuals": ", ".join(
                f"{name} {_number(value, '{:.2g}')}" for name, value in facts.get("kkt", {}).items()
            ),
            "certificate": facts.get("status"),
            "clients": _names_in_words(facts.get("client_names", [])),
            "parameters": _parameters_in_words(facts.get("parameters")),
            "noise multiplier": _number(facts.get("noise_multiplier"), "{:.4g}"),
            "time": _number(facts.get("seconds"), "{:.1f} s"),
            "folder": str(self.folder),
        }
        return {name: value for name, value in rows.items() if value}

    def _earlier(self) -> str:
        """Returns the part of the run that an earlier run has made; empty if it extends none."""
        extended = self.files.ledger.header.extended
        if extended is None:
            return ""
        size = format_count(extended.records, "record")
        if extended.rounds:
            size = f"{format_count(extended.rounds, 'round')}, {size}"
        return (
            f"an earlier run ({size}), which this epsilon includes; it holds if the results of that run did not "
            f"decide the number of {'further ' if extended.rounds else ''}rounds and their noise"
        )

    def _why_fewer(self) -> str:
        """Returns why the run has fewer rounds than planned; empty if it has all, or its files are altered."""
        if self.result is None:
            return " so far; the run is not finished"
        result = self.result
        spent = self.spent
        if spent is None:
            return ""
        return explain_fewer_rounds(result["ended"], result["planned_rounds"], spent, result.get("status"))


def _number(value: float | str | None, form: str) -> str:
    if value is None:
        return ""
    return form.format(float(value))


def _names_in_words(names: list[str]) -> str:
    if names:
        return f"{len(names)}: {truncate(', '.join(names))}"
    return ""


def _parameters_in_words(parameters: dict[str, int] | None) -> str:
    if parameters is None:
        return ""
    return f"{parameters['trained']:,} trained, {parameters['frozen']:,} frozen"


def _worst_estimate(facts: dict[str, Any]) -> str:
    """Formats the largest constraint estimate of a private run with its noise; empty without estimates."""
    widths = facts.get("constraint_confidence", {}).get("half_width", [])
    rows = zip(facts.get("constraint_estimates", []), widths, facts.get("client_names") or repeat(""), strict=False)
    # a client with fewer constraints has zeros in the rest of its row, without noise
    noisy = [
        (*value_and_width, name)
        for values, widths_of_client, name in rows
        for value_and_width in zip(values, widths_of_client, strict=False)
        if value_and_width[1] > 0
    ]
    if not noisy:
        return ""
    value, width, name = max(noisy)
    point = "before the last update, the largest"
    if facts.get("estimates_of_reported_model"):
        point = "the largest"
    values = f"{len(noisy)} noisy ones{f', at {name}' if name else ''}"
    besides = "the error from clipped losses and from fractions that are not the client's own is not included"
    return f"{value:.3g} ± {width:.2g} (95 %; {point} of {values}; the constraint holds if <= 0; {besides})"


def _unless_converged(facts: dict[str, Any]) -> str:
    """Returns a remark on a comparison with a centralised method that has not converged; empty if it has."""
    if not facts.get("centralised", {"converged": True})["converged"]:
        return " to a centralized method that has not converged"
    return ""
