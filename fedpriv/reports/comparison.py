"""Compares runs side by side, with warnings if they cannot be compared, and the epsilon of all together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.errors import PrivacyError
from fedpriv.evaluation import format_first_rounds, list_headline_metrics
from fedpriv.planning import align_columns
from fedpriv.privacy import compose
from fedpriv.privacy.accounting import round_up
from fedpriv.reports.accounts import describe_unfinished
from fedpriv.reports.report import Run
from fedpriv.reports.spending import PlannedSpending, compute_run_charge, is_unfinished

_PROMISE = ("unit", "relation", "trust", "delta")


def format_table(runs: Sequence[Run]) -> list[str]:
    """Formats `make_cells` as lines."""
    return align_columns(make_cells(runs))


def make_cells(runs: Sequence[Run]) -> list[list[str]]:
    """Returns headings and one row for each run; epsilons are computed from the ledgers and rounded up."""
    rows = [_columns(run) for run in runs]
    for metric in list_headline_metrics():
        if all(row[metric.title] == "-" for row in rows):
            rows = [{name: text for name, text in row.items() if name != metric.title} for row in rows]
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def collect_notes(runs: Sequence[Run], plans: Sequence[PlannedSpending] = ()) -> list[str]:
    """Returns warnings about the comparison, and the epsilon of all runs together.

    Args:
        runs: The runs.
        plans: The facts known about each run besides its files; none by default.

    Guarantee: the total is an upper bound if the runs read the same clients' data (`composition.compose`). If settings
    of later runs were chosen by the results of earlier ones, the sum holds: epsilons add up, and so do deltas (Dwork
    and Roth, 2014, theorem B.1).
    """
    spent = [run.spent for run in runs if run.spent is not None]
    differing = [name for name in _PROMISE if len({getattr(each, name) for each in spent}) > 1]
    texts = list[str]()
    if differing:
        texts.append(f"these epsilons are not comparable: the runs differ in {', '.join(differing)}")
    if len({_test_data(run) for run in runs}) > 1:
        texts.append("these accuracies are not comparable: the runs differ in their data or in data preparation")
    texts += [f"{run.folder} is {run.integrity}: {finding.text}" for run in runs for finding in run.findings]
    for run in runs:
        rounds_in_words = format_first_rounds((run.result or {}).get("first_nonfinite", {}))
        if rounds_in_words:
            texts.append(f"training failed in {run.folder}; first not finite: {rounds_in_words}")
    same_promise = not {"unit", "relation", "trust"} & {*differing}
    same_data = len({run.config["data"]["name"] for run in runs}) == 1
    is_finite = all(math.isfinite(each.epsilon) for each in spent)
    if same_promise and same_data and is_finite and len(spent) == len(runs):
        delta = math.fsum(each.delta for each in spent)
        plans = plans or [PlannedSpending()] * len(runs)
        try:
            spendings = [compute_run_charge(run.files, plan) for run, plan in zip(runs, plans, strict=True)]
            whole = compose(spendings, min(each.delta for each in spent))
            costs = list(spent)
            counted = list[str]()
            for number, (run, plan) in enumerate(zip(runs, plans, strict=True)):
                if run.result is None:  # the table contains the values of its ledger
                    costs[number] = compose([spendings[number]], spent[number].delta)
                    if is_unfinished(run.files, plan):
                        counted.append(describe_unfinished(run.folder))
            total = math.fsum(each.epsilon for each in costs)
            basic = f"epsilon={round_up(total)} at delta={delta:.6g}"
        except PrivacyError as error:  # as for `fedpriv account`: if runs share noise, the sum does not hold either
            return [*texts, f"these runs have no joint privacy cost: {error}"]
        together = f"epsilon={round_up(whole.epsilon)} at delta={round_up(whole.delta)}"
        texts.append(
            f"if these runs read the same private data, they cost up to {together} together, and so does "
            f"choosing the best of them; {basic} if results of earlier runs chose settings of later ones"
        )
        texts += counted
    return texts


def _columns(run: Run) -> dict[str, str]:
    facts = run.to_json()
    spent = run.spent
    if spent is None:
        epsilon = run.integrity
    elif math.isinf(spent.epsilon):
        epsilon = "inf"
    else:
        epsilon = round_up(spent.epsilon)
    return {
        "run": str(run.folder),
        "what": run.title,
        "rounds": f"{run.rounds}{_planned_in_words(run)}",
        **{
            m.title: "-" if facts.get(m.name) is None else m.text(float(facts[m.name])) for m in list_headline_metrics()
        },
        "epsilon": epsilon,
        **{name: str(getattr(spent, name, "-")) for name in _PROMISE},
        "bytes sent": f"{facts.get('bytes_sent') or 0:,.0f}",
    }


def _planned_in_words(run: Run) -> str:
    if run.result is None:
        return " so far"
    if run.result["ended"] == "rounds":
        return ""
    return f" of {run.result['planned_rounds']}"


def _test_data(run: Run) -> str:
    """Returns the data set and its options, without the division of train examples, which tests do not use."""
    return str(sorted((name, value) for name, value in run.config["data"].items() if name != "partition"))
