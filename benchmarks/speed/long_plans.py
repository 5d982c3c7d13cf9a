"""Time and memory of a plan of very many rounds on a graph, of its privacy filter, and of its milestones.

    python benchmarks/speed/long_plans.py [--rounds 600000] [--nodes 20] [--markdown FILE]

Each line is measured in a fresh process, which first makes a plan of 50 rounds, so that imports are not counted:

* plan: processor seconds of the plan itself, with given noise;
* MB: how much the largest memory of the process grows from the plan of 50 rounds to the end of the line;
* filter: seconds until the first release is admitted;
* limit: the same with the epsilon of half of the rounds for a target, so that the filter searches for the last release;
* milestones: seconds until the bound of the first round is known;
* forecast: seconds of `fedpriv.plan` with a target epsilon: plan, calibration and the facts of the network.

The goals for 600 000 rounds among 20 nodes: plan 7 s, filter and milestones .2 s, 60 MB.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import TypeVar

import networkx as nx
from memory import peak_megabytes
from rows import SMOKE, Effort
from subprocesses import apart

import fedpriv as fp
from fedpriv.planning import Plan, make_plan
from fedpriv.privacy.accounting import Accountant, PlanFilter
from fedpriv.privacy.accounting.milestones import Milestones

T = TypeVar("T")
EXAMPLES, DELTA = 20_000, 1e-5
STRATEGIES: dict[str, Callable[[], fp.Strategy]] = {
    "dual averaging": fp.dual_averaging,
    "gradient tracking": fp.gradient_tracking,
}
ACTIVITIES = {"all nodes": None, "one link": fp.RandomEdges(1), "half of the nodes": fp.RandomNodes(0.5)}
COLUMNS = "plan", "MB", "filter", "limit", "milestones", "forecast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=600_000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="all lines in this process")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    lines = [f"| strategy | active | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 2) + "|"]
    print("\n".join(lines))
    for strategy in STRATEGIES:
        for activity in ACTIVITIES:
            effort = SMOKE if options.smoke else Effort()
            found = apart(measured, strategy, activity, options.rounds, options.nodes, effort=effort)
            lines.append(f"| {strategy} | {activity} | " + " | ".join(f"{found[name]:.3g}" for name in COLUMNS) + " |")
            print(lines[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


def measured(strategy: str, activity: str, rounds: int, nodes: int) -> dict[str, float]:
    """Returns seconds and megabytes of one line, by column."""
    network = fp.Graph(nx.complete_graph(nodes), activity=ACTIVITIES[activity])
    settings = fp.Privacy(noise_multiplier=1.0, delta=DELTA, sampling=fp.Poisson(1 / EXAMPLES))

    def planned(n_rounds: int) -> Plan:
        return make_plan(STRATEGIES[strategy](), settings, [EXAMPLES] * nodes, network, rounds=n_rounds)

    few = planned(50)
    first_answers(few, None)
    Milestones(few.releases.records, nodes, DELTA).epsilon(1)
    before = peak_megabytes()
    plan, seconds = timed(lambda: planned(rounds))
    found = {"plan": seconds}
    _, found["filter"] = timed(lambda: first_answers(plan, None))
    _, found["milestones"] = timed(lambda: Milestones(plan.releases.records, nodes, DELTA).epsilon(1))
    found["MB"] = peak_megabytes() - before
    half = planned(max(1, rounds // 2)).spent().epsilon
    _, found["limit"] = timed(lambda: first_answers(plan, half))
    target = fp.Privacy(epsilon=1.0, delta=DELTA, sampling=fp.Poisson(1 / EXAMPLES))
    _, found["forecast"] = timed(
        lambda: fp.plan([EXAMPLES] * nodes, STRATEGIES[strategy](), target, rounds=rounds, network=network)
    )
    return found


def first_answers(plan: Plan, limit: float | None) -> None:
    """Makes the filter of a plan, and lets it admit the first release."""
    records = plan.releases.records
    PlanFilter(records, Accountant(plan.n_clients, DELTA), limit).admit(records[0])


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Returns what a function returns, and the processor seconds that it took."""
    start = process_time()
    found = work()
    return found, process_time() - start


if __name__ == "__main__":
    main()
