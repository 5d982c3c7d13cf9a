"""A search: its plan, its trials in sequence, and the best of them; a killed search can resume and is charged once."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedpriv.config import Config, to_yaml
from fedpriv.config.base import check
from fedpriv.config.building import read_outline
from fedpriv.config.files import override
from fedpriv.errors import ConfigError, DataError, FedprivError
from fedpriv.planning import Plan
from fedpriv.privacy import Budget
from fedpriv.runs import RoundReport, digest_data, get_software_versions
from fedpriv.settings import validate_arguments
from fedpriv.storage import RunFolder, files, strict_json, strict_yaml
from fedpriv.tuning import sampling, scores
from fedpriv.tuning.search_cost import (
    SearchCost,
    check_same_cost,
    compute_reserved_cost,
    compute_search_cost,
    plan_trial,
)
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Space, Value, as_overrides
from fedpriv.tuning.trials import Watch, run_trial

PLAN, STATE = "search.json", "trials.json"
SEEN, _SECRET, BEST, FOUND = "trials", "secret", "best", "best.json"
_SIZES = "sizes"  # in the plan: the public number of examples of each client, on which the cost depends
_PLANNED_CHOICES = 8  # choices that are planned beforehand if all trials must cost the same


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: The number of the trial, from 0.
        chosen: The chosen settings, by field.
        score: Its score; None if it is not known yet, or not finite.
        finished: True if it has ended.
    """

    number: int
    chosen: dict[str, Value]
    score: float | None = None
    finished: bool = False


@dataclass(frozen=True)
class State:
    """The state of a search.

    Attributes:
        number: Number of all trials; secret if it was drawn.
        name: Random name of the search, in a lifetime budget.
        trials: The trials that have begun.
    """

    number: int
    name: str
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The result of a search.

    Attributes:
        cost: The privacy cost of the search.
        best: Folder of the best run, or of its model if the others stay secret; None if no trial has a score.
        chosen: The best settings.
        score: Their score.
        trials: All trials; empty if they stay secret.
    """

    cost: SearchCost
    best: Path | None
    chosen: dict[str, Value] | None
    score: float | None
    trials: tuple[Trial, ...]


@validate_arguments("search")
@dataclass(frozen=True)
class Search:
    """A search for good settings of a run.

    Guarantee: `cost.spent` holds for everything that the search publishes, for any settings that it tries because of
    its scores. It is known before the first trial begins, and a search above its limit, or its data's budget, does not
    begin.

    Args:
        base: The configuration of the run; each trial changes the fields that the space names.
        space: The fields and their values.
        settings: Number of trials, sampler, metric and limits.

    Raises:
        ConfigError: If settings cannot be searched.
    """

    base: Config
    space: Space
    settings: SearchSettings

    @staticmethod
    def read(path: Path) -> Search:
        """Reads the search of a folder.

        Raises:
            FedprivError: If the folder holds none, or its plan is damaged.
        """
        try:
            plan = json.loads(files.read(path / PLAN))
            base = check(Config, strict_yaml.read(plan["config"], str(path / PLAN)))
            return Search(base, Space.of(plan["space"]), SearchSettings(**plan["settings"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedprivError(
                f"{path / PLAN} is not the plan of a search, or is damaged ({error}); name the folder of a search, or "
                "restore the file from a copy"
            ) from None

    def __post_init__(self) -> None:
        if self.base.secret_seed is not None:
            fix = (
                "cannot be set in a search, because trials with equal settings would have the same noise: leave it out"
            )
            raise ConfigError("secret_seed", "(given)", fix)
        if self.base.data.standardize is not None:
            fix = "cannot be set in a search, because each trial would release it again: use data.scales"
            raise ConfigError("data.standardize", "(given)", fix)
        if self.settings.score_noise is not None:
            scores.check(self.base)
        if self.settings.secret_trials is not None and self.base.privacy.budget is not None:
            fix = "would reveal the number of trials of a search with secret trials: leave it out"
            raise ConfigError("privacy.budget", self.base.privacy.budget, fix)

    @cached_property
    def cost(self) -> SearchCost:
        """The privacy cost of the whole search.

        Raises:
            BudgetExhausted: If the cost is above the limit.
            ConfigError: If trials would have different costs although they must not.
        """
        return compute_search_cost(self.settings, self.plans, self.data)

    @property
    def data(self) -> str | None:
        """A name of the clients' examples, from the settings that fix them; None if they may change between trials."""
        return digest_data(self.base.model_dump(mode="json"))

    def check_sizes(self, path: Path) -> None:
        """Raises an error if clients' numbers of examples changed since the start; the cost depends on them.

        Raises:
            DataError: If the numbers differ, or are not on record and may have changed.
        """
        noted = json.loads(files.read(path / PLAN)).get(_SIZES)
        if noted == self._sizes or (noted is None and self.data is not None):
            return
        raise DataError(
            f"{path}: the clients' numbers of examples changed since the search began, but its noise and its privacy "
            "cost depend on these numbers. Restore the data, or search again in a new folder (separate epsilon)"
        )

    @property
    def _sizes(self) -> list[int]:
        return list(read_outline(self.base).sizes)

    @cached_property
    def plans(self) -> Sequence[Plan]:
        """The plan of every trial, or one for all."""
        if self._chooses_beforehand:
            return [self.plan(chosen) for chosen in self._choices(self.settings.trials)]
        choices = self._choices(min(_PLANNED_CHOICES, self.settings.trials))
        plans = [self.plan(chosen) for chosen in choices]
        for plan, chosen in zip(plans, choices, strict=True):
            check_same_cost(plan, plans[0], chosen)
        return plans[:1]

    def plan(self, chosen: dict[str, Value]) -> Plan:
        """Returns the plan of a trial with these choices, its score included.

        Raises:
            ConfigError: If a setting of the trial cannot be used.
        """
        plan = plan_trial(self.config(chosen))
        if self.settings.score_noise is None:
            return plan
        return scores.with_score(plan, self.settings.score_noise)

    def config(self, chosen: dict[str, Value]) -> Config:
        """Returns the configuration of a trial with these choices.

        Raises:
            ConfigError: If a setting of the trial cannot be used.
        """
        raw = self.base.model_dump(mode="json")
        if self.base.seed is None:
            seed = self.settings.seed
        else:
            seed = self.base.seed
        # no budget: the search reserves all trials at once
        changes = [*as_overrides(chosen), f"seed={seed}", "privacy.budget=null"]
        if self.settings.score_noise is not None:
            changes.append("log.test=false")  # test data are private
        for change in changes:
            raw = override(raw, change)
        return check(Config, raw)

    def run(self, path: Path, watch: Watch) -> Outcome:
        """Runs all trials, or those that remain.

        Args:
            path: Folder of the search. If it already contains this search, the search resumes.
            watch: Called with the report of every round; never if trials stay secret.

        Raises:
            FedprivError: If the folder holds another search, or a trial cannot run.
            BudgetExhausted: See `cost`; also if the lifetime budget does not allow the search.
        """
        cost = self.cost
        with RunFolder(path) as folder:
            self._begin(folder)
            if (path / BEST).exists():  # the search was killed while it removed the secret trials
                return self._publish_best(folder, cost, None)
            state = self._read_or_start(folder)
            start = secrets.token_hex(16)
            self._reserve(path, state, start)
            n_finished = sum(trial.finished for trial in state.trials)
            while n_finished < state.number:
                state = self._run_next(folder, state, n_finished, watch, start)
                n_finished = sum(trial.finished for trial in state.trials)
            self._close(state, start)
            best = self.best_trial(state.trials)
            if self.settings.secret_trials is not None:
                return self._publish_best(folder, cost, best)
            if best is None:
                return Outcome(cost, best=None, chosen=None, score=None, trials=state.trials)
            return Outcome(
                cost,
                best=self.trial_folder(path, best.number),
                chosen=best.chosen,
                score=best.score,
                trials=state.trials,
            )

    @property
    def _chooses_beforehand(self) -> bool:
        """True if all settings are chosen before the first trial."""
        return self.settings.sampler == "random" and self.settings.secret_trials is None

    def _choices(self, count: int) -> list[dict[str, Value]]:
        return [sampling.choose_settings(self.space, self.settings, (), self._seed(k)) for k in range(count)]

    def _seed(self, number: int) -> int:
        """Returns the seed of a choice that is not secret."""
        return (self.settings.seed * 100_003 + number) % 2**32

    def _begin(self, folder: RunFolder) -> None:
        """Writes the plan of the search, or checks that the folder's plan is the same."""
        plan = strict_json.to_plain(
            {"settings": asdict(self.settings), "space": self.space.plain(), "config": to_yaml(self.base)}
        )
        path = folder.path / PLAN
        if not path.exists():
            folder.write(PLAN, strict_json.dumps({**plan, _SIZES: self._sizes}, indent=2).encode())
            return
        before = {name: part for name, part in json.loads(files.read(path)).items() if name != _SIZES}
        if before != json.loads(strict_json.dumps(plan)):
            raise FedprivError(
                f"{folder.path} contains a search with other settings; use the same settings to resume it, or another "
                "folder (--out)"
            )
        self.check_sizes(folder.path)

    @property
    def _trials_folder(self) -> str:
        """Name of the folder with all trials."""
        if self.settings.secret_trials is None:
            return SEEN
        return _SECRET

    def best_trial(self, trials: Sequence[Trial]) -> Trial | None:
        """Returns the first of the trials with the best score; None if no trial has a score."""
        scored = [trial for trial in trials if trial.score is not None]
        if self.settings.maximizes:
            sign = 1
        else:
            sign = -1
        return max(scored, key=lambda trial: (sign * (trial.score or 0.0), -trial.number), default=None)

    def trial_folder(self, path: Path, number: int) -> Path:
        """Returns the folder of a trial of the search in `path`."""
        return path / self._trials_folder / f"{number:04d}"

    def _read_or_start(self, folder: RunFolder) -> State:
        """Returns the state of the folder's search; draws the number of trials, if secret, when there is none."""
        (folder.path / self._trials_folder).mkdir(0o700, exist_ok=True)
        state = self.read_state(folder.path)
        if state is not None:
            return state
        if self.settings.secret_trials is not None:
            number = self.settings.number.draw(secrets.randbits(53) * 2.0**-53)
        else:
            number = self.settings.trials
        return self._write_state(folder, State(number, secrets.token_hex(16)))

    def read_state(self, path: Path) -> State | None:
        """Reads the state of the search in a folder; None if it has not begun, or if its secret trials are removed."""
        file = path / self._trials_folder / STATE
        if not file.exists():
            return None
        content = json.loads(files.read(file))
        return State(content["number"], content["name"], tuple(Trial(**trial) for trial in content["trials"]))

    def _write_state(self, folder: RunFolder, state: State) -> State:
        folder.check()
        files.write_whole(
            folder.path / self._trials_folder / STATE, strict_json.dumps(asdict(state), indent=2).encode()
        )
        return state

    def _run_next(self, folder: RunFolder, state: State, n_finished: int, watch: Watch, start: str) -> State:
        """Runs the next trial, or resumes the one that was begun; returns the new state."""
        if len(state.trials) == n_finished:
            # the settings of a secret trial must not reveal its number
            if self.settings.secret_trials is None:
                seed = self._seed(n_finished)
            else:
                seed = secrets.randbits(32)
            past = [(trial.chosen, trial.score) for trial in state.trials]
            chosen = sampling.choose_settings(self.space, self.settings, past, seed)
            if not self._chooses_beforehand:
                check_same_cost(self.plan(chosen), self.plans[0], chosen)
            state = self._write_state(folder, replace(state, trials=(*state.trials, Trial(n_finished, chosen))))
        if self.base.privacy.budget is not None:
            Budget(self.base.privacy.budget).advance(state.name, start, len(state.trials))
        trial = state.trials[-1]
        # reports of secret trials would reveal their scores
        if self.settings.secret_trials is not None:
            watch = _ignore_report
        path = self.trial_folder(folder.path, trial.number)
        score = run_trial(self.config(trial.chosen), path, trial.number, self.settings, watch)
        finished = replace(trial, score=score, finished=True)
        return self._write_state(folder, replace(state, trials=(*state.trials[:-1], finished)))

    def _reserve(self, path: Path, state: State, start: str) -> None:
        """Charges the lifetime budget for the whole search, once, and records that this process runs it.

        The budget records the number of trials that have begun: an older copy of the folder raises an error.
        """
        if self.base.privacy.budget is None:
            return
        budget = Budget(self.base.privacy.budget)
        if not budget.holds(state.name):
            if state.trials:
                raise FedprivError(
                    f"the budget {budget.path} contains no reservation for {path}, although trials of this search have "
                    "begun: restore the newest copy of the budget file"
                )
            budget.begin(state.name, start, budget.rounds_of(state.name), 0)
            data = digest_data(self.base.model_dump(mode="json"))
            budget.reserve(compute_reserved_cost(self.settings, self.plans, data, str(path), state.name))
        begun = budget.rounds_of(state.name)
        if len(state.trials) < begun:
            raise FedprivError(
                f"{path} is an older copy of the search: the budget {budget.path} records {begun} started trials, but "
                f"this folder contains {len(state.trials)}. Continue with the newest copy of the folder, or search "
                "again in another folder"
            )
        budget.begin(state.name, start, begun, begun)

    def _close(self, state: State, start: str) -> None:
        """Marks the search as finished in the lifetime budget."""
        if self.base.privacy.budget is not None:
            budget = Budget(self.base.privacy.budget)
            budget.advance(state.name, start, state.number)
            budget.close(state.name, "rounds")

    def _publish_best(self, folder: RunFolder, cost: SearchCost, best: Trial | None) -> Outcome:
        """Stores the best model with its settings, and removes all trials of a search with secret trials."""
        path = folder.path
        published = path / BEST
        if not published.exists():
            # first completed in a hidden folder, so that a kill leaves no partial copy
            draft = path / f".{BEST}"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(0o700)
            facts: dict[str, Any] = {"chosen": None, "score": None}
            if best is not None:
                facts = {"chosen": best.chosen, "score": best.score}
            facts["software"] = get_software_versions()
            files.write_whole(draft / FOUND, strict_json.dumps(facts, indent=2).encode())
            if best is not None:
                shutil.copy(self.trial_folder(path, best.number) / "model.pt", draft / "model.pt")
                files.write_whole(draft / "config.yaml", to_yaml(self.config(best.chosen)).encode())
            draft.rename(published)
        shutil.rmtree(path / _SECRET, ignore_errors=True)
        facts = json.loads(files.read(published / FOUND))
        if facts["chosen"]:
            best_folder = published
        else:
            best_folder = None
        return Outcome(cost, best=best_folder, chosen=facts["chosen"], score=facts["score"], trials=())


def _ignore_report(number: int, report: RoundReport) -> None:
    """A `Watch` that does nothing, for secret trials."""
