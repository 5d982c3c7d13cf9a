"""A search: plan it, run its trials one after another, and find the best. What was killed goes on and is paid once."""

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
from fedpriv.config.files import override
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.budget import Budget
from fedpriv.runs.budget_reservation import data_of
from fedpriv.runs.results import RoundReport, software
from fedpriv.settings.checks import checked
from fedpriv.storage import files, strict_json, strict_yaml
from fedpriv.storage.folder import RunFolder
from fedpriv.tuning import sampling, scores
from fedpriv.tuning.price import SearchPrice, check_alike, plan_of, price_of, reservation
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Space, Value, overrides_of
from fedpriv.tuning.trials import Watch, run_trial

PLAN, STATE = "search.json", "trials.json"
SEEN, _SECRET, BEST, FOUND = "trials", "secret", "best", "best.json"
_SHOWN_TO_PLAN = 8  # choices that are planned beforehand where all must cost alike


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: From 0.
        chosen: What was chosen, by field.
        score: Its score; None if it is not known yet, or not finite.
        finished: Whether it has ended.
    """

    number: int
    chosen: dict[str, Value]
    score: float | None = None
    finished: bool = False


@dataclass(frozen=True)
class State:
    """How far a search is.

    Attributes:
        number: How many trials there are; secret where it was drawn.
        noise: Name of the search in a lifetime budget.
        trials: Those that were begun.
    """

    number: int
    noise: str
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes:
        price: What it cost.
        best: Folder of the best run, or of its model where the others stay hidden; None if no trial has a score.
        chosen: The best settings.
        score: Their score.
        trials: All trials; empty where they stay hidden.
    """

    price: SearchPrice
    best: Path | None
    chosen: dict[str, Value] | None
    score: float | None
    trials: tuple[Trial, ...]


@checked("search")
@dataclass(frozen=True)
class Search:
    """A search for good settings of a run.

    Guarantee: `price.spent` holds for everything that the search publishes, whichever settings its scores made it try.
    It is known before the first trial begins, and a search above its limit, or its data's budget, does not begin.

    Args:
        base: The run; each trial changes what the space names.
        space: What may be changed.
        settings: How many trials, and how.

    Raises:
        ConfigError: settings cannot be searched.
    """

    base: Config
    space: Space
    settings: SearchSettings

    @staticmethod
    def read(path: Path) -> Search:
        """The search of a folder.

        Raises:
            FedprivError: it holds none, or its plan is damaged.
        """
        try:
            told = json.loads(files.read(path / PLAN))
            base = check(Config, strict_yaml.read(told["config"], str(path / PLAN)))
            return Search(base, Space.of(told["space"]), SearchSettings(**told["settings"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedprivError(f"{path / PLAN} holds no search, or is damaged ({error}); restore it") from None

    def __post_init__(self) -> None:
        if self.base.secret_seed is not None:
            fix = "leave it out: trials with equal settings would have the same noise"
            raise ConfigError("secret_seed", "(given)", fix)
        if self.settings.score_noise is not None:
            scores.check(self.base)
        if self.settings.hidden is not None and self.base.privacy.budget is not None:
            fix = "would tell how many trials a hidden search had: leave it out"
            raise ConfigError("privacy.budget", self.base.privacy.budget, fix)

    @cached_property
    def price(self) -> SearchPrice:
        """What the whole search costs.

        Raises:
            BudgetExhausted: more than its limit.
            ConfigError: trials would cost differently where they must not.
        """
        return price_of(self.settings, self.plans)

    @cached_property
    def plans(self) -> Sequence[Plan]:
        """The plan of every trial, or one for all."""
        if self._known:
            return [self.plan(one) for one in self._choices(self.settings.trials)]
        drawn = self._choices(min(_SHOWN_TO_PLAN, self.settings.trials))
        found = [self.plan(one) for one in drawn]
        for plan, chosen in zip(found, drawn, strict=True):
            check_alike(plan, found[0], chosen)
        return found[:1]

    def plan(self, chosen: dict[str, Value]) -> Plan:
        """What a trial with these choices releases, its score included.

        Raises:
            ConfigError: it cannot work.
        """
        found, noise = plan_of(self.config(chosen)), self.settings.score_noise
        if noise is None:
            return found
        return scores.with_score(found, noise)

    def config(self, chosen: dict[str, Value]) -> Config:
        """The run with what was chosen.

        Raises:
            ConfigError: it cannot work.
        """
        given = self.base.model_dump(mode="json")
        if self.base.seed is None:
            seed = self.settings.seed
        else:
            seed = self.base.seed
        # the search reserves all trials at once
        if self.settings.score_noise is not None:
            private = ["log.test=false"]
        else:
            private = []
        for setting in (*overrides_of(chosen), f"seed={seed}", "privacy.budget=null", *private):
            given = override(given, setting)
        return check(Config, given)

    def run(self, path: Path, watch: Watch) -> Outcome:
        """Run all trials, or those that are left.

        Args:
            path: Folder of the search. If it holds this search already, that goes on.
            watch: Is told of every round; never where trials stay hidden.

        Raises:
            FedprivError: the folder holds another search, or a trial cannot run.
            BudgetExhausted: see `price`; or the lifetime budget does not allow the search.
        """
        price = self.price
        with RunFolder(path) as folder:
            self._begin(folder)
            if (path / BEST).exists():  # it was killed while it hid what must not be seen
                return self._hide(folder, price, None)
            state = self._state(folder)
            self._reserve(path, state)
            while len(open_ := [one for one in state.trials if one.finished]) < state.number:
                state = self._next(folder, state, len(open_), watch)
            self._close(state)
            best = self.best_of(state.trials)
            if self.settings.hidden is not None:
                return self._hide(folder, price, best)
            if best is None:
                where = None
            else:
                where = self.folder_of(path, best.number)
            if best is None:
                found = (None, None)
            else:
                found = (best.chosen, best.score)
            return Outcome(price, where, *found, state.trials)

    @property
    def _known(self) -> bool:
        """Whether all choices are known beforehand."""
        return self.settings.sampler == "random" and self.settings.hidden is None

    def _choices(self, count: int) -> list[dict[str, Value]]:
        return [sampling.choose(self.space, self.settings, (), self._seed(k)) for k in range(count)]

    def _seed(self, number: int) -> int:
        """A hidden trial's place must not show in its settings."""
        return (self.settings.seed * 100_003 + number) % 2**32

    @property
    def _told(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "space": self.space.plain(), "config": to_yaml(self.base)}

    def _begin(self, folder: RunFolder) -> None:
        place = folder.path / PLAN
        if not place.exists():
            folder.write(PLAN, strict_json.dumps(strict_json.plain(self._told), indent=2).encode())
        elif json.loads(files.read(place)) != json.loads(strict_json.dumps(strict_json.plain(self._told))):
            raise FedprivError(f"{folder.path} holds another search; choose another folder (--out)")

    @property
    def _inside(self) -> str:
        if self.settings.hidden is None:
            return SEEN
        return _SECRET

    def best_of(self, trials: Sequence[Trial]) -> Trial | None:
        """The first of those with the best score; None if none has one."""
        scored, sign = [one for one in trials if one.score is not None], 1 if self.settings.maximizes else -1
        return max(scored, key=lambda one: (sign * (one.score or 0.0), -one.number), default=None)

    def folder_of(self, path: Path, number: int) -> Path:
        """Where a trial of the search in `path` is."""
        return path / self._inside / f"{number:04d}"

    def _state(self, folder: RunFolder) -> State:
        (folder.path / self._inside).mkdir(0o700, exist_ok=True)
        if (begun := self.begun(folder.path)) is not None:
            return begun
        hidden = self.settings.hidden is not None
        if hidden:
            number = self.settings.number.draw(secrets.randbits(53) * 2.0**-53)
        else:
            number = self.settings.trials
        return self._keep(folder, State(number, secrets.token_hex(16)))

    def begun(self, path: Path) -> State | None:
        """How far the search in a folder is; None if it has not begun, or has been hidden."""
        place = path / self._inside / STATE
        if not place.exists():
            return None
        told = json.loads(files.read(place))
        return State(told["number"], told["noise"], tuple(Trial(**one) for one in told["trials"]))

    def _keep(self, folder: RunFolder, state: State) -> State:
        folder.check()
        files.write_whole(folder.path / self._inside / STATE, strict_json.dumps(asdict(state), indent=2).encode())
        return state

    def _next(self, folder: RunFolder, state: State, done: int, watch: Watch) -> State:
        """Begin a trial, or go on with the one that was begun."""
        if len(state.trials) == done:
            if self.settings.hidden is None:
                seed = self._seed(done)
            else:
                seed = secrets.randbits(32)
            past = [(one.chosen, one.score) for one in state.trials]
            chosen = sampling.choose(self.space, self.settings, past, seed)
            if not self._known:
                check_alike(self.plan(chosen), self.plans[0], chosen)
            state = self._keep(folder, replace(state, trials=(*state.trials, Trial(done, chosen))))
        trial = state.trials[-1]
        # where scores are hidden, the reports that would betray them are shown to nobody
        if self.settings.hidden is not None:
            shown: Watch = _show_nothing
        else:
            shown = watch
        place = self.folder_of(folder.path, trial.number)
        score = run_trial(self.config(trial.chosen), place, trial.number, self.settings, shown)
        ended = replace(trial, score=score, finished=True)
        return self._keep(folder, replace(state, trials=(*state.trials[:-1], ended)))

    def _reserve(self, path: Path, state: State) -> None:
        """Charge the lifetime budget for the whole search, once."""
        if self.base.privacy.budget is None:
            return
        budget = Budget(self.base.privacy.budget)
        if budget.holds(state.noise):
            return
        if state.trials:
            raise FedprivError(
                f"{budget.path} holds no reservation of {path}, whose trials have begun: restore its newest copy"
            )
        data = data_of(self.base.model_dump(mode="json"))
        budget.reserve(reservation(self.settings, self.plans, data, str(path), state.noise))

    def _close(self, state: State) -> None:
        if self.base.privacy.budget is not None:
            Budget(self.base.privacy.budget).close(state.noise, "rounds")

    def _hide(self, folder: RunFolder, price: SearchPrice, best: Trial | None) -> Outcome:
        """Keep the best model and its settings, and remove everything else."""
        path, kept = folder.path, folder.path / BEST
        if not kept.exists():
            made = path / f".{BEST}"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(0o700)
            if best is None:
                told: dict[str, Any] = {"chosen": None, "score": None}
            else:
                told = {"chosen": best.chosen, "score": best.score}
            told |= {"software": software()}
            files.write_whole(made / FOUND, strict_json.dumps(told, indent=2).encode())
            if best is not None:
                shutil.copy(self.folder_of(path, best.number) / "model.pt", made / "model.pt")
                files.write_whole(made / "config.yaml", to_yaml(self.config(best.chosen)).encode())
            made.rename(kept)
        shutil.rmtree(path / _SECRET, ignore_errors=True)
        told = json.loads(files.read(kept / FOUND))
        return Outcome(price, kept if told["chosen"] else None, told["chosen"], told["score"], ())


def _show_nothing(number: int, report: RoundReport) -> None:
    """A `Watch` that keeps a trial's rounds to itself."""
