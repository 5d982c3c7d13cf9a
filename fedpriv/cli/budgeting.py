"""Creates lifetime budgets, and prints their spending."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from fedpriv.cli.printing import out, print_json, print_rows, spinner_with_text
from fedpriv.errors import ConfigError, summarize_error
from fedpriv.planning import align_columns
from fedpriv.privacy import AT_WORK, VOIDED, Budget, Entry, from_opacus
from fedpriv.privacy.accounting import round_up

_STATES = {
    AT_WORK: AT_WORK,
    "rounds": "finished",
    "budget": "stopped at its own limit",
    "strategy": "stopped early, whole plan charged",
    "metric": "stopped early, whole plan charged",
    "nonfinite": "failed, whole plan charged",
    VOIDED: "kept state of earlier examples: epsilon is infinite",
}


def create(file: Path, **terms: Any) -> None:  # noqa: ANN401 - the terms of `Budget.create`
    """Creates a budget; see `Budget.create` for the arguments."""
    Budget.create(file, **terms)


def charge_opacus(file: Path, source: Path, name: str | None, *, poisson_sampling: bool) -> None:
    """Charges a budget for a training with Opacus.

    Args:
        file: The budget.
        source: A checkpoint of `PrivacyEngine.save_checkpoint`, or a JSON file with an accountant's `state_dict` or
            history.
        name: Name of the training; None uses the name of the file. The same history under the same name is charged
            once.
        poisson_sampling: True if batches were Poisson draws.

    Raises:
        ConfigError: If the file cannot be read or has no history, or the sampling of batches is not given.
        FedprivError: If the budget rejects the training.
    """
    if not poisson_sampling:
        fix = (
            "must be set, since only training with Poisson batches can be charged (other sampling has another privacy "
            "cost): add this flag if the batches were Poisson draws, which is the default of Opacus's make_private"
        )
        raise ConfigError("--poisson-sampling", poisson_sampling, fix)
    cost = from_opacus(_read_history(source), name or source.stem, poisson_sampling=True)
    budget = Budget(file)
    budget.reserve(cost)
    if cost.run_name is not None:
        budget.close(cost.run_name, "rounds")


def _read_history(source: Path) -> object:
    """Returns the state of an accountant from a file, without executing code in it."""
    try:
        if source.suffix == ".json":
            return json.loads(source.read_text(encoding="utf-8"))
        state = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, ValueError, pickle.UnpicklingError) as error:
        reason = summarize_error(error)
        fix = (
            f"cannot be read ({reason}): name a checkpoint of PrivacyEngine.save_checkpoint, or a .json file written "
            "by json.dump(engine.accountant.state_dict(), file)"
        )
        raise ConfigError("--opacus", str(source), fix) from None
    if isinstance(state, dict):
        return state.get("privacy_accountant_state_dict", state)
    return state


def print_balance(file: Path, *, as_json: bool) -> None:
    """Prints the limit of a budget, the spending of each run, and the remaining budget.

    Raises:
        LedgerError: If the budget is missing, damaged or altered.
    """
    with spinner_with_text("counting"):
        balance = Budget(file).balance()
    if as_json:
        print_json(balance.to_json())
        return
    terms = balance.terms
    rows = {
        "budget": f"epsilon={terms.epsilon:g} of the data {terms.data!r}, for all runs together",
        "spent": str(balance.spent) if balance.entries else "nothing",
        "left": f"one more run of up to epsilon={balance.left:.3g}" if balance.left else "nothing",
        "holds": balance.holds,
    }
    print_rows(rows)
    if balance.entries:
        table = [["run", "reserved", "epsilon alone", "state"], *map(_line, balance.entries)]
        for line in align_columns(table):
            out.print(escape(line))


def _line(entry: Entry) -> list[str]:
    """Returns the table row of a run."""
    state = _STATES.get(entry.state, entry.state)
    if entry.returned:
        state += ", rest returned"
    return [entry.run, entry.time, round_up(entry.epsilon), state]
