"""The privacy statement of a search: what all its trials cost together, and what each observer learns of them.

Trials that may be seen are counted again from their ledgers. Where their number is hidden no ledger is left, and the
price is that of the plan.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.config.building import outline
from fedpriv.config.of_run import plan_of
from fedpriv.errors import FedprivError, counted
from fedpriv.privacy.accounting.events import History
from fedpriv.privacy.accounting.search import hidden
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.adversaries import COLLUDERS, MODEL, SERVER
from fedpriv.privacy.composition import RunCost, basic, compose
from fedpriv.privacy.matrix import Cell, matrix
from fedpriv.reports import statement, wording
from fedpriv.reports.report import Run
from fedpriv.reports.spendings import spending_of
from fedpriv.reports.statement import Statement, StatementSection, unbounded
from fedpriv.storage import files
from fedpriv.tuning.search import BEST, FOUND, PLAN, SEEN, STATE, Search, Trial
from fedpriv.tuning.space import Choices, Range, Value

_SEES_MORE = "whoever sees more of the search, as colluding data holders do"
_SEES = {
    MODEL: "the published model, its settings, its score",
    SERVER: "what data holders send",
    _SEES_MORE: "more than that",
}
_NO_BOUND_FOR_MORE = (
    "a second model, how many trials there were, how long they took, or what data holders hear in a trial tells more "
    "than the price covers"
)
_TO_HIDE = (
    "What must stay hidden, and no software can hide: how long the search took, how busy the machine was, and copies "
    "of its folder secret/, as in a backup. Whoever sees any of it has seen more than the price covers."
)


def is_search(folder: Path) -> bool:
    """Returns whether this is the folder of a search."""
    return (folder / PLAN).exists()


def search_statement(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """Returns the privacy statement of a search.

    Args:
        folder: Folder of the search. If its trials may be seen, it may be unfinished: then all planned trials are
            charged.
        colluders: Number of clients that collude.
        group: Number of records that one person may have.

    Raises:
        FedprivError: a file is missing, damaged or altered, or the trials are hidden and the search is not finished.
    """
    search = Search.read(folder)
    if search.settings.hidden is None:
        return _state_visible(search, folder, colluders, group)
    return _state_hidden(search, folder, colluders, group)


def _state_visible(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    """Returns the statement of a search whose trials may all be seen."""
    state = search.read_state(folder)
    delta = search.base.privacy.delta
    if state is None:
        trials = ()
    else:
        trials = state.trials
    finished = [trial for trial in trials if trial.finished]
    _check_folders(search, folder, trials)

    # finished trials by their ledgers, the others by their plans
    runs = [Run.read(search.trial_folder(folder, trial.number)) for trial in finished]
    spendings = [
        replace(_read_cost(search, run, trial), data=search.data) for run, trial in zip(runs, finished, strict=True)
    ]
    if len(finished) < search.settings.trials:
        search.check_sizes(folder)
    spendings += _planned_costs(search, len(finished))
    spent = compose(spendings, delta)
    cells = matrix(spendings, delta, colluders=colluders, group=group)

    count = f"{len(finished)} of {search.settings.trials} have ended"
    records = [record for run in runs for record in run.files.ledger.records]
    rows = [
        ("number of trials", f"{search.settings.trials}, fixed beforehand, and shown; {count}"),
        ("answers to questions about the data", wording.released(records)),
        ("then, of every trial", f"messages, models, settings, and {_visible_scores(search)}"),
        ("shown to", "counted as if everybody saw all of it; part 2 says what each observer needs"),
        ("best", _best_row(search.best_trial(trials), search)),
    ]
    if len(finished) == search.settings.trials:
        remarks = ()
    else:
        remarks = (f"The search is not finished: {count}, all are charged.",)

    repeated = [replace(spending, name=f"{spending.name} again", run_name=None) for spending in spendings]
    further = {
        "with one more trial like the last": compose([*spendings, repeated[-1]], delta),
        "with the whole search again": compose([*spendings, *repeated], delta),
    }
    further_costs = {name: (total.epsilon, delta) for name, total in further.items()}
    last_alone = compose(spendings[-1:], delta)
    text = "If its answers are what made you choose the next one, add up instead: both epsilons, and both deltas."
    made_with = statement.made_with(run.result for run in runs)
    return Statement(
        f"Privacy statement of a search: {folder}",
        wording.sentence("All that the search released, all trials together,", spent),
        (
            _protected(search, spendings[0], spent),
            statement.against(cells),
            _released(search, folder, rows, remarks),
            statement.rests(
                spendings, spent.accountant, (_assumptions(search), wording.SEARCHED, *wording.rounding(spent))
            ),
            statement.not_covered(spent, f"In each trial's folder {statement.SECRET}", _tests(search)),
            _cost(search, last_alone, spent, further_costs, text),
            _verification(folder, [*_ledger_rows(folder, runs), ("runs made by", made_with)]),
        ),
    )


def _state_hidden(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    """Returns the statement of a search whose number of trials is a secret draw."""
    if not (folder / BEST / FOUND).exists():
        raise FedprivError(f"{folder} is not finished, and nothing of it may be published: go on with fedpriv tune")
    search.check_sizes(folder)  # no ledger is left, so that the price follows from them again
    published = json.loads(files.read(folder / BEST / FOUND))
    plan = search.plans[0]
    spent = search.price.spent
    delta = plan.privacy.delta
    trial = RunCost(
        "trial",
        plan.records,
        plan.n_clients,
        search.data,
        outline(search.base).sizes,
        spent.not_covered,
        float64_noise=plan.float64_noise,
    )

    def price(histories: Sequence[History]) -> tuple[float, str]:
        return hidden(search.settings.number, histories, delta), "rdp"

    cells = matrix([trial], delta, colluders=colluders, group=group, price=price)
    if published["chosen"]:
        best = Trial(0, published["chosen"], published["score"])
    else:
        best = None
    rows = [
        ("number of trials", f"hidden: a secret {search.settings.hidden} draw, {search.settings.trials} on average"),
        ("released", f"one model, its settings, and its score, {search.settings.scored_on}: {folder / BEST}"),
        ("shown to", "anybody"),
        ("never released", "the other trials, their ledgers, their number and their times; their files are removed"),
        ("best", _best_row(best, search)),
    ]
    further_costs = {
        "with one more trial, as a run": basic([spent, search.price.one_trial]),
        "with the whole search again": basic([spent, spent]),
    }
    text = "What is released besides adds up: both epsilons, and both deltas."
    made_with = statement.made_with([published])
    return Statement(
        f"Privacy statement of a search: {folder}",
        wording.sentence("All that the search published, one model with its settings and score,", spent),
        (
            _protected(search, trial, spent),
            statement.against([*_published_cells(cells, search.price.rests_on)], _SEES),
            _released(search, folder, rows, ()),
            statement.rests(
                [trial], spent.accountant, (_assumptions(search), wording.SEARCHED, *wording.rounding(spent))
            ),
            statement.not_covered(spent, _TO_HIDE, _tests(search)),
            _cost(search, search.price.one_trial, spent, further_costs, text),
            _verification(folder, [*_published_file_rows(folder / BEST), ("trials made by", made_with)]),
        ),
    )


def _read_cost(search: Search, run: Run, trial: Trial) -> RunCost:
    """Returns the cost of a finished trial: its ledger, and its noised score if it has one."""
    cost = spending_of(run.files, plan_of(run.files))
    if search.settings.score_noise is None:
        return cost
    return replace(cost, records=(*cost.records, search.plan(trial.chosen).records[-1]))


def _visible_scores(search: Search) -> str:
    if search.settings.score_noise is None:
        return "metrics on public test data"
    return search.settings.scored_on


def _tests(search: Search) -> str:
    if search.settings.score_noise is None:
        return wording.TESTS
    return wording.NUMBER_OF_TESTS


def _published_cells(cells: Sequence[Cell], rests_on: str) -> Sequence[Cell]:
    """Returns the guarantees of a hidden search: those of one trial hold for the one model that is published alone."""
    priced = [cell for cell in cells if cell.adversary.endswith(COLLUDERS)]
    published = [replace(cell, adversary=MODEL, assumes=rests_on) for cell in priced]
    server = [unbounded(cell, cell.assumes) for cell in cells if cell.adversary == SERVER]
    others = [unbounded(replace(cell, adversary=_SEES_MORE), _NO_BOUND_FOR_MORE) for cell in priced]
    return [*published, *server, *others]


def _check_folders(search: Search, folder: Path, trials: Sequence[Trial]) -> None:
    """Refuses a search with folders of trials that its state does not name: their cost would be missing."""
    existing = {path.name for path in (folder / SEEN).glob("*") if path.is_dir()}
    named = {search.trial_folder(folder, trial.number).name for trial in trials}
    unknown = sorted(existing - named)
    if unknown:
        raise FedprivError(f"{folder / SEEN} holds {unknown[0]}, which {STATE} does not name: restore that file")


def _planned_costs(search: Search, n_finished: int) -> list[RunCost]:
    """Returns the costs of the trials that have not ended, by their plans."""
    if n_finished >= search.settings.trials:
        return []
    plans = search.plans
    sizes = outline(search.base).sizes
    costs = []
    for number in range(n_finished, search.settings.trials):
        # a single plan stands for all trials
        if len(plans) == 1:
            plan = plans[0]
        else:
            plan = plans[number]
        costs.append(
            RunCost(
                f"trial {number}",
                plan.records,
                plan.n_clients,
                search.data,
                sizes,
                plan.not_covered,
                float64_noise=plan.float64_noise,
            )
        )
    return costs


def _protected(search: Search, trial: RunCost, spent: PrivacySpent) -> StatementSection:
    config = search.base.model_dump(mode="json")
    fields = ", ".join(f"{name} ({_format_field(field)})" for name, field in search.space.fields.items())
    if "rounds" in search.space.fields:
        length = ""
    else:
        length = f", {search.base.rounds} rounds a trial"
    if search.settings.sampler == "tpe":
        chooser = "the scores of earlier ones"
    else:
        chooser = "chance alone"
    rows = (
        ("data", statement.data_name(config)),
        ("held by", statement.holders(config, trial)),
        ("used for", f"a search for good settings of {statement.purpose_of(config)}{length}"),
        ("settings tried", f"{fields}; chosen by {chooser}, scored by {search.settings.scored_on}"),
        ("protected unit", wording.unit_of(spent)),
        ("guarantee", str(spent)),
    )
    if spent.unit == "sample":
        text = (wording.PERSON,)
    else:
        text = ()
    return StatementSection("Whose data, and what of them is protected?", text, rows)


def _format_field(field: Range | Choices) -> str:
    if isinstance(field, Range):
        return f"{field.low:g} to {field.high:g}"
    return "one of " + ", ".join(map(str, field.values))


def _released(
    search: Search, folder: Path, rows: Sequence[tuple[str, str]], remarks: tuple[str, ...]
) -> StatementSection:
    if search.settings.hidden is None:
        state = folder / SEEN / STATE
        if state.exists():
            end = wording.changed(state)
        else:
            end = "now"
        period = f"{wording.changed(folder / PLAN)} to {end}"
    else:
        period = "not told: how long the search took would tell how many trials there were"
    when = ("when (UTC, by its files)", period)
    return StatementSection("What was released, when, and to whom?", remarks, (rows[0], when, *rows[1:]))


def _best_row(best: Trial | None, search: Search) -> str:
    if best is None or best.score is None:
        return "none: no trial has a finite score"
    chosen = ", ".join(f"{name}={_format_value(value)}" for name, value in best.chosen.items())
    text = f"{chosen}; {search.settings.metric} {best.score:.4g}"
    if search.settings.hidden is None:
        return f"trial {best.number}: {text}"
    return text


def _format_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _assumptions(search: Search) -> str:
    return f"The price of the search rests on this: {search.price.rests_on}."


def _cost(
    search: Search,
    one_trial: PrivacySpent,
    spent: PrivacySpent,
    further_costs: Mapping[str, tuple[float, float]],
    text: str,
) -> StatementSection:
    """Returns the section about costs.

    Args:
        search: The search.
        one_trial: The cost of one trial alone.
        spent: The cost of the whole search.
        further_costs: Epsilon and delta after further trials or runs, by name.
        text: How further costs add up.
    """
    if search.settings.hidden:
        trial_title = "one trial alone"
    else:
        trial_title = "the last trial alone"
    limit = search.settings.epsilon
    if limit is None:
        limit_text = "none was set"
    else:
        limit_text = f"epsilon={limit:g}"
    rows = [(trial_title, str(one_trial)), ("the whole search", str(spent)), ("limit of the search", limit_text)]
    for name, (epsilon, delta) in further_costs.items():
        if math.isfinite(epsilon):
            rows.append((name, f"epsilon={round_up(epsilon)} at delta={wording.small(delta)}"))
    rows.append(statement.lifetime([search.base.privacy.budget]))
    others = "Counted here: this search. Other runs on the same data, if there are any, add to it."
    return StatementSection(
        "What did the search cost, and what would another trial or run cost?", (others, text), tuple(rows)
    )


def _ledger_rows(folder: Path, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns rows with one hash of all ledgers, which any machine can compute again."""
    digest = hashlib.sha256()
    paths = sorted((folder / SEEN).glob("*/ledger.jsonl"))
    for path in paths:
        digest.update(path.read_bytes())
    n_records = sum(len(run.files.ledger.records) for run in runs)
    ledgers = f"{counted(n_records, 'record')} in {counted(len(runs), 'chain')}"
    if len(paths) != len(runs):
        ledgers += f", and {len(paths) - len(runs)} that has not ended"
    ledgers += f"; SHA-256 of all in order {digest.hexdigest()}"
    rows = [
        ("ledgers", ledgers),
        ("was anything changed?", f"cat {folder / SEEN}/*/ledger.jsonl | sha256sum must print the same hash"),
        ("count again", f"fedpriv statement {folder}; fedpriv account {folder / SEEN}/*/"),
    ]
    if runs:
        rows.append(statement.count_without_fedpriv(runs[0].files.ledger, "one trial's own answers"))
    rows.append(("look for faults", f"fedpriv audit {folder / SEEN}/0000, where the data are"))
    return rows


def _published_file_rows(best: Path) -> list[tuple[str, str]]:
    """Returns rows with the hash of each published file."""
    rows = [(f"{best / name}: SHA-256", _hash(best / name)) for name in ("model.pt", "config.yaml", FOUND)]
    ledgers = "the ledgers would tell the number of trials, and are removed: the price is that of the plan"
    no_count = (
        "not possible: a count needs the ledgers (python -m fedpriv_verify counts those of a run or of open trials)"
    )
    return [
        *rows,
        ("was anything changed?", f"sha256sum {best}/* must print the same hashes"),
        ("ledgers", ledgers),
        ("count without fedpriv", no_count),
    ]


def _hash(path: Path) -> str:
    if path.exists():
        return hashlib.sha256(files.read(path)).hexdigest()
    return "not there"


def _verification(folder: Path, rows: Sequence[tuple[str, str]]) -> StatementSection:
    plan = (f"{folder / PLAN}: SHA-256", _hash(folder / PLAN))
    return StatementSection("How can this be verified?", (), (plan, *rows, statement.made_by()))
