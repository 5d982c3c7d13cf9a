"""The page about a search: what all its trials cost together, and what is known of them to whom.

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

_SAME = "the same in all trials"
_MORE = "whoever sees more of the search, as colluding data holders do"
_SEES = {
    MODEL: "the published model, its settings, its score",
    SERVER: "what data holders send",
    _MORE: "more than that",
}
_OF_MORE = (
    "a second model, how many trials there were, how long they took, or what data holders hear in a trial tells more "
    "than the price covers"
)
_HIDE = (
    "What must stay hidden, and no software can hide: how long the search took, how busy the machine was, and copies "
    "of its folder secret/, as in a backup. Whoever sees any of it has seen more than the price covers."
)


def is_search(folder: Path) -> bool:
    """Whether this is the folder of a search."""
    return (folder / PLAN).exists()


def statement_of_search(folder: Path, *, colluders: int = 1, group: int = 10) -> Statement:
    """The page about a search.

    Args:
        folder: Its folder. A search whose trials may be seen may be unfinished: then all that it plans is charged.
        colluders: Number of clients that collude.
        group: Number of records that one person may have.

    Raises:
        FedprivError: a file of it is missing, damaged or altered, or its trials stay hidden and it is not finished.
    """
    search = Search.read(folder)
    return (_seen if search.settings.hidden is None else _unseen)(search, folder, colluders, group)


def _seen(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    state, delta = search.begun(folder), search.base.privacy.delta
    trials = () if state is None else state.trials
    ended = [one for one in trials if one.finished]
    _check_folders(search, folder, trials)
    runs = [Run.read(search.folder_of(folder, one.number)) for one in ended]
    pairs = zip(runs, ended, strict=True)
    spendings = [replace(_with_score(search, run, one), data=_SAME) for run, one in pairs]
    spendings += _planned(search, len(ended))
    spent, cells = compose(spendings, delta), matrix(spendings, delta, colluders=colluders, group=group)
    count = f"{len(ended)} of {search.settings.trials} have ended"
    rows = [
        ("number of trials", f"{search.settings.trials}, fixed beforehand, and shown; {count}"),
        (
            "answers to questions about the data",
            wording.released([one for run in runs for one in run.files.ledger.records]),
        ),
        ("then, of every trial", f"messages, models, settings, and {_scores(search)}"),
        ("shown to", "counted as if everybody saw all of it; part 2 says what each observer needs"),
        ("best", _best(search.best_of(trials), search)),
    ]
    if len(ended) == search.settings.trials:
        left = ()
    else:
        left = (f"The search is not finished: {count}, all are charged.",)
    again = [replace(one, name=f"{one.name} again", noise=None) for one in spendings]
    more = {
        "with one more trial like the last": compose([*spendings, again[-1]], delta),
        "with the whole search again": compose([*spendings, *again], delta),
    }
    alone = compose(spendings[-1:], delta)
    text = "If its answers are what made you choose the next one, add up instead: both epsilons, and both deltas."
    return Statement(
        f"Privacy statement of a search: {folder}",
        wording.sentence("All that the search released, all trials together,", spent),
        (
            _protected(search, spendings[0], spent),
            statement.against(cells),
            _released(search, folder, rows, left),
            statement.rests(spendings, spent.accountant, (_rests_on(search), wording.SEARCHED)),
            statement.not_covered(spent, f"In each trial's folder {statement.SECRET}", _tests(search)),
            _cost(search, alone, spent, {name: (one.epsilon, delta) for name, one in more.items()}, text),
            _verify(folder, [*_ledgers(folder, runs), ("runs made by", statement.made_with(r.result for r in runs))]),
        ),
    )


def _unseen(search: Search, folder: Path, colluders: int, group: int) -> Statement:
    if not (folder / BEST / FOUND).exists():
        raise FedprivError(f"{folder} is not finished, and nothing of it may be published: go on with fedpriv tune")
    found, plan = json.loads(files.read(folder / BEST / FOUND)), search.plans[0]
    spent, delta = search.price.spent, plan.privacy.delta
    one = RunCost("trial", plan.records, plan.n_clients, _SAME, outline(search.base).sizes, spent.not_covered)

    def price(histories: Sequence[History]) -> tuple[float, str]:
        return hidden(search.settings.number, histories, delta), "rdp"

    cells = matrix([one], delta, colluders=colluders, group=group, price=price)
    rows = [
        ("number of trials", f"hidden: a secret {search.settings.hidden} draw, {search.settings.trials} on average"),
        ("released", f"one model, its settings, and its score, {search.settings.scored_on}: {folder / BEST}"),
        ("shown to", "anybody"),
        ("never released", "the other trials, their ledgers, their number and their times; their files are removed"),
        ("best", _best(Trial(0, found["chosen"], found["score"]) if found["chosen"] else None, search)),
    ]
    more = {
        "with one more trial, as a run": basic([spent, search.price.one]),
        "with the whole search again": basic([spent, spent]),
    }
    text = "What is released besides adds up: both epsilons, and both deltas."
    return Statement(
        f"Privacy statement of a search: {folder}",
        wording.sentence("All that the search published, one model with its settings and score,", spent),
        (
            _protected(search, one, spent),
            statement.against([*_of_published(cells, search.price.rests_on)], _SEES),
            _released(search, folder, rows, ()),
            statement.rests([one], spent.accountant, (_rests_on(search), wording.SEARCHED)),
            statement.not_covered(spent, _HIDE, _tests(search)),
            _cost(search, search.price.one, spent, more, text),
            _verify(folder, [*_files_of_best(folder / BEST), ("trials made by", statement.made_with([found]))]),
        ),
    )


def _with_score(search: Search, run: Run, trial: Trial) -> RunCost:
    """What a trial released: its ledger, and the score that was told when it had ended."""
    found, noise = spending_of(run.files, plan_of(run.files)), search.settings.score_noise
    if noise is None:
        return found
    return replace(found, records=(*found.records, search.plan(trial.chosen).records[-1]))


def _scores(search: Search) -> str:
    if search.settings.score_noise is None:
        return "metrics on public test data"
    return search.settings.scored_on


def _tests(search: Search) -> str:
    if search.settings.score_noise is None:
        return wording.TESTS
    return wording.NUMBER_OF_TESTS


def _of_published(cells: Sequence[Cell], rests_on: str) -> Sequence[Cell]:
    """One model alone has the bound that all sums of a trial have; of everything else nothing is known."""
    priced = [one for one in cells if one.adversary.endswith(COLLUDERS)]
    published = [replace(one, adversary=MODEL, assumes=rests_on) for one in priced]
    server = [unbounded(one, one.assumes) for one in cells if one.adversary == SERVER]
    return [*published, *server, *(unbounded(replace(one, adversary=_MORE), _OF_MORE) for one in priced)]


def _check_folders(search: Search, folder: Path, trials: Sequence[Trial]) -> None:
    there = {path.name for path in (folder / SEEN).glob("*") if path.is_dir()}
    known = {search.folder_of(folder, one.number).name for one in trials}
    if unknown := sorted(there - known):
        raise FedprivError(f"{folder / SEEN} holds {unknown[0]}, which {STATE} does not name: restore that file")


def _planned(search: Search, ended: int) -> list[RunCost]:
    """What the trials that have not ended will cost."""
    left, plans = range(ended, search.settings.trials), search.plans if ended < search.settings.trials else ()
    found = [plans[0] if len(plans) == 1 else plans[number] for number in left]
    if found:
        sizes = outline(search.base).sizes
    else:
        sizes = None
    return [
        RunCost(f"trial {k}", plan.records, plan.n_clients, _SAME, sizes) for k, plan in zip(left, found, strict=True)
    ]


def _protected(search: Search, one: RunCost, spent: PrivacySpent) -> StatementSection:
    config = search.base.model_dump(mode="json")
    tried = ", ".join(f"{name} ({_range(field)})" for name, field in search.space.fields.items())
    if "rounds" in search.space.fields:
        length = ""
    else:
        length = f", {search.base.rounds} rounds a trial"
    if search.settings.sampler == "tpe":
        by = "the scores of earlier ones"
    else:
        by = "chance alone"
    rows = (
        ("data", statement.data_of(config)),
        ("held by", statement.holders(config, one)),
        ("used for", f"a search for good settings of {statement.purpose_of(config)}{length}"),
        ("settings tried", f"{tried}; chosen by {by}, scored by {search.settings.scored_on}"),
        ("protected unit", wording.unit_of(spent)),
        ("guarantee", str(spent)),
    )
    return StatementSection(
        "Whose data, and what of them is protected?", (wording.PERSON,) * (spent.unit == "sample"), rows
    )


def _range(field: Range | Choices) -> str:
    if isinstance(field, Range):
        return f"{field.low:g} to {field.high:g}"
    return "one of " + ", ".join(map(str, field.values))


def _released(search: Search, folder: Path, rows: Sequence[tuple[str, str]], left: tuple[str, ...]) -> StatementSection:
    last, told = folder / SEEN / STATE, "not told: how long the search took would tell how many trials there were"
    if search.settings.hidden is None:
        told = f"{wording.changed(folder / PLAN)} to {wording.changed(last) if last.exists() else 'now'}"
    when = ("when (UTC, by its files)", told)
    return StatementSection("What was released, when, and to whom?", left, (rows[0], when, *rows[1:]))


def _best(best: Trial | None, search: Search) -> str:
    if best is None or best.score is None:
        return "none: no trial has a finite score"
    if search.settings.hidden is None:
        which = f"trial {best.number}: "
    else:
        which = ""
    chosen = ", ".join(f"{name}={_short(value)}" for name, value in best.chosen.items())
    return f"{which}{chosen}; {search.settings.metric} {best.score:.4g}"


def _short(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _rests_on(search: Search) -> str:
    return f"The price of the search rests on this: {search.price.rests_on}."


def _cost(
    search: Search, alone: PrivacySpent, spent: PrivacySpent, more: Mapping[str, tuple[float, float]], text: str
) -> StatementSection:
    limit = search.settings.epsilon
    rows = [
        ("one trial alone" if search.settings.hidden else "the last trial alone", str(alone)),
        ("the whole search", str(spent)),
        ("limit of the search", "none was set" if limit is None else f"epsilon={limit:g}"),
        *(
            (name, f"epsilon={round_up(epsilon)} at delta={wording.small(delta)}")
            for name, (epsilon, delta) in more.items()
            if math.isfinite(epsilon)
        ),
        statement.lifetime([search.base.privacy.budget]),
    ]
    others = "Counted here: this search. Other runs on the same data, if there are any, add to it."
    return StatementSection(
        "What did the search cost, and what would another trial or run cost?", (others, text), tuple(rows)
    )


def _ledgers(folder: Path, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """One hash for all ledgers, which any machine can compute."""
    whole, places = hashlib.sha256(), sorted((folder / SEEN).glob("*/ledger.jsonl"))
    for place in places:
        whole.update(place.read_bytes())
    records = sum(len(run.files.ledger.records) for run in runs)
    if len(places) == len(runs):
        begun = ""
    else:
        begun = f", and {len(places) - len(runs)} that has not ended"
    lines = f"{counted(records, 'record')} in {counted(len(runs), 'chain')}"
    told = f"{lines}{begun}; SHA-256 of all in order {whole.hexdigest()}"
    return [
        ("ledgers", told),
        ("was anything changed?", f"cat {folder / SEEN}/*/ledger.jsonl | sha256sum must print the same hash"),
        ("count again", f"fedpriv statement {folder}; fedpriv account {folder / SEEN}/*/"),
        ("look for faults", f"fedpriv audit {folder / SEEN}/0000, where the data are"),
    ]


def _files_of_best(best: Path) -> list[tuple[str, str]]:
    rows = [(f"{best / name}: SHA-256", _hash(best / name)) for name in ("model.pt", "config.yaml", FOUND)]
    told = "the ledgers would tell the number of trials, and are removed: the price is that of the plan"
    return [*rows, ("was anything changed?", f"sha256sum {best}/* must print the same hashes"), ("ledgers", told)]


def _hash(path: Path) -> str:
    if path.exists():
        return hashlib.sha256(files.read(path)).hexdigest()
    return "not there"


def _verify(folder: Path, rows: Sequence[tuple[str, str]]) -> StatementSection:
    plan = (f"{folder / PLAN}: SHA-256", _hash(folder / PLAN))
    return StatementSection("How can this be verified?", (), (plan, *rows, statement.made_by()))
