"""Formulates a guarantee in plain words, for readers who have to file it and do not read code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.errors import format_count
from fedpriv.privacy import Record, RunCost
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.statistics.description import PURPOSE

UNITS = {
    "sample": "one record (a row, an image) of one data holder",
    "client": "everything that one data holder has",
}
RELATIONS = {
    "replace_one": "with any other value in its place, the results would have been nearly the same",
    "add_remove": "without it, the results would have been nearly the same",
}
SCALE = (
    "An attacker who starts from even odds becomes at most 53 % certain at an epsilon of 0.1, at most 74 % at "
    "1, and at most 96 % at 3. An epsilon above 10 guarantees almost nothing, and an entry without a bound "
    "guarantees nothing."
)
TESTS = "the test data and every number computed on them"
NUMBER_OF_TESTS = "the number of test records"
_DIVIDED = {"iid": "at random", "in_order": "in its order"}


def describe_public_facts(tests: str = TESTS) -> str:
    """Returns a sentence on the facts that count as public; for private test data only their number."""
    return (
        "Treated as public, and not protected: the number of data holders, how many records each has, their "
        f"names; all settings; the code; {tests}; parameters that are not trained."
    )


def describe_frozen_networks(data_sections: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns a sentence on each frozen network through which data were processed.

    Args:
        data_sections: The sections `data` of configurations.
    """
    sentences: list[str] = []
    for section in data_sections:
        features = section.get("extractor")
        if features is None:
            continue
        name = f"the network in {features['file']}"
        if features.get("sha256"):
            name += f" (SHA-256 {features['sha256']})"
        sentences.append(
            f"Inputs are features that {name} computed from single examples. The network is treated as public: "
            "epsilon covers neither it nor its training data."
        )
    return [*dict.fromkeys(sentences)]


PERSON = "For a person with several records, the column for the group applies, not the column for one record."
ASSUMED = (
    "Assumed, and not checked here: each data holder bounds its query results and adds noise to them as the "
    "code specifies, settings were not chosen by trying them on these data, and no one else can read a data "
    "holder's machine."
)
EXTENDED = (
    "A run that extends an earlier one includes its releases. Assumed: the results of the earlier run did not "
    "decide the number of further rounds and their noise."
)
COUNTED = (
    "A run that counts the releases of an earlier one, such as statistics, includes their cost. Assumed: their results "
    "did not decide the number of rounds and their noise."
)
SEARCHED = (
    "Assumed, and not checked here: each data holder bounds its query results and adds noise to them as the "
    "code specifies, and no one else can read a data holder's machine. The privacy cost includes the choice of the "
    "settings of part 1 by trials; it is assumed that nothing else was chosen by trying it on these data."
)
_THOUGHT = {
    "replace_one": "considered two of its values equally likely can become {} certain of one",
    "add_remove": "considered it equally likely to be in the data or not can become {} certain of either",
}


def describe_rounding(spent: PrivacySpent) -> tuple[str, ...]:
    """Returns sentences on the rounding of noise, and on unproved parts of it; none without a finite epsilon."""
    if math.isinf(spent.epsilon):
        return ()
    if not spent.float64_noise:
        return (
            "Noise drawn on a processor is rounded as real numbers would be, so its privacy cost is proved "
            "for the actual bits.",
        )
    kinds = " and ".join(spent.float64_noise)
    return (
        f"Not proved: that the lowest bits of {kinds}, which is added in float64 and then rounded to a grid, "
        "reveal nothing about the data. The privacy cost is computed for real numbers.",
    )


def describe_disclosure(subject: str, spent: PrivacySpent) -> str:
    """Returns a sentence on the largest disclosure by `subject`, e.g. "All that left"."""
    if math.isinf(spent.epsilon):
        return f"Not private: {spent}."
    sure = _THOUGHT[spent.relation.partition("(")[0]].format(_format_certainty(spent.epsilon))
    delta = format_small(spent.delta)
    return (
        f"{subject} reveals at most epsilon={round_up(spent.epsilon)} (delta={delta}) about "
        f"{UNITS[spent.unit]}: someone who {sure}, except in an event of probability {_rare(spent.delta)}."
    )


def join_distinct(texts: Iterable[str]) -> str:
    """Joins the distinct texts."""
    return "; ".join(dict.fromkeys(texts))


def format_data_name(config: Mapping[str, Any]) -> str:
    """Returns the name of a configuration's data, and the path if there is one."""
    data = config["data"]
    for name in ("train", "path", "file", "dataset"):
        if data.get(name):
            return f"{data['name']} ({data[name]})"
    return str(data["name"])


def describe_purpose(config: Mapping[str, Any]) -> str:
    """Returns as text the model and the algorithm of a configuration, or the statistics that a run released."""
    if config["strategy"]["name"].startswith(PURPOSE):
        return str(config["strategy"]["name"])
    text = f"training a model of type {config['model']['name']} with the algorithm {config['strategy']['name']}"
    if config["strategy"]["variant"] == "published":
        text += " as published"
    standardize = config.get("data", {}).get("standardize")
    if standardize:
        columns = standardize["columns"] or ["all numeric columns"]
        text += f", after a release of the means and deviations of {', '.join(columns)}, by which they are standardised"
    return text


def describe_holders(config: Mapping[str, Any], cost: RunCost, names: Sequence[str] = ()) -> str:
    """Returns as text the number of data holders and of their records."""
    text = format_count(cost.n_clients, "data holder")
    if names:
        text += f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
    sizes = cost.sizes
    if sizes and len(sizes) == 1:
        text += f" with {format_count(sizes[0], 'record')}"
    elif sizes and min(sizes) == max(sizes):
        text += f" with {format_count(sizes[0], 'record')} each, {sum(sizes)} in all"
    elif sizes:
        text += f" with {min(sizes)} to {max(sizes)} records each, {sum(sizes)} in all"
    kind = config["data"].get("partition", {}).get("kind", "")
    if kind and kind != "by_writer" and cost.n_clients != 1:
        text += f"; one table, divided {_DIVIDED.get(kind, 'by labels')}"
    return text


def describe_software(results: Iterable[Mapping[str, Any] | None]) -> str:
    """Returns the software of runs, from their results."""
    unknown = "not recorded: unfinished, or by an early version"
    return join_distinct(str((result or {}).get("software") or unknown) for result in results)


def replace_terms(text: str) -> str:
    """Replaces the code's words for clients and examples with the page's words."""
    return text.replace("client", "data holder").replace("examples", "records")


def describe_unit(spent: PrivacySpent) -> str:
    """Returns the privacy unit, with its meaning."""
    return f"{UNITS[spent.unit]}; {RELATIONS[spent.relation.partition('(')[0]]}"


def describe_releases(records: Iterable[Record]) -> str:
    """Returns the number and kinds of releases, and the noise in them."""
    kinds = dict[tuple[str, str, str], list[float]]()
    for record in records:
        noise = record.noise_multiplier
        levels = kinds.setdefault((record.query, record.mechanism, record.unit), [])
        levels.append(min(noise, default=math.inf) if isinstance(noise, tuple) else noise)
    return "; ".join(_kind(*kind, levels) for kind, levels in kinds.items()) or "none"


def _kind(query: str, law: str, unit: str, levels: list[float]) -> str:
    if law == "none":
        return f"{len(levels)} x {query}, without private noise"
    smallest = min(levels)
    largest = max(levels)
    if largest <= smallest * 1.001:
        number = f"{smallest:.3g}"
    else:
        number = f"{smallest:.3g} to {largest:.3g}"
    unit_name = "data holder"
    if unit == "sample":
        unit_name = "record"
    return f"{len(levels)} x {query}, {law} noise of {number} times what one {unit_name} can change"


def format_small(value: float) -> str:
    """Formats a small number: 1e-5 rather than 1e-05."""
    return f"{value:.3g}".replace("e-0", "e-")


def format_change_time(path: Path) -> str:
    """Returns when a file was last changed, in UTC."""
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M}"


def format_current_time() -> str:
    """Returns the time in UTC, to the minute."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _rare(delta: float) -> str:
    if delta == 0:
        return "0"
    return f"about 1 in {1 / delta:,.0f}".replace(",", " ")


def _format_certainty(epsilon: float) -> str:
    """Formats the largest posterior probability of one of two values, from even odds, rounded up."""
    percent = 100 / (1 + math.exp(-epsilon))
    if percent < 99.9:
        return f"at most {math.ceil(percent * 10) / 10:g} %"
    return "more than 99.9 %"
