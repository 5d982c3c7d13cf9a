"""Several runs side by side, whether they can be compared, and the epsilon of all together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.errors import PrivacyError
from fedpriv.evaluation.finite_check import first_rounds_in_words
from fedpriv.evaluation.metrics import headlines
from fedpriv.planning.notebook_display import aligned
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.composition import compose
from fedpriv.reports.report import Run
from fedpriv.reports.spendings import PlannedSpending, spending_of

_PROMISE = ("unit", "relation", "trust", "delta")


def table(runs: Sequence[Run]) -> list[str]:
    """A line of headings and one line for each run; epsilons are counted from the ledgers and rounded up."""
    rows = [_columns(run) for run in runs]
    for metric in headlines():
        if all(row[metric.title] == "-" for row in rows):
            rows = [{name: text for name, text in row.items() if name != metric.title} for row in rows]
    return aligned([list(rows[0]), *(list(row.values()) for row in rows)])


def notes(runs: Sequence[Run], plans: Sequence[PlannedSpending] = ()) -> list[str]:
    """Warnings about the comparison, and the epsilon of all runs together.

    Args:
        runs: The runs.
        plans: What is known of each besides its files; nothing by default.

    Guarantee: the total is an upper bound if the runs read the same clients' data (`composition.compose`). Where
    settings of later runs were chosen by the results of earlier ones the sum holds: epsilons add up, and so do deltas
    (Dwork and Roth, 2014, theorem B.1).
    """
    spent = [run.spent for run in runs if run.spent is not None]
    differing = [name for name in _PROMISE if len({getattr(one, name) for one in spent}) > 1]
    if differing:
        found = [f"these epsilons do not compare: the runs differ in {', '.join(differing)}"]
    else:
        found = []
    if len({_test_data(run) for run in runs}) > 1:
        found.append("these accuracies do not compare: the runs differ in their data or how they are prepared")
    found += [f"{run.folder} is {run.integrity}: {said.text}" for run in runs for said in run.findings]
    broken = [(run.folder, first_rounds_in_words((run.result or {}).get("first_nonfinite", {}))) for run in runs]
    found += [f"training broke in {folder}; first not finite: {what}" for folder, what in broken if what]
    total = math.fsum(one.epsilon for one in spent)
    same = not {"unit", "relation", "trust"} & {*differing} and len({run.config["data"]["name"] for run in runs}) == 1
    if same and math.isfinite(total) and len(spent) == len(runs):
        delta = math.fsum(one.delta for one in spent)
        adaptive = f"epsilon={round_up(total)} at delta={delta:.6g}"
        plans = plans or [PlannedSpending()] * len(runs)
        try:
            spendings = [spending_of(run.files, plan) for run, plan in zip(runs, plans, strict=True)]
            whole = compose(spendings, min(one.delta for one in spent))
        except PrivacyError as error:  # as `fedpriv account` says: where runs share noise no sum holds either
            return [*found, f"these runs do not add up: {error}"]
        together = f"epsilon={round_up(whole.epsilon)} at delta={round_up(whole.delta)}"
        found.append(
            f"if these runs read the same private data, they cost up to {together} together, and so "
            f"does choosing the best of them; {adaptive} if results of earlier ones chose settings of later ones"
        )
    return found


def _columns(run: Run) -> dict[str, str]:
    facts, spent = run.to_json(), run.spent
    return {
        "run": str(run.folder),
        "what": run.title,
        "rounds": f"{run.rounds}{_of(run)}",
        **{m.title: "-" if facts.get(m.name) is None else m.text(float(facts[m.name])) for m in headlines()},
        "epsilon": run.integrity if spent is None else "inf" if math.isinf(spent.epsilon) else round_up(spent.epsilon),
        **{name: str(getattr(spent, name, "-")) for name in _PROMISE},
        "bytes sent": f"{facts.get('bytes_sent') or 0:,.0f}",
    }


def _of(run: Run) -> str:
    if run.result is None:
        return " so far"
    if run.result["ended"] == "rounds":
        return ""
    return f" of {run.result['planned_rounds']}"


def _test_data(run: Run) -> str:
    """The data set and its options; how its train examples are divided does not matter to a test metric."""
    return str(sorted((name, value) for name, value in run.config["data"].items() if name != "partition"))
