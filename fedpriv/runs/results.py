"""What a run says: a report for each round, and the result at its end."""

from __future__ import annotations

import copy
import io
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fedpriv.clients.layout import Layout
from fedpriv.errors import FedprivError
from fedpriv.measuring.health import told
from fedpriv.privacy.accounting.spent import Spent
from fedpriv.runs import presenting
from fedpriv.storage import files, strict_json
from fedpriv.storage.saved import ROUND, checked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ended = Literal["rounds", "strategy", "budget", "nonfinite", "left"]
_ENDINGS: dict[Ended, str] = {
    "strategy": "the strategy said that it was done",
    "budget": "the next round would overspend epsilon",
    "nonfinite": "training broke, what was released was not finite",
    "left": "it was left",
}


def why_no_more(ended: Ended, planned: int, spent: Spent, status: str | None = None) -> str:
    """Why a run has fewer rounds than were planned, and what that means for its price; empty if it has all.

    Args:
        ended: What ended it.
        planned: Rounds that were planned.
        spent: What it is charged.
        status: The strategy's own word for it.
    """
    if ended == "rounds":
        return ""
    charged = ended in ("strategy", "nonfinite", "left") and math.isfinite(spent.epsilon)
    whole = "; the whole plan is charged, for the stop may depend on what was seen" if charged else ""
    return f" of {planned}: {status or _ENDINGS[ended]}{whole}"


@dataclass(frozen=True)
class RoundReport:
    """What sinks see of a round. Nothing in it is computed on clients' data un-noised.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of rounds of the whole run.
        metrics: Values on public test data (`test_...`), the bytes sent so far and, where clients' models differ, how
            far they are apart (`consensus_distance`, and `node_test_accuracy_min`, `_mean`, `_max` over nodes); empty
            on rounds without an evaluation.
        epsilon: Upper bound on what the rounds so far have spent (the largest over clients), never above the limit that
            the budget's filter enforces. With sampled or Laplace noise it is the tight bound of this round or one of
            the next, for it is worked out at a dozen rounds of the plan; of a run that has left its plan, the quick
            bound. Of the round in which a strategy stops itself, or a run is stopped, what the run is charged.
        target: The target epsilon, or None.
        releases: Number of records in the ledger, all of them on the disk where the run is kept there.
        checkpoint: Whether a checkpoint follows once this report is taken; what is to be as durable is synced before.
        head: The `chain` of the ledger's last line; None where it has no chain.
        warning: A line where the released model or the test loss is not finite for the first time; else None.
    """

    round: int
    rounds: int
    metrics: dict[str, float]
    epsilon: float
    target: float | None
    releases: int
    checkpoint: bool = False
    head: str | None = None
    warning: str | None = None


@dataclass(frozen=True, repr=False)
class Result:
    """The end of a run; `to_json` is `result.json`. A notebook shows it as a card.

    Attributes:
        strategy: The algorithm's name.
        rounds: Finished rounds.
        planned_rounds: Rounds that were asked for.
        test_accuracy: Of the one model (the mean over nodes), on public test data.
        test_loss: The same.
        ended: Why there were no more rounds: `"rounds"` (all were made), `"strategy"` (it said that it was done),
            `"budget"`, `"nonfinite"` (see `stop_on` of `Training`) or `"left"`.
        spent: Upper bound on what was spent: of a run that its strategy or a broken model ended, or that was left, the
            price of the whole plan, for the stop may depend on what was seen.
        releases: Number of records in the ledger.
        seconds: Time of the run; of a private run with secret batches or cohorts to one digit, for it depends on them.
        params_l2: Norm of `params`.
        noise_multiplier: Noise over sensitivity in a round of share 1.
        measures: What else is known: bytes sent, spectral gap, how far nodes are apart, multipliers.
        gradient_evaluations: Expected number of per-example gradients.
        optimality_gap: F(params) - F*, where F* is known, over all training examples: exact, so NOT private.
            `result.json` has it as `suboptimality` too, and lists both under `not_private`.
        first_nonfinite: For `"model"` and `"test_loss"` the first round, from 1, in which it was NaN or infinite; empty
            if all was finite.
        reports: Of each finished round its number, epsilon, number of releases and, where it was evaluated, metrics, as
            in `metrics.jsonl`; of rounds before a resume only where the folder has that file.
        params: The one model's trainable parameters, `[dim]`.
        node_params: Each node's own, `[n, dim]`; the one model for all where they have none of their own.
        model: The one model as a module, in eval mode: what a layer such as dropout does in training is off.
    """

    strategy: str
    rounds: int
    planned_rounds: int
    test_accuracy: float | None
    test_loss: float | None
    ended: Ended
    spent: Spent
    releases: int
    seconds: float
    params_l2: float
    noise_multiplier: float | None
    measures: dict[str, Any]
    gradient_evaluations: float
    optimality_gap: float | None
    first_nonfinite: dict[str, int]
    reports: tuple[dict[str, Any], ...]
    params: Tensor
    node_params: Tensor
    model: nn.Module

    @property
    def history(self) -> Any:  # noqa: ANN401 - pandas is not a dependency
        """The reports as a pandas data frame, a row for each; as a list of dicts where pandas is not installed."""
        return presenting.table(self.reports)

    def plot(self) -> Figure:
        """Draw the test metric and epsilon against rounds; returns matplotlib's figure."""
        return presenting.curves(self.reports, str(self))

    @property
    def broken(self) -> bool:
        """Whether what was trained is of no use: the last model, or its test loss, is not finite."""
        return not (bool(torch.isfinite(self.params).all()) and math.isfinite(self.test_loss or 0.0))

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where a number is not finite, but an infinite epsilon is the string `"inf"`."""
        spent = asdict(self.spent)
        flat = {
            "strategy": self.strategy,
            "rounds": self.rounds,
            "planned_rounds": self.planned_rounds,
            "ended": self.ended,
            "first_nonfinite": self.first_nonfinite,
            "releases": self.releases,
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            "epsilon": strict_json.epsilon(self.spent.epsilon),
            **{name: spent[name] for name in ("delta", "unit", "relation", "trust", "accountant")},
            "per_client_epsilon": [strict_json.epsilon(one) for one in self.spent.per_client],
            "non_private": list(self.spent.non_private),
            "not_covered": list(self.spent.not_covered),
            "noise_multiplier": self.noise_multiplier,
            "gradient_evaluations": self.gradient_evaluations,
            "optimality_gap": self.optimality_gap,
            "seconds": round(self.seconds, 3),
            "params_l2": self.params_l2,
            **self.measures,
        }
        if self.optimality_gap is not None:
            # one number under the names of both literatures, computed on clients' data without noise
            flat |= {"suboptimality": self.optimality_gap, "not_private": ["optimality_gap", "suboptimality"]}
        return strict_json.plain(flat)

    def save(self, folder: Path, *, nodes: bool = False) -> None:
        """Write `model.pt`, the one model's `state_dict`, and beside it what else is known of the run.

        That is `metrics.jsonl` (the reports) and `result.json`, but not in the folder of a run with its ledger, whose
        own files of these names vouch for the ledger. `node_models.pt` is a list with each node's `state_dict`; load
        one by `model.load_state_dict(torch.load(path)[node])`. All hold functions of releases only, but
        for `optimality_gap`.

        Args:
            folder: Where to; made if it is not there.
            nodes: Write `node_models.pt` too.

        Raises:
            FedprivError: the disk does not take it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        models: dict[str, object] = {"model.pt": self.model.state_dict()}
        if nodes:
            models["node_models.pt"] = [self._state_dict(row) for row in self.node_params]
        contents: dict[str, bytes] = {}
        for name, model in models.items():
            content = io.BytesIO()
            torch.save(model, content)
            contents[name] = content.getvalue()
        if not (folder / "ledger.jsonl").exists():
            lines = [strict_json.dumps({**row, "epsilon": strict_json.epsilon(row["epsilon"])}) for row in self.reports]
            contents["metrics.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
            contents["result.json"] = (strict_json.dumps(self.to_json(), indent=2) + "\n").encode()
        for name, content in contents.items():
            try:
                files.write_whole(folder / name, content)
            except OSError as error:
                fix = "free some space and save it again, or resume the run"
                raise FedprivError(f"{folder / name} could not be written ({error.strerror}); {fix}") from error

    def _state_dict(self, row: Tensor) -> dict[str, Tensor]:
        model = copy.deepcopy(self.model)
        Layout.of(model).write(row, model)
        return model.state_dict()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self}>"

    def _repr_html_(self) -> str:
        rows = {
            "test accuracy": "" if self.test_accuracy is None else f"{self.test_accuracy:.2%}",
            "test loss": "" if self.test_loss is None else f"{self.test_loss:.4g}",
            "rounds": f"{self.rounds}{self._why_fewer()}",
            "privacy": str(self.spent),
            "noise multiplier": "" if self.noise_multiplier is None else f"{self.noise_multiplier:.4g}",
            "releases": str(self.releases),
            "time": f"{self.seconds:.3g} s",
        }
        return presenting.card(self.strategy, {name: value for name, value in rows.items() if value})

    def _why_fewer(self) -> str:
        return why_no_more(self.ended, self.planned_rounds, self.spent, self.measures.get("status"))

    def __str__(self) -> str:
        tested = "" if self.test_loss is None else f"test loss {self.test_loss:.4g}, "
        tested = tested if self.test_accuracy is None else f"test accuracy {self.test_accuracy:.2%}, "
        why = self._why_fewer()
        broken = f", first not finite: {told(self.first_nonfinite)}" if self.first_nonfinite else ""
        rounds = f"{self.rounds} rounds{f' ({why.lstrip()})' if why else ''}"
        return f"{self.strategy}: {tested}{rounds}{broken}, {self.spent}"


class Sink(Protocol):
    """Something that takes reports: a progress line, a file, TensorBoard."""

    def write(self, report: RoundReport) -> None:
        """Take one round."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rounds of a `metrics.jsonl`, in order; none if there is no such file. A torn last line is left out.

    Raises:
        FedprivError: a line in it is damaged.
    """
    try:
        *lines, _ = files.read(path).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    fix = "restore the file from a copy"  # without that line it would have fewer rounds than the ledger
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FedprivError(f"{path}, line {number} is damaged; {fix}") from error
        rows.append(checked(ROUND, row, f"{path}, line {number}", fix))
    return rows


def releases_told(path: Path) -> int:
    """How many releases a `metrics.jsonl` tells of, at least."""
    return max((int(row.get("releases", 0)) for row in read_metrics(path)), default=0)
