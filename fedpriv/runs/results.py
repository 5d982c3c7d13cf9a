"""The report of each round, and the result at the end of a run."""

from __future__ import annotations

import io
import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fedpriv import __version__, runs
from fedpriv.clients.layout import Layout
from fedpriv.errors import FedprivError, format_count
from fedpriv.evaluation import metrics
from fedpriv.evaluation.best_model import describe_choice
from fedpriv.evaluation.finite_check import format_first_rounds
from fedpriv.evaluation.verdict import format_constraint_verdict
from fedpriv.models.copies import copy_module
from fedpriv.planning import notebook_display
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.record import Record
from fedpriv.runs.history import History
from fedpriv.settings import checks
from fedpriv.settings.translations import format_attribute_error
from fedpriv.storage import files, strict_json
from fedpriv.storage.file_schemas import ROUND, validate_fields

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ended = Literal["rounds", "strategy", "budget", "nonfinite", "metric", "left", "state"]
_ENDINGS: dict[Ended, str] = {
    "strategy": "the strategy ended the run",
    "budget": "the next round would exceed epsilon",
    "nonfinite": "training failed: a released model or loss was not finite",
    "metric": "the test metric stopped improving",
    "left": "it was abandoned",
    "state": "its code kept state of earlier examples, so no bound on epsilon holds",
}


def get_software_versions() -> str:
    """Returns the versions of fedpriv, PyTorch and Python in this process."""
    return f"fedpriv {__version__}, PyTorch {torch.__version__}, Python {platform.python_version()}"


def explain_fewer_rounds(ended: Ended, planned: int, spent: PrivacySpent, status: str | None = None) -> str:
    """Returns the reason for fewer rounds than planned, in words; empty if all rounds were made.

    Args:
        ended: The reason in one word.
        planned: Number of rounds that were planned.
        spent: The privacy cost of the run.
        status: Status of the strategy, e.g. that it converged.
    """
    if ended == "rounds":
        return ""
    if ended == "state":
        return f" of {planned}: {_ENDINGS[ended]}"
    charged = ended in ("strategy", "nonfinite", "metric", "left") and math.isfinite(spent.epsilon)
    if charged:
        whole = "; the whole plan is charged, since the stop may depend on the data"
    else:
        whole = ""
    return f" of {planned}: {status or _ENDINGS[ended]}{whole}"


@checks.validate_arguments("report")
@dataclass(frozen=True)
class RoundReport:
    """The state after a round, computed from public data and from released, noised values only.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of rounds of the whole run.
        metrics: Values on public test data (`test_...`), the bytes sent so far and, if the clients' models differ,
            their distance (`consensus_distance`, and `node_test_accuracy_min`, `_mean`, `_max` over nodes); with
            `client_tests` also `client_test_accuracy_min` and so on. Empty in rounds without an evaluation.
        epsilon: Upper bound on the epsilon of the rounds so far (the largest over clients). It is fast to compute and
            can be somewhat above the tight bound of `Result.spent`, but never above the limit. If the run stops early,
            the epsilon in its last report counts all planned rounds.
        target: The target epsilon, or None.
        releases: Number of records in the ledger, all on the physical disk if the ledger is a file.
        checkpoint: True if a checkpoint is written after this report; a sink must first sync files that should survive
            a crash.
        head: The `chain` hash of the ledger's last line; None if the ledger has no chain.
        warning: A message when the model or the test loss is not finite for the first time; else None.

    Examples:
        >>> import fedpriv
        >>> fedpriv.RoundReport(1, 5, {"test_accuracy": 0.5}, epsilon=0.4, target=1.0, releases=1).rounds
        5
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


@checks.validate_arguments("result")
@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. `to_json` returns the content of `result.json`; a notebook displays the result as a card.

    On a graph every node has a model; "the model" below is the mean of the nodes' models.

    Attributes:
        strategy: The algorithm's name.
        rounds: Number of finished rounds.
        planned_rounds: Number of planned rounds.
        test_accuracy: Accuracy of the model on public test data; None without test data or classes in them.
        test_loss: Loss of the model on public test data; None without test data.
        ended: Reason for the end of the run: `"rounds"` (all rounds were computed), `"strategy"` (the algorithm ended
            the run), `"budget"` (another round would have exceeded epsilon), `"nonfinite"` (see `stop_on` of
            `Training`), `"metric"` (see `stop`), `"left"` (stopped early) or `"state"` (the model, loss or data set
            kept information about earlier examples, so epsilon is infinite).
        spent: Upper bound on the privacy cost. If the run stopped before its plan ended, the stop may depend on data,
            so all planned releases are charged.
        releases: Number of releases, which are the records in the ledger.
        seconds: Duration of the run in seconds. It is rounded to one digit if batches, cohorts or true sizes are
            secret, because it depends on them.
        params_l2: l2 norm of `params`.
        noise_multiplier: Noise scale divided by sensitivity, in a round whose `schedule` share is 1.
        measures: Further values: bytes sent, spectral gap, distance of the nodes' models, and multipliers. `backend`
            contains the `name` of the backend of gradients and the reason why a faster one was `refused`. With
            `keep="best"`, `kept` contains the chosen `round`, the `metric`, and the number of `rounds_tested`. If
            client names were given, `client_names` contains them; with test sets, `client_tests` also contains each
            client's metrics by name.
        gradient_evaluations: Expected number of per-example gradients.
        optimality_gap: F(params) - F* on all training examples, if F* is known. It has no noise, and is therefore NOT
            private. `result.json` also contains it as `suboptimality`, and lists both names under `not_private`.
        first_nonfinite: The first round, from 1, in which the `"model"` or the `"test_loss"` was NaN or infinite, by
            these names; empty if all values were finite.
        reports: Number, epsilon, number of releases and metrics of each finished round, as in `metrics.jsonl`; rounds
            before a resume are included only if the folder has that file.
        params: The model's trainable parameters, `[dim]`.
        node_params: Each node's trainable parameters, `[n, dim]`; n times `params` with a server.
        model: The model as a module, in eval mode.
        charged: The releases from which `spent` is computed: the records of the ledger and, if the run stopped early,
            the rest of its planned releases.
        target: Limit on epsilon; None without a limit.
        run_name: Random name of the run, the same for copies of it.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> data = [torch.utils.data.TensorDataset(x[i::2], y[i::2]) for i in range(2)]
        >>> clients = fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
        >>> result = fedpriv.train(clients, fedpriv.fedavg(0.5), fedpriv.Privacy(epsilon=2.0), rounds=5)
        >>> result.ended, result.releases, result.params.shape
        ('rounds', 5, torch.Size([4]))
    """

    strategy: str
    rounds: int
    planned_rounds: int
    test_accuracy: float | None
    test_loss: float | None
    ended: Ended
    spent: PrivacySpent
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
    charged: tuple[Record, ...] = ()
    run_name: str = ""
    target: float | None = None

    @property
    def history(self) -> History:
        """The reports as a table, one row per round; `history.to_pandas()` returns it as a data frame."""
        return History(self.reports)

    def plot(self, file: str | Path | None = None) -> Figure:
        """Draws the test metric and epsilon against rounds, as in a run's `report.png`.

        Args:
            file: Picture to write, e.g. `run.png`; its path is printed. A script shows no figure by itself.

        Returns:
            A figure of matplotlib's pyplot, which notebooks show.

        Raises:
            ConfigError: If the file's extension is not a picture format.
            FedprivError: If the file cannot be written.
        """
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=runs.curves.SIZE, layout="constrained")
        runs.curves.draw(_ResultCurves(self), figure)
        return runs.curves.save_figure(figure, file)

    @property
    def broken(self) -> bool:
        """True if the last model or its test loss is not finite."""
        return not (bool(torch.isfinite(self.params).all()) and math.isfinite(self.test_loss or 0.0))

    def to_json(self) -> dict[str, Any]:
        """Returns the result as values for JSON: None for non-finite values, `"inf"` for an infinite epsilon."""
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
            "epsilon": strict_json.encode_epsilon(self.spent.epsilon),
            **{name: spent[name] for name in ("delta", "unit", "relation", "trust", "accountant")},
            "per_client_epsilon": [strict_json.encode_epsilon(epsilon) for epsilon in self.spent.per_client],
            "non_private": list(self.spent.non_private),
            "not_covered": list(self.spent.not_covered),
            "float64_noise": list(self.spent.float64_noise),
            "noise_multiplier": self.noise_multiplier,
            "gradient_evaluations": self.gradient_evaluations,
            "optimality_gap": self.optimality_gap,
            "seconds": round(self.seconds, 3),
            "params_l2": self.params_l2,
            **self.measures,
        }
        if self.optimality_gap is not None:
            # one number under the names used in both literatures, computed on clients' data without noise
            flat |= {"suboptimality": self.optimality_gap, "not_private": ["optimality_gap", "suboptimality"]}
        return strict_json.to_plain(flat)

    def save(self, folder: str | Path, *, nodes: bool = False) -> None:
        """Writes the model's `state_dict` to `model.pt`, reports to `metrics.jsonl` and `to_json()` to `result.json`.

        The folder of a run already contains the reports and the result; there only the models are written. All values
        except `optimality_gap` have the privacy guarantee of `spent`.

        Args:
            folder: The folder; created if it does not exist.
            nodes: True also writes `node_models.pt`, a list with each node's `state_dict`, to load with
                `model.load_state_dict(torch.load(path)[node])`.

        Raises:
            FedprivError: If a file cannot be written.
        """
        folder = Path(folder)
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
            lines = [
                strict_json.dumps({**row, "epsilon": strict_json.encode_epsilon(row["epsilon"])})
                for row in self.reports
            ]
            contents["metrics.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
            contents["result.json"] = (strict_json.dumps(self.to_json(), indent=2) + "\n").encode()
        for name, content in contents.items():
            try:
                files.write_whole(folder / name, content)
            except OSError as error:
                fix = "correct the cause, e.g. free some space, and save the result again, or resume the run"
                raise FedprivError(f"{folder / name} could not be written ({error.strerror}); {fix}") from error

    def _state_dict(self, row: Tensor) -> dict[str, Tensor]:
        model = copy_module(self.model)
        Layout.of(model).write(row, model)
        return model.state_dict()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self}>"

    def _repr_html_(self) -> str:
        rows = {
            **self._tested(),
            "model": describe_choice(self.measures),
            "constraints": format_constraint_verdict(self.measures),
            "rounds": f"{self.rounds}{self._why_fewer()}",
            "privacy": str(self.spent),
            "noise multiplier": "" if self.noise_multiplier is None else f"{self.noise_multiplier:.4g}",
            "releases": str(self.releases),
            "time": f"{self.seconds:.3g} s",
        }
        return notebook_display.format_card(self.strategy, {name: value for name, value in rows.items() if value})

    def _tested(self) -> dict[str, str]:
        """Returns the test metrics in words, in their usual order."""
        facts: dict[str, Any] = {"test_accuracy": self.test_accuracy, "test_loss": self.test_loss, **self.measures}
        rows = [*metrics.list_headline_metrics(), *metrics.make_custom_metrics(facts)]
        return {row.title: row.text(facts[row.name]) for row in rows if facts.get(row.name) is not None}

    if not TYPE_CHECKING:  # otherwise the type checker would accept any name

        def __getattr__(self, name: str) -> object:
            """Raises an error for an unknown attribute. If the attribute exists in results of other libraries, the
            error names the equivalent.
            """
            raise AttributeError(format_attribute_error("a result", name, "result"), name=name)

    def _why_fewer(self) -> str:
        return explain_fewer_rounds(self.ended, self.planned_rounds, self.spent, self.measures.get("status"))

    def __str__(self) -> str:
        measured = self._tested()
        if len(measured) > 1:
            measured.pop("test loss", None)  # the other metrics are easier to read
        tested = "".join(f"{name} {value}, " for name, value in measured.items())
        why = self._why_fewer()
        if self.first_nonfinite:
            broken = f", first not finite: {format_first_rounds(self.first_nonfinite)}"
        else:
            broken = ""
        rounds = format_count(self.rounds, "round")
        if why:
            rounds += f" ({why.lstrip()})"
        verdict = format_constraint_verdict(self.measures)
        constraints = f", {verdict}" if verdict else ""
        choice = describe_choice(self.measures)
        kept = f", model {choice}" if choice else ""
        return f"{self.strategy}: {tested}{rounds}{broken}{constraints}{kept}, {self.spent}"


@dataclass(frozen=True)
class _ResultCurves:
    """Adapts a result to the interface `curves.Curves`, from which pictures are drawn."""

    outcome: Result

    @property
    def metrics(self) -> Sequence[dict[str, Any]]:
        return self.outcome.reports

    @property
    def result(self) -> dict[str, Any]:
        return self.outcome.to_json()

    @property
    def title(self) -> str:
        return f"{self.outcome.strategy}: {type(self.outcome.model).__name__}"

    @property
    def privacy(self) -> str:
        return str(self.outcome.spent)

    @property
    def target(self) -> float | None:
        return self.outcome.target

    def column(self, name: str) -> tuple[list[int], list[float]]:
        return runs.curves.get_column(self.outcome.reports, name)


class Sink(Protocol):
    """Receives the report of each round: a progress line, a file, TensorBoard."""

    def write(self, report: RoundReport) -> None:
        """Receives the report of one round."""
        ...

    def close(self) -> None:
        """Called once when the run is over, also after an error."""
        ...


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads the rounds of a `metrics.jsonl` in order, without an incomplete last line. Returns an empty list without
    such a file.

    Raises:
        FedprivError: If another line of the file is damaged.
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
        # if the row is not a mapping, `validate_fields` below raises an error
        if isinstance(row, dict):
            names_in_row: Iterable[str] = row
        else:
            names_in_row = ()
        names = [*metrics.list_report_names(), *(metric.name for metric in metrics.make_custom_metrics(names_in_row))]
        rows.append(validate_fields(ROUND, row, f"{path}, line {number}", fix, names))
    return rows


def convert_to_reports(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows of a `metrics.jsonl` in the form of `Result.reports`, without hashes of the ledger."""
    return [
        {name: value for name, value in row.items() if name != "head"} | {"epsilon": float(row["epsilon"])}
        for row in rows
    ]


def count_releases(path: Path) -> int:
    """Returns the number of releases after the last round of a `metrics.jsonl`; 0 if there is none."""
    return max((int(row.get("releases", 0)) for row in read_metrics(path)), default=0)
