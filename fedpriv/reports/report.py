"""What a run's folder says: a picture and a table."""

from __future__ import annotations

import io
import json
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import ConfigError, FedprivError, LedgerError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import Spent
from fedpriv.privacy.ledger_file import LedgerFile, read_ledger
from fedpriv.privacy.record import Record
from fedpriv.runs.results import read_metrics, why_no_more
from fedpriv.storage import strict_json, strict_yaml
from fedpriv.storage.files import read, write_whole
from fedpriv.storage.saved import CONFIG, RESULT, checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RESTORE = "restore it from a copy"
_REMAKE = f"{_RESTORE}, or delete it: fedpriv resume writes it anew"
# Okabe and Ito's blue and vermilion: distinct to colour-blind readers too
_AS_IT_GOES = ("test_accuracy", "test_loss", "consensus_distance", "bytes_sent")
_METRIC, _EPSILON, _GREY = "#0072B2", "#D55E00", "#5F6368"


@dataclass(frozen=True)
class Run:
    """A run's folder, read.

    Args:
        folder: The folder.
        config: `config.yaml`, resolved.
        metrics: One row a round.
        result: `result.json`; None while the run is unfinished.

    Raises:
        FedprivError: it is not the folder of a run.
    """

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None

    @staticmethod
    def read(folder: Path) -> Run:
        """Read a folder, finished or not."""
        found = {name for name in ("ledger.jsonl", "config.yaml", "checkpoint.pt") if (folder / name).exists()}
        if found == {"config.yaml"}:
            raise FedprivError(
                f"{folder} holds a run that was stopped before it began; start it: fedpriv resume {folder}"
            )
        for name in ("ledger.jsonl", "config.yaml"):
            if name not in found:
                raise FedprivError(f"{folder} holds no run (no {name}); name a folder that fedpriv train made")
        config, result = folder / "config.yaml", folder / "result.json"
        return Run(
            folder,
            checked(CONFIG, _parsed(config, lambda text: strict_yaml.read(text, str(config))), config, _RESTORE),
            read_metrics(folder / "metrics.jsonl"),
            checked(RESULT, _parsed(result, json.loads), result, _REMAKE) if result.exists() else None,
        )

    @cached_property
    def spent(self) -> Spent:
        """What was spent: counted again from the ledger, and no less than the run itself has said.

        A run that was ended by its strategy says more than its ledger: it is charged for its whole plan.
        """
        records, said = self._records, self.result  # refuses a damaged header
        header = LedgerFile.read(self.folder / "ledger.jsonl").header
        if header.n_clients is None or header.delta is None:
            raise LedgerError(f"{self.folder}/ledger.jsonl, line 1 has no n_clients or no delta; {_RESTORE}")
        counted = account(records, header.n_clients, header.delta)
        if said is not None:
            counted = replace(counted, not_covered=tuple(said["not_covered"]))
            if float(said["epsilon"]) > counted.epsilon:
                each, accountant = tuple(float(one) for one in said["per_client_epsilon"]), said["accountant"]
                return replace(counted, epsilon=float(said["epsilon"]), per_client=each, accountant=accountant)
        elif self.incomplete and self.metrics:
            return replace(counted, epsilon=max(counted.epsilon, float(self.metrics[-1]["epsilon"])))
        return counted

    @cached_property
    def incomplete(self) -> str | None:
        """What the ledger lacks by the other files' count; None if nothing does.

        Lines that are missing from all of them are not found.
        """
        held, rounds = len(self._records), self.rounds
        counted = max((row.get("releases", 0) for row in self.metrics), default=0)
        if self.result is not None:
            counted = max(counted, self.result["releases"])
        if held < counted:
            lost = f"ledger.jsonl holds {held} of the {counted} releases that were counted by round {rounds}"
            return f"{lost}: what was spent is not known from it; restore it from a copy"
        if self.result is not None and held > self.result["releases"]:
            made = f"ledger.jsonl holds {held} releases and result.json counts {self.result['releases']}"
            return f"{made}: they are not of one run; restore them from a copy"
        return None

    @property
    def privacy(self) -> str:
        """What was spent, in a line; where the ledger is incomplete, that comes first."""
        return f"incomplete ({self.incomplete}). At least {self.spent}" if self.incomplete else str(self.spent)

    @cached_property
    def _records(self) -> list[Record]:
        return read_ledger(self.folder / "ledger.jsonl")

    @property
    def target(self) -> float | None:
        """Epsilon that the run may spend."""
        return self.config["privacy"]["epsilon"]

    @property
    def title(self) -> str:
        """What ran, in a few words."""
        strategy, model, data = (self.config[section]["name"] for section in ("strategy", "model", "data"))
        variant = " as published" if self.config["strategy"]["variant"] == "published" else ""
        return f"{strategy}{variant}: {model} on {data}"

    @property
    def _is_graph(self) -> bool:
        return self.config["network"]["topology"]["name"] != "star"

    @property
    def rounds(self) -> int:
        """Finished rounds, by the result or the metrics, whichever says more."""
        said = 0 if self.result is None else self.result["rounds"]
        return max(said, self.metrics[-1]["round"] if self.metrics else 0)

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric, where it was measured."""
        rows = [row for row in self.metrics if row.get(name) is not None]
        return [row["round"] for row in rows], [float(row[name]) for row in rows]

    def to_json(self) -> dict[str, Any]:
        """What `fedpriv show --json` prints."""
        spent = self.spent
        epsilon = strict_json.epsilon(spent.epsilon)
        if self.result is not None:
            facts = {**self.result, "epsilon": epsilon, "incomplete": self.incomplete}
            return {"folder": str(self.folder), "finished": True, **facts}
        told = [{name: row[name] for name in _AS_IT_GOES if name in row} for row in self.metrics]
        last: dict[str, Any] = {name: value for row in told for name, value in row.items()}
        nodes = {part: self.column(f"node_test_accuracy_{part}")[1] for part in ("min", "mean", "max")}
        if all(nodes.values()):
            last["node_test_accuracy"] = {part: values[-1] for part, values in nodes.items()}
        privacy = {"epsilon": epsilon, "delta": spent.delta, "unit": spent.unit, "relation": spent.relation}
        rest = {"trust": spent.trust, "accountant": spent.accountant, "incomplete": self.incomplete}
        return {"folder": str(self.folder), "finished": False, "rounds": self.rounds, **last, **privacy, **rest}

    def rows(self) -> dict[str, str]:
        """The run at a glance, as names and values."""
        facts = self.to_json()
        rows = {
            "run": self.title,
            "rounds": f"{self.rounds}{self._and_why()}",
            "test accuracy": _shown(facts.get("test_accuracy"), "{:.2%}"),
            "test loss": _shown(facts.get("test_loss"), "{:.4f}"),
            "suboptimality": _shown(facts.get("suboptimality"), "{:.4g} (exact, of the clients' data: not private)"),
            "nodes' test accuracy": _spread(facts.get("node_test_accuracy")),
            "consensus distance": _shown(facts.get("consensus_distance"), "{:.4g}"),
            "spectral gap": _shown(facts.get("spectral_gap") if self._is_graph else None, "{:.4g}"),
            "bytes sent": _shown(facts.get("bytes_sent"), "{:,.0f}"),
            "privacy": self.privacy,
            "if left here": None if self.result else "the whole plan is charged: the stop may depend on what was seen",
            "objective": _shown(facts.get("objective"), "{:.6g}"),
            "largest violation": _shown(facts.get("max_violation"), "{:.2g}"),
            "worst constraint value": _estimated(facts),
            "KKT residuals": ", ".join(
                f"{name} {_shown(value, '{:.2g}')}" for name, value in facts.get("kkt", {}).items()
            ),
            "certificate": facts.get("status"),
            "relative difference": _shown(facts.get("relative_difference"), "{:.2g}") + _unless_converged(facts),
            "noise multiplier": _shown(facts.get("noise_multiplier"), "{:.4g}"),
            "time": _shown(facts.get("seconds"), "{:.1f} s"),
            "folder": str(self.folder),
        }
        return {name: value for name, value in rows.items() if value}

    def _and_why(self) -> str:
        if self.result is None:
            return " so far; the run is not finished"
        said = self.result
        return why_no_more(said["ended"], said["planned_rounds"], self.spent, said.get("status"))


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:  # noqa: ANN401 - JSON and YAML hold anything
    try:
        return parse(read(path).decode())
    except (ValueError, RecursionError) as error:
        reason = f" ({error.fix})" if isinstance(error, ConfigError) else ""
        raise FedprivError(f"{path} is damaged{reason}; {_RESTORE}") from error


def draw(run: Run, path: Path) -> None:
    """Draw the test metric and epsilon against rounds.

    Args:
        run: The run.
        path: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_metric(above, run)
    if run.column("violation")[1]:
        _draw_violation(below, run)
    else:
        _draw_epsilon(below, run)
    below.set_xlabel("round")
    for axes in (above, below):
        _tidy(axes)
    figure.align_ylabels()
    privacy = textwrap.wrap(run.privacy, 112)
    above.set_title(run.title, loc="left", fontsize=13, fontweight="bold", pad=14 + 12 * len(privacy))
    place = {"xycoords": "axes fraction", "textcoords": "offset points"}
    above.annotate("\n".join(privacy), (0, 1), (0, 9), **place, fontsize=8.5, color=_GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())


def _spread(found: dict[str, float | str] | None) -> str:
    if found is None:
        return ""
    low, mean, high = (float(found[part]) for part in ("min", "mean", "max"))
    return f"{low:.2%} to {high:.2%}, mean {mean:.2%}"


def _shown(value: float | str | None, form: str) -> str:
    return "" if value is None else form.format(float(value))


def _estimated(facts: dict[str, Any]) -> str:
    """Of a private run: its noise is a part of what is said."""
    widths = facts.get("constraint_confidence", {}).get("half_width", [])
    rows = zip(facts.get("constraint_estimates", []), widths, strict=False)
    # a client with fewer constraints has zeros in the rest of its row, and no noise there
    found = [pair for values, wide in rows for pair in zip(values, wide, strict=False) if pair[1] > 0]
    if not found:
        return ""
    value, width = max(found)
    of = "the largest" if facts.get("estimates_of_reported_model") else "at a point before the last, the largest"
    besides = "clipped losses and fractions that are not the client's own come on top"
    return f"{value:.3g} ± {width:.2g} (95 %; {of} of {len(found)} noisy ones; it holds where <= 0; {besides})"


def _unless_converged(facts: dict[str, Any]) -> str:
    unsure = not facts.get("centralised", {"converged": True})["converged"]
    return " to a method in one place that has not converged" if unsure else ""


def _draw_metric(axes: Axes, run: Run) -> None:
    name = next(n for n in ("objective", "test_accuracy", "test_loss") if run.column(n)[1] or n == "test_loss")
    rounds, values = run.column(name)
    scale = 100 if name == "test_accuracy" else 1
    unit = " %" if name == "test_accuracy" else ""
    axes.plot(rounds, [scale * value for value in values], color=_METRIC, linewidth=2)
    low, high = (run.column(f"node_{name}_{part}")[1] for part in ("min", "max"))
    if len(low) == len(high) == len(rounds):
        below, above = ([scale * value for value in side] for side in (low, high))
        axes.fill_between(rounds, below, above, color=_METRIC, alpha=0.15, linewidth=0, label="nodes, worst to best")
        corner = "lower right" if name == "test_accuracy" else "upper right"  # where a run that learns is not
        axes.legend(loc=corner, frameon=False, fontsize=9, labelcolor=_GREY)
    if name == "objective" and min(values) > 0:
        axes.set_yscale("log")  # first steps are large, last ones are what is looked for
    axes.set_ylabel(name.replace("_", " ") + (", %" if unit else ""))
    if values:
        _label_end(axes, rounds[-1], scale * values[-1], f"{scale * values[-1]:.{2 if unit else 4}f}{unit}", _METRIC)


def _draw_violation(axes: Axes, run: Run) -> None:
    """Of an exact run with constraints, which has no epsilon to show; a zero has no place on the scale."""
    for name, label, color in (("violation", "largest violation", _EPSILON), ("stationarity", "stationarity", _GREY)):
        rounds, values = run.column(name)
        axes.semilogy(rounds, [value if value > 0 else math.nan for value in values], color=color, label=label)
    axes.set_ylabel("KKT residuals")
    axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=_GREY)


def _draw_epsilon(axes: Axes, run: Run) -> None:
    target = run.target
    rounds, values = [0, *run.column("epsilon")[0]], [0.0, *run.column("epsilon")[1]]
    axes.set_ylabel("epsilon spent")
    if not all(math.isfinite(value) for value in values):
        axes.text(0.5, 0.5, "infinite: not private", transform=axes.transAxes, ha="center", color=_EPSILON)
        axes.set_yticks([])
        return
    axes.plot(rounds, values, color=_EPSILON, linewidth=2)
    axes.fill_between(rounds, values, color=_EPSILON, alpha=0.12, linewidth=0)
    axes.set_ylim(0, 1.15 * max(target or 0.0, *values))
    if target is not None:
        axes.axhline(target, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"target {target:g}",
            (0, target),
            (2, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=9,
            color=_GREY,
        )
    _label_end(axes, rounds[-1], values[-1], f"{values[-1]:.3g}", _EPSILON)


def _label_end(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.plot([x], [y], "o", color=color, markersize=5, clip_on=False)
    axes.annotate(
        text,
        (x, y),
        (7, 0),
        textcoords="offset points",
        color=color,
        fontweight="bold",
        va="center",
        annotation_clip=False,
    )


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#B0B4B8")
    axes.tick_params(colors=_GREY, labelsize=9)
    axes.grid(axis="y", color="#E6E8EB", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.locator_params(axis="x", integer=True)
