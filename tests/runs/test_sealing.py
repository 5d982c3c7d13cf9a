"""A run whose secret is elsewhere goes on as any other; a sealed one is read, and its noise never comes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from commands import LONG, fedpriv, refused, result_of, trained
from key_places import MemoryKeyring, age_place, env_place, memory_keyring, place  # noqa: F401 - fixtures

import fedpriv as fp
from fedpriv.audit.other_runs import _read
from fedpriv.errors import FedprivError
from fedpriv.reports.sinks import Jsonl
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.run_files import RunFiles
from fedpriv.runs.sealing import move_secrets, seal_run

SECRET = 0xFEDC_BA98_7654_3210_0123_4567_89AB_CDEF
SEEDED = f"secret_seed={SECRET}"


def checkpoint_of(run: Path) -> Checkpoint:
    return Checkpoint.load(run / "checkpoint.pt", torch.device("cpu"))


def everything(run: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file())


def shows(run: Path, *words: str) -> str:
    done = fedpriv("show", str(run), *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def cut_short(config: Path, folder: Path) -> Path:
    """What a kill after three rounds leaves of a run."""
    folder.mkdir()
    shutil.copy(config, folder)
    training = fp.config.build(fp.config.load_config(config, [SEEDED]), folder)
    writer = Jsonl(folder / "metrics.jsonl")
    for _, report in zip(range(3), training, strict=False):
        writer.write(report)
        training.save()
    training.folder.close()
    return folder


def test_a_run_with_its_secret_elsewhere_is_the_same_run_and_resumes(place: str, tmp_path: Path):  # noqa: F811
    plain = trained(tmp_path / "plain", SEEDED)
    secret = trained(tmp_path / "secret", SEEDED, f"log.secrets={place}")
    assert f"{SECRET:x}".encode() in everything(plain)
    assert f"{SECRET:x}".encode() not in everything(secret)
    assert result_of(plain)["head"] == result_of(secret)["head"]  # the same noise, bit for bit
    assert fedpriv("key", str(plain)).stdout == fedpriv("key", str(secret)).stdout
    assert "encrypted" in fedpriv("secrets", str(secret)).stdout

    folder = cut_short(secret / "config.yaml", tmp_path / "stopped")
    before = checkpoint_of(folder).secret_seed
    done = fedpriv("resume", str(folder))
    assert done.exit_code == 0, done.output
    assert result_of(folder)["head"] == result_of(secret)["head"]
    assert checkpoint_of(folder).secret_seed == before


def test_without_the_key_a_run_is_shown_and_does_not_go_on(env_place: str, tmp_path: Path, monkeypatch):  # noqa: F811
    run = trained(tmp_path / "a", f"log.secrets={env_place}")
    monkeypatch.delenv("RUN_KEY")
    shows(run)
    assert fedpriv("account", str(run), str(run)).exit_code == 0
    assert "encrypted, and state that never left" in fedpriv("statement", str(run)).stdout
    assert "RUN_KEY" in refused("key", str(run))
    assert "RUN_KEY" in refused("train", "--extend", str(run), "rounds=8", "--out", str(tmp_path / "b"))
    (run / "result.json").unlink()
    assert "RUN_KEY" in refused("resume", str(run))
    assert "RUN_KEY" in refused("train", str(run / "config.yaml"), "--out", str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def test_a_secret_moves_between_places(place: str, tmp_path: Path):  # noqa: F811
    run = trained(tmp_path / "a", SEEDED)
    key = fedpriv("key", str(run)).stdout
    assert "encrypted" in fedpriv("secrets", str(run), "--to", place).stdout
    assert f"{SECRET:x}".encode() not in everything(run)
    assert fedpriv("key", str(run)).stdout == key
    assert "as they are" in fedpriv("secrets", str(run), "--to", "folder").stdout
    assert f"{SECRET:x}".encode() in everything(run)
    assert "choose folder" in refused("secrets", str(run), "--to", "vault")


def test_a_key_in_the_keyring_ends_with_its_last_use(memory_keyring: MemoryKeyring, tmp_path: Path):  # noqa: F811
    run = trained(tmp_path / "a", "log.secrets=keyring")
    (old,) = memory_keyring.entries
    move_secrets(run, "keyring")
    (new,) = memory_keyring.entries
    assert new != old
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    seal_run(run)
    assert not memory_keyring.entries
    with pytest.raises(FedprivError, match="has no key"):
        checkpoint_of(copy).randomness(copy)
    # a seal that was cut off after that is finished by another one, though the seed can no longer be read
    assert seal_run(copy) is None
    assert checkpoint_of(copy).is_sealed


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A run and its sealed copy, and what sealing it printed."""
    folder = tmp_path_factory.mktemp("sealed")
    run = trained(folder / "whole" / "a", SEEDED, "compute.state=disk", "network.cohort.fixed=3")
    copy = Path(shutil.copytree(run, folder / "sealed" / "a"))
    done = fedpriv("seal", str(copy))
    assert done.exit_code == 0, done.output
    return run, copy, done.stdout


def test_nothing_of_the_secret_or_the_private_state_is_left(sealed: tuple[Path, Path, str]):
    run, copy, _ = sealed
    assert [*run.glob("client_state.*")]
    assert not [*copy.glob("client_state.*")]
    assert f"{SECRET:x}".encode() in everything(run)
    left = everything(copy)
    before = checkpoint_of(run)
    randomness = before.randomness()
    for secret in (f"{SECRET:x}".encode(), f"{SECRET}".encode(), randomness.digest_key(), randomness.data_key()):
        assert secret not in left
        assert secret.hex().encode() not in left
    after = checkpoint_of(copy)
    assert not after.data
    assert {name for name, value in after.progress.items() if value is not None} == {"round"}
    assert after.round == before.round
    with pytest.raises(FedprivError, match="is sealed"):
        after.randomness(copy)


def test_ledger_statement_and_verification_still_work(sealed: tuple[Path, Path, str], tmp_path: Path):
    run, copy, printed = sealed
    key = fedpriv("key", str(run)).stdout.strip()
    assert key in printed
    (tmp_path / "key").write_text(key)
    for words in ((), ("--verify", str(tmp_path / "key"))):
        assert shows(copy, *words).replace(str(copy), "") == shows(run, *words).replace(str(run), "")
    costs = [fedpriv("account", str(folder), "--json").stdout.replace(str(folder), "") for folder in (run, copy)]
    assert costs[0] == costs[1]
    page, sealed_page = (fedpriv("statement", str(folder)).stdout for folder in (run, copy))
    assert "checkpoint.pt holds the secret" in page
    assert "was destroyed (fedpriv seal)" in sealed_page
    assert RunFiles.read(copy).counted == RunFiles.read(run).counted
    assert _read(run).noise == _read(copy).noise  # two runs with one noise are still noticed
    audited = fedpriv("audit", str(copy))
    assert "Traceback" not in audited.output
    # and an edit is still noticed
    altered = Path(shutil.copytree(copy, tmp_path / "altered"))
    ledger = (altered / "ledger.jsonl").read_text()
    (altered / "ledger.jsonl").write_text(ledger.replace('"round":1', '"round":2', 1))
    assert fedpriv("show", str(altered)).exit_code != 0


def test_a_sealed_run_neither_resumes_nor_extends(sealed: tuple[Path, Path, str], tmp_path: Path):
    copy = Path(shutil.copytree(sealed[1], tmp_path / "a"))
    assert "is sealed: its secrets were destroyed" in refused(
        "train", "--extend", str(copy), "rounds=8", "--out", str(tmp_path / "b")
    )
    assert "is sealed" in refused("key", str(copy))
    assert "is sealed already" in refused("seal", str(copy))
    (copy / "result.json").unlink()
    for words in ((), ("--fresh-noise",)):
        assert "is sealed: its secrets were destroyed" in refused("resume", str(copy), *words)
    assert "is sealed" in refused("secrets", str(copy), "--to", "env:RUN_KEY")


def test_an_unfinished_run_is_sealed_on_request_alone(tmp_path: Path):
    run = trained(tmp_path / "a", SEEDED, *LONG)
    short = cut_short(run / "config.yaml", tmp_path / "short")
    assert "has made 3 of 40 rounds" in refused("seal", str(short))
    assert f"{SECRET:x}".encode() in everything(short)
    assert fedpriv("seal", str(short), "--unfinished").exit_code == 0
    assert f"{SECRET:x}".encode() not in everything(short)
    assert "is sealed" in refused("resume", str(short))
