"""The privacy statement of a search: the total cost of its trials, and the view of each observer.

Visible trials are counted again from their ledgers. If their number is secret, no ledger is left, and the cost is taken
from the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.config.building import read_outline
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import FedprivError, format_count
from fedpriv.planning import Plan
from fedpriv.privacy import COLLUDERS, MODEL, SERVER, Cell, RunCost, basic_composition, compose, compute_bound_matrix
from fedpriv.privacy.accounting import History, PrivacySpent, compute_hidden_epsilon
from fedpriv.reports import wording
from fedpriv.reports.report import Run
from fedpriv.reports.run_statement import SECRET, describe_simulated_trust, make_lifetime_row
from fedpriv.reports.spending import compute_run_charge
from fedpriv.reports.statement import Rows, Statement, count_without_fedpriv, make_unbounded_cell
from fedpriv.storage import files
from fedpriv.tuning.search import BEST, FOUND, PLAN, SEEN, STATE, Search, Trial
from fedpriv.tuning.space import Choices, Range, Value

_SEES_MORE = "anyone who sees more of the search, such as colluding data holders"
_SEES = {
    MODEL: "the published model, its settings, its score",
    SERVER: "what data holders send",
    _SEES_MORE: "more than that",
}
_NO_BOUND_FOR_MORE = (
    "a second model, the number of trials, their duration, or what data holders receive in a trial reveals "
    "more than the privacy cost covers"
)
_WHEN = "when (UTC, from file times)"
_TO_HIDE = (
    "These must stay hidden, and software cannot hide them: how long the search took, how busy the machine "
    "was, and copies of its folder secret/, as in a backup. An observer of any of these learns more than the "
    "privacy cost covers."
)


def is_search(folder: Path) -> bool:
    """Returns True if this is the folder of a search."""
    return (folder / PLAN).exists()


def search_statement(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """Returns the privacy statement of a search.

    Args:
        folder: Folder of the search. If its trials are visible, it may be unfinished: all planned trials are then
            charged.
        colluders: Number of clients that collude.
        group: Number of records that may belong to one person.

    Raises:
        FedprivError: If a file is missing, damaged or altered, or the trials are secret and the search is not finished.
    """
    search = Search.read(folder)
    if search.settings.secret_trials is None:
        return _state_visible(search, folder, colluders, group)
    return _state_hidden(search, folder, colluders, group)


def _state_visible(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    """Returns the statement of a search with visible trials."""
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

    count = f"{len(finished)} of {search.settings.trials} have ended"
    unfinished = ()
    if len(finished) < search.settings.trials:
        unfinished = (f"The search is not finished: {count}, and all are charged.",)
    made_with = wording.describe_software(run.result for run in runs)
    repeated = [replace(spending, name=f"{spending.name} again", run_name=None) for spending in spendings]
    one_more = compose([*spendings, repeated[-1]], delta)
    all_again = compose([*spendings, *repeated], delta)
    answers = wording.describe_releases(record for run in runs for record in run.files.ledger.records)
    return replace(
        _common(search, folder, spendings, spent),
        subject="All that the search released, all trials together,",
        cells=compute_bound_matrix(spendings, delta, colluders=colluders, group=group),
        release_text=unfinished,
        release_rows=[
            ("number of trials", f"{search.settings.trials}, fixed in advance, and visible; {count}"),
            (_WHEN, _period(folder)),
            ("query results", answers),
            ("then, of every trial", f"messages, models, settings, and {_visible_scores(search)}"),
            ("shown to", "charged as if every party received all results; part 2 has the cost for each observer"),
            ("best", _best_row(search.best_trial(trials), search)),
        ],
        secret=SECRET.replace("checkpoint.pt", "checkpoint.pt of each trial"),
        cost_text=("If results of this search are the reason for a later one, add up both epsilons and both deltas.",),
        costs=[
            ("the last trial alone", compose(spendings[-1:], delta)),
            ("the whole search", spent),
            ("with one more trial like the last", (one_more.epsilon, delta)),
            ("with the whole search again", (all_again.epsilon, delta)),
        ],
        checks=[*_ledger_checks(folder, runs), ("runs made by", made_with)],
    )


def _state_hidden(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    """Returns the statement of a search with a number of trials that is a secret draw."""
    if not (folder / BEST / FOUND).exists():
        raise FedprivError(f"{folder} is not finished, so none of it may be published: resume it with fedpriv tune")
    search.check_sizes(folder)  # no ledger is left, so the cost is computed from them again
    published = json.loads(files.read(folder / BEST / FOUND))
    plan = search.plans[0]
    spent = search.cost.spent
    delta = plan.privacy.delta
    trial = _planned_cost(search, plan, "trial")

    def cost_of(histories: Sequence[History]) -> tuple[float, str]:
        return compute_hidden_epsilon(search.settings.number, histories, delta), "rdp"

    cells = compute_bound_matrix([trial], delta, colluders=colluders, group=group, cost_function=cost_of)
    settings = search.settings
    best = None
    if published["chosen"]:
        best = Trial(0, published["chosen"], published["score"])
    return replace(
        _common(search, folder, [trial], spent),
        subject="All that the search published, one model with its settings and score,",
        cells=_published_cells(cells, search.cost.rests_on),
        sees=_SEES,
        release_rows=[
            ("number of trials", f"secret: a {settings.secret_trials} draw, {settings.trials} on average"),
            (_WHEN, "not published: the duration of the search would reveal the number of trials"),
            ("released", f"one model, its settings, and its score, {settings.scored_on}: {folder / BEST}"),
            ("shown to", "anybody"),
            ("never released", "the other trials, their ledgers, their number and times; their files are deleted"),
            ("best", _best_row(best, search)),
        ],
        cost_text=("Other releases add up: both epsilons, and both deltas.",),
        costs=[
            ("one trial alone", search.cost.one_trial),
            ("the whole search", spent),
            ("with one more trial, as a run", basic_composition([spent, search.cost.one_trial])),
            ("with the whole search again", basic_composition([spent, spent])),
        ],
        checks=[*_published_checks(folder), ("trials made by", wording.describe_software([published]))],
    )


def _common(search: Search, folder: Path, costs: Sequence[RunCost], spent: PrivacySpent) -> Statement:
    """Returns the parts that the statements of all searches share; the caller fills in the rest."""
    config = search.base.model_dump(mode="json")
    limit = "none was set"
    if search.settings.epsilon is not None:
        limit = f"epsilon={search.settings.epsilon:g}"
    tests = wording.TESTS
    if search.settings.score_noise is not None:
        tests = wording.NUMBER_OF_TESTS
    return Statement(
        about=f"search {folder}",
        subject="All that the search released",
        spent=spent,
        data=wording.format_data_name(config),
        held_by=wording.describe_holders(config, costs[0]),
        used_for=_used_for(search),
        settings_tried=_settings_tried(search),
        cells=(),
        trust=describe_simulated_trust(costs),
        assumed=(f"The privacy cost of the search assumes: {search.cost.rests_on}.", wording.SEARCHED),
        tests=tests,
        secret=_TO_HIDE,
        costs=(),
        budgets=[("limit of the search", limit), make_lifetime_row([search.base.privacy.budget])],
        checks=(),
    )


def _read_cost(search: Search, run: Run, trial: Trial) -> RunCost:
    """Returns the cost of a finished trial: its ledger, and its noised score if it has one."""
    cost = compute_run_charge(run.files, recover_plan(run.files))
    if search.settings.score_noise is None:
        return cost
    return replace(cost, records=(*cost.records, search.plan(trial.chosen).records[-1]))


def _visible_scores(search: Search) -> str:
    if search.settings.score_noise is None:
        return "metrics on public test data"
    return search.settings.scored_on


def _published_cells(cells: Sequence[Cell], rests_on: str) -> Sequence[Cell]:
    """Returns the guarantees of a search with secret trials: those of one trial, for the single published model."""
    within_colluders = [cell for cell in cells if cell.adversary_kind == COLLUDERS]
    published = [replace(cell, adversary=MODEL, assumes=rests_on) for cell in within_colluders]
    server = [make_unbounded_cell(cell, cell.assumes) for cell in cells if cell.adversary == SERVER]
    others = [make_unbounded_cell(replace(cell, adversary=_SEES_MORE), _NO_BOUND_FOR_MORE) for cell in within_colluders]
    return [*published, *server, *others]


def _check_folders(search: Search, folder: Path, trials: Sequence[Trial]) -> None:
    """Raises an error for trial folders that the search's state omits, since their cost would be missing."""
    existing = {path.name for path in (folder / SEEN).glob("*") if path.is_dir()}
    named = {search.trial_folder(folder, trial.number).name for trial in trials}
    unknown = sorted(existing - named)
    if unknown:
        raise FedprivError(f"{folder / SEEN} contains {unknown[0]}, which {STATE} does not name: restore that file")


def _planned_costs(search: Search, n_finished: int) -> list[RunCost]:
    """Returns the costs of the trials that have not ended, from their plans."""
    if n_finished >= search.settings.trials:
        return []
    plans = search.plans
    if len(plans) == 1:  # a single plan represents all trials
        plans = [*plans] * search.settings.trials
    return [
        _planned_cost(search, plans[number], f"trial {number}") for number in range(n_finished, search.settings.trials)
    ]


def _planned_cost(search: Search, plan: Plan, name: str) -> RunCost:
    return RunCost(
        name,
        plan.records,
        plan.n_clients,
        search.data,
        read_outline(search.base).sizes,
        plan.not_covered,
        float64_noise=plan.float64_noise,
    )


def _used_for(search: Search) -> str:
    text = f"a search for good settings of {wording.describe_purpose(search.base.model_dump(mode='json'))}"
    if "rounds" in search.space.fields:
        return text
    return f"{text}, {search.base.rounds} rounds per trial"


def _settings_tried(search: Search) -> str:
    fields = ", ".join(f"{name} ({_format_field(field)})" for name, field in search.space.fields.items())
    chooser = "random draws only"
    if search.settings.sampler == "tpe":
        chooser = "the scores of earlier trials"
    return f"{fields}; chosen by {chooser}, scored by {search.settings.scored_on}"


def _format_field(field: Range | Choices) -> str:
    if isinstance(field, Range):
        return f"{field.low:g} to {field.high:g}"
    return "one of " + ", ".join(map(str, field.values))


def _period(folder: Path) -> str:
    state = folder / SEEN / STATE
    end = "now"
    if state.exists():
        end = wording.format_change_time(state)
    return f"{wording.format_change_time(folder / PLAN)} to {end}"


def _best_row(best: Trial | None, search: Search) -> str:
    if best is None or best.score is None:
        return "none: no trial has a finite score"
    chosen = ", ".join(f"{name}={_format_value(value)}" for name, value in best.chosen.items())
    text = f"{chosen}; {search.settings.metric} {best.score:.4g}"
    if search.settings.secret_trials is None:
        return f"trial {best.number}: {text}"
    return text


def _format_value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _ledger_checks(folder: Path, runs: Sequence[Run]) -> Rows:
    """Returns rows with one hash of all ledgers, which can be recomputed on any machine."""
    digest = hashlib.sha256()
    paths = sorted((folder / SEEN).glob("*/ledger.jsonl"))
    for path in paths:
        digest.update(path.read_bytes())
    n_records = sum(len(run.files.ledger.records) for run in runs)
    ledgers = f"{format_count(n_records, 'record')} in {format_count(len(runs), 'chain')}"
    if len(paths) != len(runs):
        ledgers += f", and {len(paths) - len(runs)} unfinished"
    how_to_count = [count_without_fedpriv(run.files.ledger, "one trial's own releases") for run in runs[:1]]
    return [
        (f"{folder / PLAN}: SHA-256", _hash(folder / PLAN)),
        ("ledgers", f"{ledgers}; SHA-256 of all in order {digest.hexdigest()}"),
        ("was anything changed?", f"cat {folder / SEEN}/*/ledger.jsonl | sha256sum must print the same hash"),
        ("compute again", f"fedpriv statement {folder}; fedpriv account {folder / SEEN}/*/"),
        *(("compute without fedpriv", how) for how in how_to_count),
        ("look for faults", f"fedpriv audit {folder / SEEN}/0000, on a machine with the data"),
    ]


def _published_checks(folder: Path) -> Rows:
    """Returns rows with the hash of each published file."""
    best = folder / BEST
    published = [folder / PLAN, best / "model.pt", best / "config.yaml", best / FOUND]
    return [
        *((f"{path}: SHA-256", _hash(path)) for path in published),
        ("was anything changed?", f"sha256sum {best}/* must print the same hashes"),
        (
            "ledgers",
            "the ledgers would reveal the number of trials, and are deleted: the privacy cost is that of the plan",
        ),
        (
            "compute without fedpriv",
            "not possible: it needs the ledgers (python -m fedpriv_verify works for runs and for visible trials)",
        ),
    ]


def _hash(path: Path) -> str:
    if path.exists():
        return hashlib.sha256(files.read(path)).hexdigest()
    return "missing"
