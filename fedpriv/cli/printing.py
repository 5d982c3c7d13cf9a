"""What the commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from fedpriv.errors import counted
from fedpriv.storage import strict_json

if TYPE_CHECKING:
    from fedpriv.config import Forecast
    from fedpriv.network.graph import Facts
    from fedpriv.reports.report import Run
    from fedpriv.runs.noises import NoisesForecast
    from fedpriv.runs.pairs import PairsForecast

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def busy(rounds: int) -> Status:
    """A spinner while data are read and rounds are planned; shown on a terminal only."""
    return busy_with(f"reading data, planning {rounds} round{'s' * (rounds > 1)}")


def busy_with(what: str) -> Status:
    """A spinner; shown on a terminal only."""
    return err.status(what)


def print_rows(rows: dict[str, str], indent: int = 0) -> None:
    """Print one line for each row, never wrapped, so that an epsilon and its conditions stay on one line."""
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        out.print(f"{' ' * indent}[bold]{name:<{width}}[/]  {escape(value)}")


def print_tables(tables: dict[str, dict[str, str]]) -> None:
    """Rows under headings."""
    for heading, rows in tables.items():
        out.print(f"[bold]{escape(heading)}[/]")
        print_rows(rows, indent=2)


def print_error(text: str) -> None:
    """Print an error as one line on standard error."""
    err.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}")


def print_warning(text: str) -> None:
    """Print a warning as one line."""
    out.print(f"[bold yellow]warning:[/] {escape(text)}")


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    typer.echo(strict_json.dumps(value, indent=2))


def print_run(found: Run, picture: Path, *, as_json: bool) -> None:
    """Print one run, and draw it to this file."""
    from fedpriv.reports.picture import draw

    drawn = {"picture": str(picture)}
    try:
        draw(found, picture)
    except OSError as error:  # a folder that may be read only
        err.print(f"[yellow]note:[/] no picture: {picture} could not be written ({error.strerror})")
        drawn = dict[str, str]()
    if as_json:
        print_json({**found.to_json(), **drawn})
    else:
        print_rows({**found.rows(), **drawn})


def print_comparison(runs: Sequence[Run], *, as_json: bool) -> None:
    """Print several runs, one line each, with notes on comparing them."""
    from fedpriv.config.of_run import plan_of
    from fedpriv.reports import comparison
    from fedpriv.reports.spendings import Plan, ended_early

    plans = [plan_of(run.files) if ended_early(run.files) else Plan() for run in runs]
    notes = comparison.notes(runs, plans)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs], "notes": notes})
        return
    for line in comparison.table(runs):
        out.print(escape(line))
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def forecast_rows(found: Forecast) -> dict[str, str]:
    """What `fedpriv plan` says, row by row."""
    fewest, most = found.examples
    rows = {
        "strategy": f"{found.strategy}, {counted(found.rounds, 'round')}",
        "clients": f"{found.n_clients}, with {fewest if fewest == most else f'{fewest} to {most}'} examples each",
        "privacy": str(found.spent),
        "one round": str(found.first_round),
        "noise multiplier": "none" if found.noise_multiplier is None else f"{found.noise_multiplier:.4g}",
        "batches": found.batches,
        "releases": str(found.releases),
        "messages": f"{found.parameters:,} numbers each; {found.floats_per_round:,} numbers a round "
        f"({_size(found.bytes_per_round)}), {_size(found.bytes_per_round * found.rounds)} in the whole run",
    }
    if found.frozen:
        rows["parameters"] = f"{found.parameters:,} trained, {found.frozen:,} frozen"
    if found.over_time is not None:
        rows["noise"] = found.over_time
    if found.network is not None:
        rows["graph"] = graph_line(found.network)
    if found.if_activity_hidden is not None:
        rows["whoever sees messages"] = f"epsilon={found.spent.epsilon:.4g}, as they also see which nodes are silent"
        rows["final model only"] = (
            f"epsilon<={found.spent.epsilon:.4g}; amplified by sampling of nodes it would be "
            f"{found.if_activity_hidden:.4g}, which holds only if inactive nodes add noise too (not claimed)"
        )
    if found.formula is not None:
        rows["by the paper's formula"] = (
            f"this noise would be called epsilon={found.formula.stated_epsilon:.4g} ({found.formula.paper}, "
            f"{found.formula.assumes}); its true price is {found.spent.epsilon:.4g}"
        )
    if found.seconds_per_round is not None:
        whole = found.seconds_per_round * found.rounds
        rows["time"] = f"about {found.seconds_per_round:.3g} s a round, {whole:.3g} s in all, without evaluation"
    if found.claim is not None:
        rows["the paper's claim"] = f"{found.claim.stated} ({found.claim.paper})"
        views = "; ".join(f"{view}: {epsilon:.4g}" for view, epsilon in found.claim.views)
        rows |= {"its noise costs": f"epsilon at delta={found.spent.delta:g}, {views}"} if views else {}
    return rows | ({} if found.pairs is None else _if_collude(found.pairs))


def _if_collude(found: PairsForecast) -> dict[str, str]:
    return {
        f"if {one.colluders or 'none'} collude": "no bound is known" if one.spent is None else str(one.spent)
        for one in found.if_others
    }


def print_pairs(found: PairsForecast) -> None:
    """Print what is left of noise that cancels between pairs, a line for each number of colluders and each ratio."""
    from fedpriv.reports.comparison import aligned

    at_nodes = any(line.in_node is not None for line in found.left)
    heads = ["colluders", "ratio", "in the mean", "in a message", *(["in a node's model"] if at_nodes else [])]
    cells = [[*heads, "in the mean if a client drops"]]
    for line in found.left:
        deviations = [line.in_mean, line.in_message, *([line.in_node or 0.0] if at_nodes else []), line.if_one_drops]
        cells.append([str(line.colluders), f"{line.ratio:g}", *(f"{value:.3g}" for value in deviations)])
    over = "standard deviation over that under trust: local at the same epsilon"
    out.print(f"[bold]noise of a round of {found.participants}[/], {over}")
    for text in aligned(cells):
        out.print(f"  {text}")
    if found.left_out:
        *fewer, most = found.left_out
        numbers = " or ".join([*map(str, fewer), counted(most, "colluder")])
        why = "too many sets of them to try here, and secrets too sparse for a bound"
        out.print(f"  not looked at for {numbers}: {why}")
    if found.suggested is not None:
        reasons = {
            True: "with the least noise in a node's own model after a round's mixing",
            False: "the smallest here with a mean at most a twentieth noisier than the best",
        }
        out.print(f"  suggested: ratio {found.suggested:g}, {reasons[at_nodes]}")


def print_noises(found: NoisesForecast) -> None:
    """Print what other noise would leave in the final model, a line for each setting."""
    from fedpriv.reports.comparison import aligned

    out.print("[bold]noise in the final model[/], standard deviation over the planned one at the same epsilon")
    for text in aligned([[f"{one.left:.3g}", one.settings, one.needs or ""] for one in found.choices]):
        out.print(f"  {escape(text)}")
    if found.suggested is not None:
        out.print(f"  suggested: {escape(found.suggested)}")


def graph_line(facts: Facts) -> str:
    """A graph and its mixing matrix in one line."""
    return (
        f"{facts.nodes} nodes, {facts.links} links, {facts.mean_degree:.3g} neighbours on average, diameter "
        f"{facts.diameter}, spectral gap {facts.spectral_gap:.4g}, contraction of a round {facts.contraction:.4g}, "
        f"active {facts.active_fraction:.3g}"
    )


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
