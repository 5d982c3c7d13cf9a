"""The log of a running site: a file of JSON lines with levels, which does not grow without end."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

from fedpriv.config.base import Section
from fedpriv.settings.checks import Count

LOG = "log.jsonl"
_N_OLD_FILES = 4


class LogSettings(Section):
    """How much a site writes to its log.

    Attributes:
        level: The least level that is written: `info` has a line for each answer, `warning` only refusals and trouble.
        max_megabytes: Size of a file before the next is begun. Five files are kept.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_megabytes: Count = 10


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, logger, text, and the facts of an event."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _PrivateFiles(RotatingFileHandler):
    """Opens its files for their owner alone: a traceback may hold data."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(fd, "a", encoding="utf-8")


@contextmanager
def writing_log(folder: Path, settings: LogSettings) -> Generator[Path]:
    """Writes what fedpriv logs to a site's folder until the block ends; yields the path of the file."""
    path = folder / LOG
    handler = _PrivateFiles(path, maxBytes=settings.max_megabytes * 10**6, backupCount=_N_OLD_FILES, encoding="utf-8")
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("fedpriv")
    earlier_level = logger.level
    logger.addHandler(handler)
    logger.setLevel(settings.level.upper())
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        logger.setLevel(earlier_level)
        handler.close()


def read_log(folder: Path, event: str, limit: int) -> list[dict[str, Any]]:
    """Returns the last events of one kind, oldest first, from the newest file that has any.

    Args:
        folder: The site's folder.
        event: The kind: `answered`, `refused`, `proposed`.
        limit: The most that are returned.
    """
    for path in (folder / LOG, folder / f"{LOG}.1"):
        events: list[dict[str, Any]] = []
        if path.exists():
            for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = json.loads(text)
                except ValueError:  # a line that a crash cut off
                    continue
                if isinstance(line, dict) and line.get("event") == event:
                    events.append(line)
        if events:
            return events[-limit:]
    return []
