"""The ledger forgets nothing: what is handed out was written first, and what does not fit is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from forging import plain, rewrite
from privacy_worlds import Listener, blank, clients_of, digits_of, record, with_record
from torch import Tensor

import fedpriv as fp
from fedpriv.clients.data_fingerprints import DataFingerprints
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.plan_filter import PlanFilter
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.ledger_file import FORMAT, read_ledger
from fedpriv.privacy.record import Record
from fedpriv.strategies.fedavg import AddMeanUpdate

SIZES = (20, 15)
PRIVACY = fp.Privacy(noise_multiplier=5.0)
record_of = partial(record, noise_multiplier=5.0)


def training_in(folder: Path, data=None, *, rounds: int = 8, privacy: fp.Privacy = PRIVACY, **options) -> fp.Training:
    folder.mkdir(exist_ok=True)
    return fp.Training(
        clients_of(data or digits_of(SIZES)),
        fp.inexact_admm(),
        privacy,
        rounds=rounds,
        folder=folder,
        checkpoint_every=3,
        compute=fp.Compute(dtype="float64", device="cpu"),
        **{"seed": 0, "secret_seed": 0, **options},
    )


def run_until(training: fp.Training, stop: int) -> None:
    for report in training:
        if report.round == stop:
            break


def stopped(folder: Path, stop: int = 5) -> Path:
    """A run of 8 rounds that stopped after ``stop``; its checkpoint is of round 3."""
    run_until(training_in(folder), stop)
    return folder / "ledger.jsonl"


def test_a_run_writes_a_header_and_one_line_for_each_release(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    header, *lines = path.read_text().splitlines()
    assert plain(json.loads(header)) == {"fedpriv_ledger": FORMAT, "n_clients": 2, "delta": 1e-5, "planned": 8}
    records = read_ledger(path)
    assert [record.round for record in records] == list(range(5))
    assert [json.loads(record.to_json()) for record in records] == [plain(json.loads(line)) for line in lines]
    assert {(r.query, r.index, r.mechanism, r.noise_multiplier, r.clients) for r in records} == {
        ("gradient", 0, "gaussian", 5.0, None)
    }


def test_epsilon_is_a_pure_function_of_the_file(tmp_path: Path) -> None:
    training = training_in(tmp_path)
    run_until(training, 8)
    for delta in (1e-6, 1e-5):
        assert account(read_ledger(tmp_path / "ledger.jsonl"), 2, delta) == account(training.ledger.records, 2, delta)
    assert account(read_ledger(tmp_path / "ledger.jsonl"), 2, 1e-5).epsilon == training.result().spent.epsilon


@dataclass(frozen=True)
class Suspicious(Listener):
    """A local step that looks at the file the moment it gets its answer."""

    path: Path = Path()
    seen: list[int] = field(default_factory=list)

    def __call__(self, received: Tensor, state: None, oracle) -> tuple[Tensor, None]:
        message = super().__call__(received, state, oracle)
        if self.path.exists():  # not while planning
            self.seen.append(len(read_ledger(self.path)))
        return message


def test_a_record_is_on_disk_before_its_value_is_used(tmp_path: Path) -> None:
    path, seen = tmp_path / "ledger.jsonl", []
    strategy = fp.Strategy(Suspicious([], sign=-1, path=path, seen=seen), AddMeanUpdate())
    training = fp.Training(clients_of(digits_of(SIZES)), strategy, PRIVACY, rounds=4, folder=tmp_path)
    run_until(training, 4)
    assert seen == [1, 2, 3, 4]


def test_the_file_only_ever_grows(tmp_path: Path) -> None:
    path, before = tmp_path / "ledger.jsonl", b""
    for _ in training_in(tmp_path):
        now = path.read_bytes()
        assert now.startswith(before) and len(now) > len(before)
        before = now


def test_another_runs_ledger_is_never_overwritten(tmp_path: Path) -> None:
    before = stopped(tmp_path).read_bytes()
    with pytest.raises(fp.LedgerError, match="another run"):
        training_in(tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_refused_release_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    plan = [record_of(index) for index in range(100)]
    ledger = Ledger(PlanFilter(plan, Accountant(2, 1e-5), 1.5), path)
    opened = 0
    with pytest.raises(fp.BudgetExhausted):
        for index in range(100):
            ledger.open(Release(record_of(index), torch.ones(2)))
            opened += 1
    assert 0 < opened < 100
    assert len(read_ledger(path)) == len(ledger.records) == opened
    assert (
        account(read_ledger(path), 2, 1e-5).epsilon <= 1.5 < account([*ledger.records, record_of(9)], 2, 1e-5).epsilon
    )


def test_a_file_that_cannot_be_written_gives_no_value(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(Accountant(2, 1e-5), path)
    ledger.open(Release(record_of(0), torch.ones(2)))
    path.rename(tmp_path / "moved.jsonl")
    path.mkdir()  # even root cannot append to a folder
    with pytest.raises(fp.LedgerError, match="not released"):
        ledger.open(Release(record_of(1), torch.ones(2)))
    assert len(ledger.records) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_gives_no_value(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(Accountant(2, 1e-5), path)
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(fp.LedgerError, match="not released"):
        ledger.open(Release(record_of(0), torch.ones(2)))
    assert len(ledger.records) == 0


def test_a_torn_last_line_is_cut_and_its_round_repeated(tmp_path: Path) -> None:
    path = stopped(tmp_path / "torn")
    whole = path.read_bytes()
    path.write_bytes(whole[:-17])
    run_until(training_in(tmp_path / "torn", resume=True), 8)
    unbroken = stopped(tmp_path / "unbroken", stop=8)
    assert path.read_bytes() == unbroken.read_bytes()


def test_reading_leaves_a_torn_file_alone(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    assert len(read_ledger(path)) == 4
    assert path.read_bytes() == torn


@pytest.mark.parametrize("damage", ["{}", "not json", '{"round": 1}', "[1]"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = stopped(tmp_path)
    lines = path.read_text().splitlines()
    lines[2] = damage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(fp.LedgerError, match="line 3 does not follow"):
        training_in(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", "5.0"),
        ("noise_multiplier", True),
        ("noise_multiplier", None),
        ("noise_multiplier", float("inf")),
        ("noise_multiplier", ["a"]),
        ("noise_multiplier", [[5.0]]),
        ("rate", "full"),
        ("rate", {}),
        ("round", 1.5),
        ("round", None),
        ("clients", [0.0, 1.0]),
        ("clients", 3),
        ("attempt", "0"),
        ("trust", 3),
        ("non_private", False),
        ("mechanism", ["gaussian"]),
        ("norm", None),
    ],
)
def test_a_record_with_a_field_of_another_kind_is_damaged(tmp_path: Path, field: str, value: object) -> None:
    """It would be priced as something else, or break what reads it."""
    path = tmp_path / "ledger.jsonl"
    raw = json.loads(record_of(0).to_json()) | {field: value}
    rewrite(path, [{"fedpriv_ledger": FORMAT, "n_clients": 1, "delta": 1e-5}, raw])
    with pytest.raises(fp.LedgerError, match="line 2 is damaged"):
        read_ledger(path)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    many = replace(record_of(1), clients=(0, 2), noise_multiplier=(5.0, 4.0), rate=(0.5, 1.0), sampling="poisson")
    exact = replace(record_of(2), mechanism="none", noise_multiplier=0.0, non_private="asked for")
    for one in (record_of(0), many, exact, replace(record_of(3), noise_multiplier=5, digest="ab", attempt=2**61)):
        assert Record.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "header",
    [
        '{"fedpriv_ledger": "2", "n_clients": 1, "delta": 1e-05}',
        '{"fedpriv_ledger": 7, "n_clients": 1.5, "delta": 1e-05}',
        '{"fedpriv_ledger": 7, "n_clients": 0, "delta": 1e-05}',
        '{"fedpriv_ledger": 7, "n_clients": 1, "delta": 1}',
        '{"fedpriv_ledger": 7, "n_clients": 1, "delta": NaN}',
        '{"fedpriv_ledger": true, "n_clients": 1, "delta": 1e-05}',
    ],
)
def test_a_header_of_another_kind_is_none(tmp_path: Path, header: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(f"{header}\n{record_of(0).to_json()}\n")
    with pytest.raises(fp.LedgerError, match="line 1 is not a ledger's header"):
        read_ledger(path)


@pytest.mark.parametrize("number", [1, FORMAT - 1, 99])
def test_a_ledger_of_another_format_is_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "ledger.jsonl"
    rewrite(path, [{"fedpriv_ledger": number, "n_clients": 1, "delta": 1e-5}, json.loads(record_of(0).to_json())])
    with pytest.raises(fp.LedgerError, match=f"is of format {number}, and this fedpriv reads format {FORMAT} alone"):
        read_ledger(path)


def test_a_lost_header_is_not_taken_for_one(tmp_path: Path) -> None:
    """Else the first record would be skipped as the header, and its round be free of charge."""
    path = stopped(tmp_path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(fp.LedgerError, match="line 1"):
        training_in(tmp_path, resume=True, fresh_noise=True)


def test_fewer_records_than_the_checkpoint_has_seen_are_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")
    with pytest.raises(fp.LedgerError, match="holds 2 records but the checkpoint has seen 3"):
        training_in(tmp_path, resume=True)


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path).unlink()
    with pytest.raises(fp.LedgerError, match="no epsilon"):
        training_in(tmp_path, resume=True)


def test_resume_repeats_to_the_bit_and_charges_once(tmp_path: Path) -> None:
    unbroken = training_in(tmp_path / "unbroken")
    run_until(unbroken, 8)
    stopped(tmp_path / "resumed")
    resumed = training_in(tmp_path / "resumed", resume=True)
    run_until(resumed, 8)
    assert torch.equal(unbroken.result().params, resumed.result().params)
    assert unbroken.result().spent == resumed.result().spent
    first, second = ((tmp_path / name / "ledger.jsonl").read_bytes() for name in ("unbroken", "resumed"))
    assert first == second


def test_what_was_released_after_the_checkpoint_counts_at_once(tmp_path: Path) -> None:
    """Five rounds were released, whatever the checkpoint of round 3 knows: the epsilon of the run covers them."""
    path = stopped(tmp_path)
    resumed = training_in(tmp_path, resume=True)
    assert resumed.result().spent.epsilon >= account(read_ledger(path), 2, 1e-5).epsilon


def test_a_replay_on_other_data_is_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    before = path.read_bytes()
    other = with_record(digits_of(SIZES), 1, 0, torch.ones(64, dtype=torch.float64), 7)
    with pytest.raises(fp.DataError, match="client 1: its examples are not those that this run began with"):
        run_until(training_in(tmp_path, other, resume=True), 8)
    assert path.read_bytes() == before


def test_a_replay_of_another_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of defence: the data are the same, and what is computed of them is not."""
    path = stopped(tmp_path)
    before = path.read_bytes()
    other = with_record(digits_of(SIZES), 1, 0, torch.ones(64, dtype=torch.float64), 7)
    monkeypatch.setattr(DataFingerprints, "check", lambda *_: None)
    with pytest.raises(fp.LedgerError, match="differs from the one on record"):
        run_until(training_in(tmp_path, other, resume=True), 8)
    assert path.read_bytes() == before


def test_fresh_noise_charges_the_repeated_rounds_again(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    resumed = training_in(tmp_path, resume=True, fresh_noise=True)
    run_until(resumed, 8)
    records = read_ledger(path)
    assert [record.round for record in records] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert resumed.result().spent == account(records, 2, 1e-5)
    digests = {(record.round, record.digest) for record in records}
    assert len(digests) == len(records)  # rounds 3 and 4 were answered with other noise


def test_no_noise_comes_twice_however_a_run_is_resumed(tmp_path: Path) -> None:
    """Stop, go on with fresh noise, stop, go on plainly: round 6 of the first attempt must not lend its noise again.

    Blank images have no gradient, so here an answer is its noise. With the same noise on other data, the difference of
    two releases would be the exact difference of two gradients.
    """
    heard: dict[str, list[Tensor]] = {}
    for name, stop, options in (
        ("first", 8, {}),
        ("fresh", 6, {"resume": True, "fresh_noise": True}),
        ("plain", 8, {"resume": True}),
    ):
        answers: list[Tensor] = []
        strategy = fp.Strategy(Listener(answers), AddMeanUpdate())
        training = fp.Training(
            clients_of(blank(SIZES)), strategy, PRIVACY, rounds=9, folder=tmp_path, checkpoint_every=100, **options
        )
        answers.clear()  # those of the plan
        for report in training:
            if (name, report.round) in (("first", 3), ("fresh", 6)):
                training.save()
            if report.round == stop:
                break
        heard[name] = answers
    assert [len(answers) for answers in heard.values()] == [8, 3, 2]
    every = torch.stack([answer.flatten() for answers in heard.values() for answer in answers])
    assert len(torch.unique(every, dim=0)) == len(every)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_no_json_is_not_written(bad: float):
    """A reader would refuse the line, and with it all that was spent."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one", bound=bad).to_json()
