import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data sets; a test that needs it is skipped without it."""
    folder = os.environ.get("FEDPRIV_DATA")
    if not folder:
        pytest.skip("set FEDPRIV_DATA to a folder with mnist/ and femnist/ to run this test")
    return Path(folder)
