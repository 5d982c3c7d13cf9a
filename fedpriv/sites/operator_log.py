"""The log of a running site: a file of JSON lines with levels and a bounded size, and the same lines for people."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal, TextIO

from fedpriv.config.base import Section
from fedpriv.settings import Count

LOG = "log.jsonl"
_N_OLD_FILES = 4
_TEXT_FIELDS = ("time", "level", "logger", "text", "event", "traceback")


class LogSettings(Section):
    """Settings of a site's log.

    Attributes:
        level: The lowest level that is written: `info` has a line for each reply, `warning` only for refusals and
            problems.
        max_megabytes: Size of a file at which the next is started. Five files are kept.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_megabytes: Count = 10


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, logger, text, and the facts of an event."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = _fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ReadableLines(logging.Formatter):
    """Formats a record as one line for people. It omits tracebacks, which may contain data."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return format_record(_fields(record))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields of a line of the log."""
    line: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "text": record.getMessage(),
    }
    return line | getattr(record, "facts", {})


def format_record(line: Mapping[str, Any]) -> str:
    """Returns a line of the log as text for people: time (UTC), level, text, and the facts that the text omits.

    Args:
        line: The fields of the line.
    """
    text = str(line.get("text", ""))
    facts = [f"{name}={value}" for name, value in line.items() if name not in _TEXT_FIELDS and str(value) not in text]
    time = str(line.get("time", ""))[:19].replace("T", " ")
    return " ".join([time, f"{line.get('level', '')}:", text, *facts])


class _PrivateFiles(RotatingFileHandler):
    """Opens its files for their owner only, since a traceback may contain data."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(fd, "a", encoding="utf-8")


@contextmanager
def write_log(folder: Path, settings: LogSettings) -> Generator[Path]:
    """Writes fedpriv's log records to a site's folder until the block ends; yields the path of the file."""
    path = folder / LOG
    handler = _PrivateFiles(path, maxBytes=settings.max_megabytes * 10**6, backupCount=_N_OLD_FILES, encoding="utf-8")
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("fedpriv")
    handler.setLevel(settings.level.upper())
    earlier_level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level for level in (handler.level, earlier_level) if level))
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        logger.setLevel(earlier_level)
        handler.close()


@contextmanager
def print_log(stream: TextIO) -> Generator[None]:
    """Prints warnings and connections as lines for people until the block ends.

    Args:
        stream: Output stream.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ReadableLines())
    handler.addFilter(_concerns_operator)
    logger = logging.getLogger("fedpriv")
    earlier_level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level for level in (logging.INFO, earlier_level) if level))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(earlier_level)


def _concerns_operator(record: logging.LogRecord) -> bool:
    facts = getattr(record, "facts", {})
    return record.levelno >= logging.WARNING or facts.get("event") in ("connected", "disconnected")


def read_lines(folder: Path, limit: int) -> list[dict[str, Any]]:
    """Returns the last lines of a site's log, oldest first.

    Args:
        folder: The site's folder.
        limit: Maximum number of lines.
    """
    lines: list[dict[str, Any]] = []
    for number in range(_N_OLD_FILES + 1):
        path = folder / (LOG if number == 0 else f"{LOG}.{number}")
        if path.exists():
            lines = [*_parsed(path), *lines]
        if len(lines) >= limit:
            break
    return lines[-limit:]


def read_log(folder: Path, event: str, limit: int) -> list[dict[str, Any]]:
    """Returns the last events of one kind, oldest first, from the newest file that has any.

    Args:
        folder: The site's folder.
        event: The kind: `answered`, `refused`, `proposed`.
        limit: Maximum number of events.
    """
    for path in (folder / LOG, folder / f"{LOG}.1"):
        if path.exists():
            events = [line for line in _parsed(path) if line.get("event") == event]
            if events:
                return events[-limit:]
    return []


def _parsed(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a log file, without a line that a crash cut off."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                lines.append(line)
    return lines
