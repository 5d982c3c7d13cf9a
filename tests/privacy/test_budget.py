"""The lifetime budget of a data set: its price against closed forms, its file against crashes, races and edits."""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as dpa
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from scipy import optimize, stats

import fedpriv as fp
from fedpriv.errors import BudgetExhausted, ConfigError, LedgerError, PrivacyError
from fedpriv.privacy.budget import AT_WORK, Budget
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.record import Record
from fedpriv.storage import files

DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float) -> float:
    return optimize.brentq(lambda epsilon: delta_of(mu, epsilon) - DELTA, 0, 400)


def mu_of(epsilon: float) -> float:
    return optimize.brentq(lambda mu: delta_of(mu, epsilon) - DELTA, 1e-3, 60)


def run(noise: float, name: str, rounds: int = 1, n_clients: int = 3, **changes: object) -> RunCost:
    base = replace(Record(0, "gradient", 0, "gaussian", noise, "sample", "replace_one"), **changes)
    return RunCost(name, [replace(base, round=t) for t in range(rounds)], n_clients, noise=name)


def budget(folder: Path, epsilon: float = 2.0, **terms: object) -> Budget:
    return Budget.create(folder / "b.jsonl", **{"epsilon": epsilon, "delta": DELTA, **terms})


def in_new_folder(epsilon: float, **terms: object) -> Budget:
    """Pytest has no folder for each example of a property."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return budget(Path(folder), epsilon, **terms)


def test_three_gaussian_runs_of_epsilon_1_cost_1_84_and_not_3(tmp_path: Path):
    found, noise = budget(tmp_path, 1.84), 1 / mu_of(1.0)
    for number in range(3):
        found.reserve(run(noise, f"r{number}"))
    balance = found.balance()
    assert balance.spent.epsilon == pytest.approx(1.835, abs=1e-3)
    assert [round(one.epsilon, 6) for one in balance.entries] == [1, 1, 1]
    with pytest.raises(
        BudgetExhausted, match=r"b\.jsonl allows epsilon=1\.84 .* 1\.835 is spent by 3 runs, r3 costs 1"
    ):
        found.reserve(run(noise, "r3"))
    assert len(found.balance().entries) == 3


@given(st.lists(st.tuples(st.floats(0.5, 30), st.integers(1, 40)), min_size=1, max_size=8))
@tried(max_examples=15)
def test_gaussian_runs_cost_the_root_of_the_sum_of_squares(runs: list[tuple[float, int]]):
    found = in_new_folder(1000.0)
    for number, (noise, rounds) in enumerate(runs):
        found.reserve(run(noise, f"r{number}", rounds))
    known = epsilon_of(math.sqrt(sum(rounds / noise**2 for noise, rounds in runs)))
    spent, alone = found.balance().spent.epsilon, [one.epsilon for one in found.balance().entries]
    assert spent == pytest.approx(known, rel=1e-6)
    assert max(alone) <= spent <= sum(alone) + 1e-9


@given(st.lists(st.floats(0.05, 1.5), min_size=1, max_size=12), st.floats(0.2, 3))
@tried(max_examples=40)
def test_pure_epsilons_add_up_and_never_pass_the_limit(epsilons: list[float], limit: float):
    found, total = in_new_folder(limit, delta=0.0), 0.0
    for number, epsilon in enumerate(epsilons):
        wish = run(1 / epsilon, f"r{number}", mechanism="laplace", norm="l1")
        if total + epsilon <= limit * (1 - 1e-9):
            found.reserve(wish)
            total += epsilon
        elif total + epsilon > limit * (1 + 1e-9):
            with pytest.raises(BudgetExhausted):
                found.reserve(wish)
    balance = found.balance()
    assert balance.spent.epsilon == pytest.approx(total, rel=1e-9)
    assert balance.spent.epsilon <= limit
    assert balance.left <= limit - total + 1e-9
    assert balance.left >= limit - total - limit / 100


def test_sampled_runs_cost_what_an_independent_distribution_says(tmp_path: Path):
    found = budget(tmp_path, 5.0, relation="add_remove")
    changes = {"sampling": "poisson", "relation": "add_remove"}
    found.reserve(run(1.1, "one", 200, rate=0.02, **changes))
    found.reserve(run(0.9, "other", 100, rate=0.01, **changes))
    parts = [
        dpa.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=2e-4).self_compose(count)
        for noise, rate, count in ((1.1, 0.02, 200), (0.9, 0.01, 100))
    ]
    assert found.balance().spent.epsilon == pytest.approx(
        parts[0].compose(parts[1]).get_epsilon_for_delta(DELTA), rel=1e-3
    )


def test_what_is_left_fits_and_hardly_more_does(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(1 / mu_of(2.0), "first"))
    left = found.balance().left
    assert left == pytest.approx(epsilon_of(math.sqrt(mu_of(3.0) ** 2 - mu_of(2.0) ** 2)), abs=0.02)
    with pytest.raises(BudgetExhausted, match=r"up to epsilon=2\.\d+ still fits"):
        found.check(run(1 / mu_of(left + 0.03), "too much"))
    found.reserve(run(1 / mu_of(left), "second"))
    with pytest.raises(BudgetExhausted, match="costs 1"):
        found.check(run(1 / mu_of(1.0), "third"))


@pytest.mark.parametrize(
    ("terms", "wish", "said"),
    [
        ({"unit": "client"}, {}, "protects one sample, and the budget one client"),
        (
            {"unit": "sample", "relation": "add_remove"},
            {"unit": "client", "relation": "add_remove"},
            "protects one client",
        ),
        ({"relation": "add_remove"}, {}, "has relation replace_one, and the budget add_remove"),
        ({}, {"shared": "same slots"}, r"promises replace_one\(same slots\), which is less .*--shared"),
        ({"unit": "client"}, {"unit": "client", "shared": "sizes public"}, "sizes public"),
        ({"accountant": "gaussian"}, {"sampling": "poisson", "rate": 0.1}, "epsilon=inf"),
    ],
)
def test_a_run_that_protects_less_is_refused(tmp_path: Path, terms: dict[str, str], wish: dict[str, object], said: str):
    with pytest.raises(PrivacyError, match=said):
        budget(tmp_path, **terms).reserve(run(5.0, "r", **wish))
    assert not Budget(tmp_path / "b.jsonl").balance().entries


def test_runs_without_noise_or_with_more_than_noise_are_refused(tmp_path: Path):
    found = budget(tmp_path)
    exact = run(0.0, "r", mechanism="none", non_private="exact answers, no noise")
    with pytest.raises(BudgetExhausted, match=r"r has epsilon=inf \(exact answers, no noise\)"):
        found.reserve(exact)
    with pytest.raises(PrivacyError, match="the optimality gap"):
        found.reserve(replace(run(5.0, "r"), not_covered=("the optimality gap, exact",)))
    with pytest.raises(ConfigError, match="name the noise"):
        found.reserve(replace(run(5.0, "r"), noise=None))


def test_stronger_promises_are_priced_for_the_weaker_one(tmp_path: Path):
    found = budget(tmp_path, 9.0)
    found.reserve(run(4.0, "removes", relation="add_remove"))  # to replace is to remove and to add: half the noise
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(1 / 2), rel=1e-6)
    found.reserve(run(5.0, "clients", unit="client", shared="sizes public"))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 2, 1 / 5)), rel=1e-6)


def test_other_whole_clients_are_refused(tmp_path: Path):
    found = budget(tmp_path, unit="client")
    found.reserve(run(9.0, "three", unit="client"))
    with pytest.raises(PrivacyError, match="other ones"):
        found.reserve(run(9.0, "four", n_clients=4, unit="client"))


def test_runs_whose_clients_may_be_others_pay_for_the_worst(tmp_path: Path):
    found = budget(tmp_path, 9.0)
    found.reserve(run(3.0, "a", clients=(0,)))
    found.reserve(run(4.0, "b", clients=(2,)))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(math.hypot(1 / 3, 1 / 4)), rel=1e-6)
    same = Budget.create(tmp_path / "same.jsonl", epsilon=9.0, delta=DELTA)
    same.reserve(replace(run(3.0, "a", clients=(0,)), data="d"))
    same.reserve(replace(run(4.0, "b", clients=(2,)), data="d"))
    assert same.balance().spent.epsilon == pytest.approx(epsilon_of(1 / 3), rel=1e-6)


def test_what_a_public_limit_left_over_is_given_back(tmp_path: Path):
    found, whole = budget(tmp_path, 3.0), run(5.0, "r", 10)
    found.reserve(whole)
    found.close("r", "budget", replace(whole, records=whole.records[:4]))
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(2 / 5), rel=1e-6)
    assert found.balance().entries[0].returned
    found.close("r", "budget", replace(whole, records=[]))  # a second end changes nothing
    assert found.balance().spent.epsilon == pytest.approx(epsilon_of(2 / 5), rel=1e-6)


def test_what_answers_may_have_stopped_stays_charged(tmp_path: Path):
    found, whole = budget(tmp_path, 3.0), run(5.0, "r", 10)
    found.reserve(whole)
    before = found.balance().spent.epsilon
    assert found.balance().entries[0].state == AT_WORK
    found.close("r", "metric")
    assert found.balance().spent.epsilon == before
    assert (found.balance().entries[0].state, found.balance().entries[0].returned) == ("metric", False)


def test_no_more_is_given_back_than_was_reserved(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(5.0, "r", 3))
    with pytest.raises(PrivacyError, match="had not reserved"):
        found.close("r", "budget", run(4.0, "r", 1))
    with pytest.raises(PrivacyError, match="holds no reservation"):
        found.close("other", "rounds")


def test_the_same_noise_is_not_reserved_twice(tmp_path: Path):
    found = budget(tmp_path, 3.0)
    found.reserve(run(5.0, "r"))
    with pytest.raises(PrivacyError, match="would draw the noise of r"):
        found.check(run(5.0, "r"))
    with pytest.raises(PrivacyError, match="would draw the noise of r"):
        found.reserve(run(5.0, "r"))


def _try(path: str, number: int, gate: object, told: object) -> None:
    wish = run(1 / mu_of(1.0), f"r{number}")
    found = Budget(path)
    gate.wait()
    try:
        found.reserve(wish)
        told.put("won")
    except BudgetExhausted:
        told.put("refused")


def test_of_processes_that_race_for_the_last_piece_one_wins(tmp_path: Path):
    found, count = budget(tmp_path, 1.4), 4
    context = multiprocessing.get_context("fork")
    gate, told = context.Barrier(count), context.Queue()
    racing = [context.Process(target=_try, args=(str(found.path), i, gate, told)) for i in range(count)]
    for one in racing:
        one.start()
    for one in racing:
        one.join(60)
    assert sorted(told.get(timeout=1) for _ in racing) == ["refused"] * (count - 1) + ["won"]
    assert len(found.balance().entries) == 1


def test_only_the_owner_reads_it_and_links_are_not_followed(tmp_path: Path):
    before = os.umask(0)
    try:
        found = budget(tmp_path)
        found.reserve(run(5.0, "r"))
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir() if path.is_file()} == {"0o600"}
    (tmp_path / "link.jsonl").symlink_to(found.path)
    with pytest.raises(fp.FedprivError, match="symbolic link"):
        Budget(tmp_path / "link.jsonl")


def test_every_edit_is_refused(tmp_path: Path):
    found = budget(tmp_path)
    for number in range(3):
        found.reserve(run(9.0, f"r{number}"))
    found.close("r1", "rounds")
    whole = found.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    edits = [
        whole.replace(b'"gaussian",9.0', b'"gaussian",90.', 1),
        whole.replace(b'"epsilon":2.0', b'"epsilon":9.0', 1),
        b"".join(lines[:2] + lines[3:]),
        b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
        b"".join(lines[:-1]),
        b"".join([*lines, lines[-1]]),
        b"",
        b"\n",
    ]
    for edited in edits:
        assert edited != whole
        found.path.write_bytes(edited)
        with pytest.raises(LedgerError):
            Budget(found.path)
    found.path.write_bytes(whole)
    assert len(found.balance().entries) == 3


def test_an_earlier_copy_that_is_put_back_is_refused(tmp_path: Path):
    found = budget(tmp_path)
    old = found.path.read_bytes()
    found.reserve(run(9.0, "r"))
    new = found.path.read_bytes()
    found.path.write_bytes(old)
    with pytest.raises(LedgerError, match="earlier copy"):
        found.reserve(run(9.0, "other"))
    found.path.unlink()
    with pytest.raises(LedgerError, match="there was a budget of this name"):
        budget(tmp_path)
    found.path.write_bytes(new)
    assert len(found.balance().entries) == 1


def test_unknown_fields_and_impossible_changes_are_refused(tmp_path: Path):
    from fedpriv.privacy.chain import START, chained

    found = budget(tmp_path)
    (tmp_path / "b.jsonl.head").unlink()
    terms = json.loads(found.path.read_text())
    del terms["chain"]
    end = {"close": "nobody", "ended": "rounds", "time": "now", "charges": None}
    for changes in ([{**terms, "more": 1}], [{**terms, "delta": "0"}], [terms, end], [{**terms, "fedpriv_budget": 2}]):
        text, chain = "", START
        for change in changes:
            line, chain = chained(json.dumps(change), chain)
            text += line + "\n"
        found.path.write_text(text)
        with pytest.raises(LedgerError, match="no budget that this fedpriv can read"):
            Budget(found.path)


class _Stopping(files.Disk):
    """A disk whose process dies at its k-th operation, in the middle of it."""

    def __init__(self, last: int) -> None:
        self.left = last

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Killed

    def open(self, path: Path, flags: int) -> int:
        self._spend()
        return super().open(path, flags)

    def write(self, fd: int, data: bytes) -> None:
        if self.left == 0:
            os.write(fd, data[: len(data) // 2])
        self._spend()
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._spend()
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._spend()
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._spend()
        super().sync_folder(folder)


class _Killed(BaseException):
    pass


def test_a_crash_at_any_operation_forgets_nothing_and_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for last in range(60):
        folder = tmp_path / str(last)
        folder.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(files, "disk", _Stopping(last))
            done = list[str]()
            try:
                found = budget(folder)
                done.append("made")
                found.reserve(run(9.0, "a"))
                done.append("a")
                found.reserve(run(9.0, "b"))
                done.append("b")
                found.close("a", "rounds")
                done.append("closed")
            except _Killed:
                pass
        if not (folder / "b.jsonl").exists():
            assert not done
            found = budget(folder)
        again = Budget(folder / "b.jsonl")
        known = {one.run: one.state for one in again.balance().entries}
        assert {name for name in done if name in "ab"} <= set(known) <= {"a", "b"}
        assert "closed" not in done or known["a"] == "rounds"
        again.reserve(run(9.0, "next"))
        assert len(again.balance().entries) == len(known) + 1
        if "closed" in done:
            return
    raise AssertionError("no end was reached")


def test_terms_are_checked(tmp_path: Path):
    for terms in ({"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 1.0}, {"unit": "row"}, {"accountant": "clt"}):
        with pytest.raises(ConfigError):
            budget(tmp_path, **terms)
    with pytest.raises(ConfigError, match="pure epsilon alone"):
        budget(tmp_path, delta=0.0, accountant="gaussian")
    assert not (tmp_path / "b.jsonl").exists()
    budget(tmp_path)
    with pytest.raises(LedgerError, match="exists"):
        budget(tmp_path)
    with pytest.raises(LedgerError, match=r"fedpriv budget .* --epsilon"):
        Budget(tmp_path / "none.jsonl")


@pytest.mark.parametrize(("accountant", "said"), [("gaussian", "whatever made you"), (None, "did not depend")])
def test_what_the_number_rests_on_is_said(tmp_path: Path, accountant: str | None, said: str):
    assert said in budget(tmp_path, accountant=accountant).balance().holds
