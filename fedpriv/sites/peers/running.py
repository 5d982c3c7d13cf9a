"""Runs a node until its neighbours no longer need it, and writes its rounds, its model and its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from fedpriv.sites.peers.node import Node
from fedpriv.sites.peers.node_report import NodeRound
from fedpriv.sites.recording import RESULT, ROUNDS, write_description, write_model
from fedpriv.storage import files, strict_json

_GREETING = 1.0  # seconds between two messages to unconnected neighbours
_SHORTEST, _LONGEST = 0.001, 0.05  # seconds to wait when there is nothing to do


class RoundLog:
    """The file with a line for each round of a node.

    Args:
        folder: The folder of the plan, inside the site's.
        n_finished: Number of finished rounds; later lines belong to a round that was stopped before its end.
    """

    def __init__(self, folder: Path, n_finished: int) -> None:
        path = folder / ROUNDS
        lines: list[bytes] = []
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
        files.write_whole(path, b"".join(lines[:n_finished]))
        self._lines = files.Appender(path)

    def append(self, report: NodeRound) -> None:
        """Appends the report of a round."""
        self._lines.append(strict_json.dumps(asdict(report)).encode() + b"\n")


def run_node(
    node: Node,
    spent: Callable[[], object],
    interval: float = 0.0,
    on_round: Callable[[NodeRound], object] = lambda report: None,
    on_end: Callable[[], object] = lambda: None,
) -> None:
    """Runs a node to its end, and then for as long as a neighbour may still need it.

    Args:
        node: The node; its neighbours must be able to reach it.
        spent: Returns the site's spending in all its plans, for the result.
        interval: Minimum time from one round to the next, in seconds.
        on_round: Called with the report of each round, once it is written.
        on_end: Called once the result is written.

    Raises:
        FedprivError: If the site could not reply to its own node, or a file could not be written; restart to resume.
    """
    log = RoundLog(node.folder, node.round)

    def report(finished: NodeRound) -> None:
        log.append(finished)
        on_round(finished)

    node.on_round = report
    is_stopped = threading.Event()
    greeting = threading.Thread(target=_greet, args=[node, is_stopped], name="greet", daemon=True)
    greeting.start()
    try:
        pause = _SHORTEST
        last_round = node.round
        while not node.ended:
            if node.round > last_round:
                time.sleep(interval)
                last_round = node.round
            if node.advance():
                pause = _SHORTEST
            else:
                node.wait(pause)
                pause = min(2 * pause, _LONGEST)
        write_result(node, spent())
        on_end()
        while not node.is_over:
            time.sleep(_LONGEST)
    finally:
        is_stopped.set()
        greeting.join()


def write_result(node: Node, spent: object) -> None:
    """Writes the node's model, or the statistics, and its result to the folder of the plan.

    Args:
        node: A node that has ended.
        spent: The site's spending in all its plans.
    """
    if node.resolved_plan.statistics is None:
        write_model(node.resolved_plan.model, node.model, node.folder)
    else:
        write_description(node.describe(), node.folder)
    result: Mapping[str, object] = {
        "ended": node.ended,
        "rounds": node.round,
        "plan": node.resolved_plan.hash,
        "spent": str(spent),
        "neighbours": {name: asdict(report) for name, report in node.neighbours.items()},
    }
    files.write_whole(node.folder / RESULT, strict_json.dumps(result, indent=2).encode() + b"\n")


def _greet(node: Node, is_stopped: threading.Event) -> None:
    try:
        while not is_stopped.is_set():
            node.greet()
            is_stopped.wait(_GREETING)
    except Exception as error:  # without greetings, returning neighbours would not be noticed
        node.stop(error)
