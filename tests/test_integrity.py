"""Whatever is edited in a run's folder, `show`, `show --json` and `resume` say so instead of a smaller number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forging import lines_of, plain, rewrite
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config, to_yaml
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.chain import linked
from fedpriv.privacy.ledger_file import read_ledger
from fedpriv.reports.sinks import Jsonl

CONFIG = str(Path(__file__).with_name("run.yaml"))
SHORT = [
    "data.partition.n_clients=3",
    "rounds=6",
    "secret_seed=7",
    "compute.threads=1",
    "log={checkpoint_every: 2, tensorboard: false}",
]
Edit = Callable[[Path], None]


def fedpriv(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert fedpriv("train", CONFIG, "--out", str(folder / "finished"), *SHORT)[0] == 0
    (folder / "stopped").mkdir()
    config = load_config(Path(CONFIG), SHORT)
    (folder / "stopped" / "config.yaml").write_text(to_yaml(config))
    sink = Jsonl(folder / "stopped" / "metrics.jsonl")
    for report in build(config, folder / "stopped"):
        sink.write(report)
        if report.round == 5:  # the checkpoint is of round 4, the ledger holds 5 records
            break
    return folder


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.reports.picture.draw", lambda run, path: None)


@pytest.fixture
def finished(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "finished", tmp_path / "run"))


@pytest.fixture
def stopped(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "stopped", tmp_path / "run"))


def check_called_out(folder: Path, kind: str) -> None:
    code, out, err = fedpriv("show", str(folder))
    assert code in (1, 2), out
    assert kind in out + err
    assert "epsilon=" not in next((line for line in out.splitlines() if line.startswith("privacy")), ""), out
    code, out, err = fedpriv("show", str(folder), "--json")
    assert code in (1, 2), out
    assert kind in out + err
    assert code == 2 or (json.loads(out)["epsilon"], json.loads(out)["integrity"]) == (None, kind)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = fedpriv("resume", str(folder))
    assert code == 2, out
    assert kind in err, err
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def in_ledger(edit: Callable[[list[bytes]], list[bytes]]) -> Edit:
    def apply(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        path.write_bytes(b"\n".join(edit(path.read_bytes().split(b"\n")[:-1])) + b"\n")

    return apply


def in_line(number: int, **changes: object) -> Edit:
    def changed(line: bytes) -> bytes:
        raw = json.loads(line)
        assert all(raw[name] != value for name, value in changes.items())
        return json.dumps(raw | changes, separators=None if number == 0 else (",", ":")).encode()

    return in_ledger(lambda lines: [changed(line) if at == number else line for at, line in enumerate(lines)])


def in_json(name: str, line: int | None = None, **changes: object) -> Edit:
    """In `result.json`, or in a line of `metrics.jsonl`; `...` takes a field out."""

    def apply(folder: Path) -> None:
        texts = [(folder / name).read_text()] if line is None else (folder / name).read_text().splitlines()
        raw = json.loads(texts[line or 0])
        assert all(raw[field] != value for field, value in changes.items())
        texts[line or 0] = json.dumps({k: v for k, v in (raw | changes).items() if v is not ...})
        (folder / name).write_text("\n".join(texts) + "\n")

    return apply


def in_config(section: str | None, **changes: object) -> Edit:
    def apply(folder: Path) -> None:
        raw = yaml.safe_load((folder / "config.yaml").read_text())
        (raw if section is None else raw[section]).update(changes)
        (folder / "config.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))

    return apply


def in_metrics(edit: Callable[[list[str]], list[str]]) -> Edit:
    def apply(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))

    return apply


def forged(folder: Path, **changes: object) -> list[str]:
    """A whole new ledger whose chain fits."""
    path = folder / "ledger.jsonl"
    header, *records = lines_of(path)
    return rewrite(path, [header, *(record | changes for record in records)])


def with_a_new_chain(**changes: object) -> Edit:
    return lambda folder: void(forged(folder, **changes))


def void(_: object) -> None:
    """Of an edit."""


def downgraded(folder: Path) -> None:
    """A ledger of a format without a chain."""
    header, *records = lines_of(folder / "ledger.jsonl")
    lines = [header | {"fedpriv_ledger": 2}, *(record | {"noise_multiplier": 1e3} for record in records)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def thorough(folder: Path, **changes: object) -> None:
    """The ledger, and its hash in metrics and result; without the key."""
    heads = forged(folder, **changes)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"head": heads[row["releases"]]} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if (folder / "result.json").exists():
        result = plain(json.loads((folder / "result.json").read_text())) | {"head": heads[-1]}
        (folder / "result.json").write_text(json.dumps(linked(result, heads[-1], b"")))


def noisier(folder: Path) -> None:
    """A thousand times the noise, and no checkpoint that would know better."""
    thorough(folder, noise_multiplier=1e3)
    (folder / "checkpoint.pt").unlink()


def cut_to(folder: Path, rounds: int) -> None:
    """As if there had been so many rounds."""
    in_ledger(lambda lines: lines[: 1 + rounds])(folder)
    in_metrics(lambda rows: rows[:rounds])(folder)


FIELDS: dict[str, Any] = {
    "round": 9,
    "query": "message",
    "index": 1,
    "mechanism": "banana",
    "noise_multiplier": 5000.0,
    "unit": "client",
    "relation": "add_remove",
    "clients": [0],
    "norm": "l1",
    "bound": 0.5,
    "sampling": "poisson",
    "rate": 0.5,
    "shared": "sizes public",
    "trust": "central",
    "non_private": "because",
    "digest": "00",
    "attempt": 1,
}
ALTERED: dict[str, Edit] = {
    **{f"record {name}": in_line(3, **{name: value}) for name, value in FIELDS.items()},
    "noise of the last record": in_line(5, noise_multiplier=5000.0),
    "deleted": in_ledger(lambda lines: lines[:2] + lines[3:]),
    "duplicated": in_ledger(lambda lines: [*lines[:3], *lines[2:]]),
    "last duplicated": in_ledger(lambda lines: [*lines, lines[-1]]),
    "swapped": in_ledger(lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]]),
    "inserted": in_ledger(lambda lines: [*lines[:3], lines[1], *lines[3:]]),
    "garbage": in_ledger(lambda lines: [*lines[:3], b"garbage", *lines[4:]]),
    "header n_clients": in_line(0, n_clients=30),
    "header delta": in_line(0, delta=0.1),
    "header config": in_line(0, config="00"),
    "header planned": in_line(0, planned=2),
    "header format": in_line(0, fedpriv_ledger=2),
    "config epsilon": in_config("privacy", epsilon=1.0),
    "config larger epsilon": in_config("privacy", epsilon=30.0),
    "config noise": in_config("privacy", noise_multiplier=50.0),
    "config rounds": in_config(None, rounds=60),
    "metrics head": in_json("metrics.jsonl", 1, head="0" * 64),
    "metrics without head": in_json("metrics.jsonl", 1, head=...),
    "metrics releases": in_json("metrics.jsonl", 1, releases=1),
    "a new chain": with_a_new_chain(noise_multiplier=1e3),
    "a new chain, banana": with_a_new_chain(mechanism="banana"),
    "a new chain in all files but the checkpoint": lambda folder: thorough(folder, noise_multiplier=1e3),
    "no chain": downgraded,
}
INCOMPLETE: dict[str, Edit] = {
    "last record": in_ledger(lambda lines: lines[:-1]),
    "most records": in_ledger(lambda lines: lines[:2]),
    "all records": in_ledger(lambda lines: lines[:1]),
    "ledger and metrics": lambda folder: (in_ledger(lambda lines: lines[:3])(folder), in_metrics(lambda _: [])(folder))[
        0
    ],
    "metrics but the first rounds": in_metrics(lambda rows: rows[:2]),
    "first round": in_metrics(lambda rows: rows[1:]),
    "a round in the middle": in_metrics(lambda rows: rows[:1] + rows[2:]),
    "metrics": lambda folder: (folder / "metrics.jsonl").unlink(),
    "checkpoint cut": lambda folder: void((folder / "checkpoint.pt").write_bytes(b"PK")),
}
OF_RESULTS: dict[str, tuple[Edit, str]] = {
    "epsilon": (in_json("result.json", epsilon=0.02), "altered"),
    "larger epsilon": (in_json("result.json", epsilon=30.0), "altered"),
    "delta": (in_json("result.json", delta=1e-9), "altered"),
    "unit": (in_json("result.json", unit="client"), "altered"),
    "per client": (in_json("result.json", per_client_epsilon=[0.1, 0.1, 0.1]), "altered"),
    "not covered": (in_json("result.json", not_covered=["nothing"]), "altered"),
    "accuracy": (in_json("result.json", test_accuracy=1.0), "altered"),
    "fewer releases": (in_json("result.json", releases=3), "altered"),
    "more releases": (in_json("result.json", releases=30), "altered"),
    "ended": (in_json("result.json", ended="strategy"), "altered"),
    "its own hash": (in_json("result.json", chain=...), "altered"),
    "last round": (in_metrics(lambda rows: rows[:-1]), "incomplete"),
    "a round more": (in_metrics(lambda rows: [*rows, rows[-1].replace('"round": 6', '"round": 7')]), "altered"),
    "all files, without the checkpoint": (noisier, "altered"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_stopped_run_that_was_edited(stopped: Path, name: str) -> None:
    ALTERED[name](stopped)
    check_called_out(stopped, "altered")


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_stopped_run_that_was_cut(stopped: Path, name: str) -> None:
    INCOMPLETE[name](stopped)
    check_called_out(stopped, "incomplete")


@pytest.mark.parametrize("name", ALTERED)
def test_a_finished_run_that_was_edited(finished: Path, name: str) -> None:
    ALTERED[name](finished)
    check_called_out(finished, "altered")


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_finished_run_that_was_cut(finished: Path, name: str) -> None:
    INCOMPLETE[name](finished)
    check_called_out(finished, "incomplete")


@pytest.mark.parametrize("name", OF_RESULTS)
def test_a_result_that_was_edited(finished: Path, name: str) -> None:
    edit, kind = OF_RESULTS[name]
    edit(finished)
    check_called_out(finished, kind)


def test_a_stopped_run_without_a_checkpoint(stopped: Path) -> None:
    (stopped / "checkpoint.pt").unlink()
    check_called_out(stopped, "incomplete")


# --- what is no edit -------------------------------------------------------------------------------------------------


def test_a_stopped_run_is_sound_and_goes_on_to_the_same_end(stopped: Path, finished_bytes: dict[str, bytes]) -> None:
    with (stopped / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round":17,"query":"gra')
    in_metrics(lambda rows: rows[:4])(stopped)  # a power cut may take what the checkpoint does not count
    in_config("log", csv=True)(stopped)
    code, out, _ = fedpriv("show", str(stopped), "--json")
    facts = json.loads(out)
    assert (code, facts["integrity"], facts["findings"]) == (0, "sound", [])
    assert 0 < facts["epsilon"] < 3
    assert fedpriv("resume", str(stopped))[0] == 0
    assert {name: (stopped / name).read_bytes() for name in finished_bytes} == finished_bytes


@pytest.fixture
def finished_bytes(originals: Path) -> dict[str, bytes]:
    return {name: (originals / "finished" / name).read_bytes() for name in ("ledger.jsonl", "metrics.jsonl")}


def test_a_finished_run_is_sound_without_its_checkpoint(finished: Path) -> None:
    """It holds the secret seed, so it is not handed on."""
    (finished / "checkpoint.pt").unlink()
    code, out, _ = fedpriv("show", str(finished))
    assert code == 0
    assert "6 records in a chain" in out


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["stopped", "finished"])
def test_earlier_formats_are_shown_to_have_no_chain(name: str, number: int, originals: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(originals / name, tmp_path / "run"))
    header, *records = lines_of(folder / "ledger.jsonl")
    fewer = ("attempt", "shared") if number == 1 else ()
    lines = [{k: header[k] for k in ("n_clients", "delta")} | {"fedpriv_ledger": number}]
    lines += [{k: v for k, v in record.items() if k not in fewer} for record in records]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in range(len((folder / "metrics.jsonl").read_text().splitlines())):
        in_json("metrics.jsonl", line, head=...)(folder)
    if name == "finished":
        in_json("result.json", head=..., chain=..., seal=...)(folder)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    del saved["head"]
    torch.save(saved, folder / "checkpoint.pt")
    code, out, err = fedpriv("show", str(folder))
    assert code == 0, err
    assert f"of format {number}, which has no chain" in out
    assert json.loads(fedpriv("show", str(folder), "--json")[1])["integrity"] == "unchained"
    key = tmp_path / "key"
    key.write_text(fedpriv("key", str(folder))[1])
    code, out, _ = fedpriv("show", str(folder), "--verify", str(key))
    assert (code, "no seals" in out) == (1, True)
    if (name, number) == ("stopped", 2):
        assert fedpriv("resume", str(folder))[0] == 0
        assert "chain" not in (folder / "ledger.jsonl").read_text()
        assert fedpriv("show", str(folder))[0] == 0


# --- for whoever holds the key ----------------------------------------------------------------------------------------


@pytest.fixture
def key(originals: Path, tmp_path: Path) -> str:
    path = tmp_path / "run.key"
    path.write_text(fedpriv("key", str(originals / "finished"))[1])
    return str(path)


@pytest.mark.parametrize("name", ["stopped", "finished"])
def test_what_the_run_wrote_is_sealed_with_its_key(name: str, key: str, originals: Path) -> None:
    code, out, _ = fedpriv("show", str(originals / name), "--verify", key)
    assert code == 0
    assert "every line sealed with the key" in out
    assert json.loads(fedpriv("show", str(originals / name), "--verify", key, "--json")[1])["sealed"] is True


def test_a_forgery_that_fits_in_all_files_is_found_by_the_key_alone(finished: Path, key: str) -> None:
    thorough(finished, noise_multiplier=1e3)
    (finished / "checkpoint.pt").unlink()
    epsilon = account(read_ledger(finished / "ledger.jsonl"), 3, 1e-5).epsilon
    assert epsilon < 0.01
    result = plain(json.loads((finished / "result.json").read_text()))
    result |= {"epsilon": epsilon, "per_client_epsilon": [epsilon] * 3}
    (finished / "result.json").write_text(json.dumps(linked(result, result["head"], b"")))
    assert fedpriv("show", str(finished))[0] == 0
    code, out, _ = fedpriv("show", str(finished), "--verify", key)
    assert code == 1
    assert "altered" in out
    assert "line 1 is not sealed with this key" in out


def test_a_result_of_somebody_without_the_key(finished: Path, key: str) -> None:
    result = plain(json.loads((finished / "result.json").read_text())) | {"test_accuracy": 1.0}
    (finished / "result.json").write_text(json.dumps(linked(result, result["head"], b"another")))
    assert fedpriv("show", str(finished))[0] == 0
    code, out, _ = fedpriv("show", str(finished), "--verify", key)
    assert (code, "result.json is not sealed with this key" in out) == (1, True)


def test_a_resume_holds_the_key(stopped: Path) -> None:
    """Records past the checkpoint and the metrics: nothing but their seals tells that they were made anew."""
    in_metrics(lambda rows: rows[:4])(stopped)
    whole = (stopped / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines = lines_of(stopped / "ledger.jsonl")
    rewrite(stopped / "ledger.jsonl", [*lines[:-1], lines[-1] | {"noise_multiplier": 1e3}])
    forged_last = (stopped / "ledger.jsonl").read_bytes().splitlines(keepends=True)[-1]
    (stopped / "ledger.jsonl").write_bytes(b"".join([*whole[:-1], forged_last]))
    assert fedpriv("show", str(stopped))[0] == 0
    code, _, err = fedpriv("resume", str(stopped))
    assert (code, "line 6 is not sealed with this key" in err) == (2, True), err


def test_another_key_and_no_key(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("00" * 32)
    code, out, _ = fedpriv("show", str(finished), "--verify", str(tmp_path / "key"))
    assert (code, "another run's key" in out) == (1, True)
    (tmp_path / "key").write_text("not a key")
    assert "holds no key" in fedpriv("show", str(finished), "--verify", str(tmp_path / "key"))[2]
    assert "one run" in fedpriv("show", str(finished), str(finished), "--verify", str(tmp_path / "key"))[2]
