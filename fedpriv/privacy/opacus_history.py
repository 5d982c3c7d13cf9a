"""Converts between the history of an Opacus accountant and the privacy cost of a run. Opacus itself is not imported.

The history is a list of (noise multiplier, sample rate, steps). Each step is a Gaussian release on a Poisson batch.
Neighbouring data sets differ in one example that only one of them contains. The noise multiplier is the standard
deviation over the clip norm, which is the sensitivity under `add_remove`. So a step and a fedpriv record with these
fields are the same event (Abadi et al. 2016).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting.epochs import compute_costs
from fedpriv.privacy.accounting.events import group_histories
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.record import Record
from fedpriv.settings.checks import validate_arguments

Steps = tuple[float, float, int]
"""Noise multiplier, sample rate and number of steps."""
AccountantName = Literal["prv", "rdp", "gdp"]
_MOST_STEPS = 1_000_000


@validate_arguments("from_opacus")
def from_opacus(accountant: object, name: str, *, poisson_sampling: bool) -> RunCost:
    """Returns the privacy cost of training with Opacus, for `fedpriv.total` and lifetime budgets.

    Guarantee: the cost is an upper bound for data sets that differ in one example, with the number of examples public,
    if the history is complete and the batches were Poisson draws.

    Args:
        accountant: A `PrivacyEngine`, its accountant, the accountant's `state_dict()`, or the history itself: triples
            of noise multiplier, sample rate and number of steps.
        name: Name of the training in tables and messages; two trainings with equal histories need two names.
        poisson_sampling: True if the batches were Poisson draws, as `make_private` makes them by default. The history
            does not contain this. Opacus counts shuffled batches as if they were Poisson draws, which is too low a
            cost, so False raises PrivacyError.

    Returns:
        The cost of the run.

    Raises:
        ConfigError: If the argument is no history of Opacus, or a number in it is out of range.
        PrivacyError: If the batches were not Poisson draws.

    Examples:
        >>> import fedpriv
        >>> cost = fedpriv.from_opacus([(1.5, 0.01, 100)], "earlier training", poisson_sampling=True)
        >>> fedpriv.total([cost], delta=1e-5).epsilon < 1
        True
    """
    if not poisson_sampling:
        raise PrivacyError(
            f"{name} shuffled its data instead of drawing Poisson batches: Opacus' accountant reports less than "
            "the true privacy cost, and no tight cost is known. Train again with Poisson batches"
        )
    history = _history(accountant)
    records = [
        Record(
            round=0,
            query="gradient",
            index=0,
            mechanism="gaussian",
            noise_multiplier=noise,
            unit="sample",
            relation="add_remove",
            sampling="poisson",
            rate=rate,
            shared="sizes public",
        )
        for noise, rate, steps in history
        for _ in range(steps)
    ]
    # the same history under the same name is the same training: a budget takes it once
    name_of_history = hashlib.blake2b(repr(("opacus", name, history)).encode(), digest_size=16).hexdigest()
    return RunCost(name, records, n_clients=1, float64_noise=("noise of Opacus",), run_name=f"opacus:{name_of_history}")


@validate_arguments("to_opacus")
def to_opacus(records: Sequence[Record], mechanism: AccountantName = "prv", *, client: int = 0) -> dict[str, Any]:
    """Returns a client's releases as the `state_dict` of an accountant of Opacus.

    Load it with `opacus.accountants.create_accountant(mechanism).load_state_dict(...)`. The mechanism `"gdp"` is an
    approximation below the true cost.

    Args:
        records: A run's releases: `result.charged`, or `training.ledger.records`.
        mechanism: The accountant: `"prv"` (default), `"rdp"` or `"gdp"`.
        client: Number of the client; 0 by default.

    Returns:
        The history and the mechanism, as Opacus stores them.

    Raises:
        PrivacyError: If Opacus' accountants cannot compute the cost of a release. They support only independent
            Gaussian noise under `add_remove`, on all examples or on Poisson batches.
        ConfigError: If no record concerns this client.

    Examples:
        >>> import fedpriv
        >>> cost = fedpriv.from_opacus([(1.5, 0.01, 100)], "earlier training", poisson_sampling=True)
        >>> fedpriv.to_opacus(cost.records)["history"]
        [(1.5, 0.01, 100)]
    """
    fix = "Opacus' accountants cover only single examples, added or removed: use fedpriv's accounting for this run"
    for record in records:
        if (record.unit, record.relation) != ("sample", "add_remove"):
            raise PrivacyError(f"a release has unit={record.unit}, relation={record.relation}; {fix}")
        if record.mechanism != "gaussian" or record.non_private or record.time is not None:
            raise PrivacyError(
                f"a release ({record.query} of round {record.round}) lacks independent Gaussian noise; {fix}"
            )
    if not records:
        raise ConfigError("records", [], "must contain at least one release, e.g. result.charged")
    steps = list[Steps]()
    for event, count in _list_events(records, client).items():
        if event.selection not in ("full", "poisson"):
            raise PrivacyError(
                f"batches are drawn by the sampling {event.selection}, for which Opacus has no accounting; {fix}"
            )
        steps.append((event.noise, event.rate, count))
    return {"history": steps, "mechanism": mechanism}


def _list_events(records: Sequence[Record], client: int) -> Mapping[Any, int]:
    """Returns the events of a client, each with its count."""
    widest = max(max(record.clients or (0,)) for record in records)
    lists = [record.noise_multiplier for record in records if record.clients is None]
    declared = max((len(noises) for noises in lists if isinstance(noises, tuple)), default=1)
    n_clients = max(widest + 1, declared, client + 1)
    for members, history in group_histories(Counter(compute_costs(records, n_clients)), n_clients):
        if client in members and history:
            return history
    raise ConfigError("client", client, f"no release involves this client; the {n_clients} clients are numbered from 0")


def _history(accountant: object) -> list[Steps]:
    """Returns the history that an object of Opacus holds, with its numbers checked."""
    value: Any = getattr(accountant, "accountant", accountant)
    value = getattr(value, "history", value)
    if isinstance(value, Mapping):
        value = value.get("history")
    fix = (
        "must be Opacus' PrivacyEngine, its accountant, or the accountant's history [(noise, sample rate, steps), ...]"
    )
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError("accountant", type(accountant).__name__, f"contains no steps: {fix}")
    history = list[Steps]()
    for number, entry in enumerate(value):
        try:
            noise, rate, steps = float(entry[0]), float(entry[1]), int(entry[2])
            is_entry = len(entry) == 3 and steps == entry[2]
        except (TypeError, ValueError, IndexError):
            raise ConfigError(f"accountant.history[{number}]", entry, fix) from None
        if not (is_entry and noise >= 0 and math.isfinite(noise) and 0 < rate <= 1 and steps >= 1):
            needs = "a noise multiplier of at least 0, a sample rate in (0, 1] and a whole number of steps"
            raise ConfigError(f"accountant.history[{number}]", entry, f"must be {needs}")
        history.append((noise, rate, steps))
    if sum(steps for _, _, steps in history) > _MOST_STEPS:
        raise ConfigError(
            "accountant.history",
            len(history),
            f"has more than {_MOST_STEPS} steps in all: split the history into shorter ones",
        )
    return history
