"""Lines of a round of 50 clients, over the same round written by hand, without privacy.

Each contender runs in a separate process with one thread, and the processes alternate (`contenders.py`). `client` clips
each client's whole update, as pfl-research does; `sample` clips every example's gradient, as opacus does. Peak memory
is the whole process: Python, torch and all imports of a contender.
"""

from __future__ import annotations

from functools import cache, partial
from statistics import median

import contenders
from rows import Effort, Found, Row
from subprocesses import apart

CLIENTS, ROUNDS, PROCESSES = 50, 3, 2
_CLIENT, _SAMPLE = "client", "sample"
_OVER = "round written by hand, no privacy"


@cache
def contest(model: str, effort: Effort) -> dict[tuple[str, str], dict[str, float]]:
    """Returns the cost of a round, by contender and unit: medians over processes."""
    competitors = [("plain", "none"), ("fedpriv", _CLIENT), ("opacus", _SAMPLE), ("fedpriv", _SAMPLE)]
    if effort.pfl:
        competitors.insert(1, ("pfl", _CLIENT))
    found: dict[tuple[str, str], list[dict[str, float]]] = {contender: [] for contender in competitors}
    for _ in range(1 if effort.smoke else PROCESSES):
        for name, unit in competitors:
            work = name, model, unit, effort.of(CLIENTS), effort.of(ROUNDS, 1)
            python = {"python": effort.pfl} if name == "pfl" and effort.pfl else {}
            found[name, unit].append(apart(contenders.cost, *work, effort=effort, **python))
    return {who: {unit: median(one[unit] for one in of) for unit in of[0]} for who, of in found.items()}


def line(model: str, level: str, unit: str, effort: Effort) -> Found:
    """Returns the contenders with the same privacy unit, and the plain one."""
    found = {who: of[unit] for who, of in contest(model, effort).items() if who[1] in (level, "none")}
    return Found({name: found[name, of] for name, of in found})


def _rows(model: str, title: str, aims: dict[str, str]) -> list[Row]:
    return [
        Row(f"round, {title}, 50 clients, {unit} level", _OVER, aim, partial(line, model, unit, "ms"))
        for unit, aim in aims.items()
    ]


ROWS = (
    *_rows("cnn", "CNN 26 010", {_CLIENT: ".55 of pfl", _SAMPLE: ".35 of opacus"}),
    Row("round, CNN 26 010, client level, peak memory", _OVER, "below pfl", partial(line, "cnn", _CLIENT, "MB"), "MB"),
    *_rows("linear", "softmax 7 850", {_CLIENT: ".2 of pfl", _SAMPLE: ".1 of opacus"}),
)
