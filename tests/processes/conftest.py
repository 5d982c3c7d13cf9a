"""One group of processes for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from workers import Workers


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("group")) as found:
        yield found
