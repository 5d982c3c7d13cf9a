"""The largest reply counter that each site has signed, stored by the server of a star or by a neighbour.

A counter is written to disk before the reply that contains it is used. The receiver therefore cannot use a site's row
and then, after a crash, forget that the site has released it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.sites.reply_counter import InvalidCounter, ReplyCounter
from fedpriv.storage import files

COUNTERS = "counters.json"


class CounterStore:
    """Reply counters of several sites in one plan, and their file.

    Args:
        folder: Folder of the file.
        plan: Hash of the plan.
        verifying_keys: The Ed25519 public key of each site, 32 bytes, by number.
        write: Writes a file of this name to the folder, atomically.

    Raises:
        FedprivError: If the file cannot be read.
    """

    def __init__(
        self, folder: Path, plan: str, verifying_keys: Mapping[int, bytes], write: Callable[[str, bytes], object]
    ) -> None:
        self._plan = plan
        self._verifying_keys = verifying_keys
        self._write = write
        self._counters: dict[int, ReplyCounter] = {}
        self._has_changed = False
        path = folder / COUNTERS
        if not path.exists():
            return
        try:
            stored = [ReplyCounter.model_validate(fields) for fields in json.loads(files.read(path))]
            for counter in stored:
                counter.check(plan, counter.site, verifying_keys[counter.site])
        except (ValueError, TypeError, KeyError, InvalidCounter) as error:
            raise FedprivError(
                f"{path} cannot be read, or belongs to another plan: restore the newest copy of this file"
            ) from error
        self._counters = {counter.site: counter for counter in stored}

    def largest(self, site: int) -> ReplyCounter | None:
        """Returns the largest counter that a site has signed; None if there is none. It is sent to the site."""
        return self._counters.get(site)

    def take(self, site: int, counter: ReplyCounter) -> bool:
        """Stores a counter; returns True if it is smaller than one that the site has signed before.

        Raises:
            InvalidCounter: If the site has not signed it, or if it belongs to another plan.
        """
        counter.check(self._plan, site, self._verifying_keys[site])
        before = self._counters.get(site)
        if before is not None and before.exceeds(counter.records, counter.notices):
            return True
        if before is None or counter.exceeds(before.records, before.notices):
            self._counters[site] = counter
            self._has_changed = True
        return False

    def save(self) -> None:
        """Writes the counters to disk if one has grown; called before the replies with these counters are used.

        Raises:
            FedprivError: If the file cannot be written.
        """
        if not self._has_changed:
            return
        stored = [counter.model_dump() for _, counter in sorted(self._counters.items())]
        self._write(COUNTERS, json.dumps(stored).encode() + b"\n")
        self._has_changed = False
