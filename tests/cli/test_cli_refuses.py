"""What commands refuse, in one line and without leaving anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import DIGITS, SMALL, refused, trained


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=-3", "rounds = -3: must be a whole number from 1 to 1 000 000"),
        ("privacy.clip.bound=0", "privacy.clip.bound = 0: must be a positive, finite number"),
        ("privacy.delta=0", "privacy.delta = 0: Gaussian noise needs delta > 0"),
        ("network.cohort.fixed=6", "network.cohort.fixed = 6: there are only 5 clients"),
        ("strategy.name=iadm_prox", "strategy = 'iadm_prox': unknown; did you mean 'iadmm_prox'"),
        ("data={name: mnist, root: nowhere, partition: {kind: iid, n_clients: 5}}", "nowhere"),
        ("data={name: femnist, root: nowhere, partition: {kind: by_writer}}", "no folder nowhere"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(override: str, message: str, tmp_path: Path):
    assert message in refused("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, override)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_run_is_refused(tmp_path: Path):
    folder = trained(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert f"{folder} holds another run; go on with it (fedpriv resume {folder})" in refused(
        "train", DIGITS, "--out", str(folder), *SMALL
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "is finished; look at it with: fedpriv show" in refused("resume", str(folder))


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path):
    assert "holds no run" in refused("resume", str(tmp_path))
    assert "holds no run" in refused("show", str(tmp_path))
