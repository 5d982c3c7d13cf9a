"""The experiments of the constrained paper: plain methods equal the library's, and tables have known figures."""

from __future__ import annotations

import math

import constrained_solver
import constrained_tables
import numpy as np
import pytest
import torch
from constrained_tables import on_sphere, outer_of, parts_of, random_program
from experiment import Bench
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.data.base import Split
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.solvers import Newton, Quadratic


def classes(count: int = 60, dim: int = 3, seed: int = 0, apart: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Two overlapping classes, equally often."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    return torch.tensor(rng.normal(size=(count, dim)) + apart * y[:, None]), torch.tensor(y)


def people(count: int, seed: int) -> TensorDataset:
    """Features, and a last column with the group; the losses of the two groups differ."""
    rng = np.random.default_rng(seed)
    group = np.arange(count) % 2
    y = (rng.random(count) < 0.2 + 0.3 * group).astype(np.int64)
    x = np.column_stack([rng.normal(size=(count, 2)) + y[:, None], np.ones(count), group])
    return TensorDataset(torch.tensor(x), torch.tensor(y))


def in_library(clients: list[fp.Client], start: torch.Tensor, outer: fp.Outer, rho: float, solver) -> fp.Result:
    for client in clients:
        with torch.no_grad():
            next(client.model.parameters()).copy_(start.view(1, -1))
    strategy = fp.proximal_al(outer, rho, solver=solver)
    compute = fp.Compute(dtype="float64", device="cpu")
    run = fp.Training(clients, strategy, fp.Privacy(noise_on="none"), rounds=3000, compute=compute)
    list(run)
    return run.result()


def test_plain_neyman_pearson_equals_library():
    parts = parts_of(*classes(), 3)
    outer, start = outer_of(30.0, 1e-3), on_sphere(2, 3)
    plain = constrained_solver.federated(constrained_solver.neyman_pearson(parts, 0.5), start, outer, 0.1)
    problem = fp.Problem(fp.class_loss(0), (fp.ClassLossAtMost(1, 0.5),))
    model = LogisticRegression(3).double()
    clients = fp.make_clients(model, resolve_loss("logistic"), [TensorDataset(*part) for part in parts], problem)
    result = in_library(clients, start[1], outer, 0.1, Newton())
    figures = result.to_json()
    assert figures["converged"] and bool(plain.converged.all())
    assert figures["outer_rounds"] == plain.outer[1]
    assert figures["inner_rounds"] == pytest.approx(int(plain.rounds[1]), rel=0.05)
    torch.testing.assert_close(result.params.double(), plain.w[1], atol=1e-4, rtol=0)
    assert plain.objective.tolist() == pytest.approx([figures["objective"]] * 2, abs=1e-3)


def test_plain_quadratic_equals_library():
    program, start, outer = random_program(6, 1, 2, 0), on_sphere(1, 6), outer_of(10.0, 0.1)
    plain = constrained_solver.federated_quadratic(program, start, outer, 1.0)
    nothing = TensorDataset(torch.zeros(1, 6), torch.zeros(1, 1))
    model = torch.nn.Linear(6, 1, bias=False).double()

    def problem(a, b, c, d, is_server):
        def value(model, x, y):  # twice, since the library's objective is the mean over the two clients
            return 2 * (model.params @ a @ model.params / 2 + b @ model.params).view(1)

        return fp.Problem(None if is_server else fp.Function(value), (fp.LinearEquality(c, d),))

    rows = zip(program.a, program.b, program.c, program.d, (False, False, True), strict=True)
    clients = [fp.make_clients(model, torch.nn.MSELoss(), [nothing], problem(*row))[0] for row in rows]
    result = in_library(clients, start[0], outer, 1.0, Quadratic())
    assert result.to_json()["inner_rounds"] == int(plain.rounds[0])
    torch.testing.assert_close(result.params.double(), plain.w[0], atol=1e-8, rtol=0)
    assert float(plain.objective[0]) == pytest.approx(program.optimum(), rel=1e-2)


def test_plain_fairness_equals_library():
    train, test = people(90, 1), people(40, 2)
    parts = [(train.tensors[0][i::3], train.tensors[1][i::3]) for i in range(3)]
    outer, start = outer_of(30.0, 1e-3), on_sphere(1, 4)
    problem = constrained_solver.fairness(parts, test.tensors, 0.1)
    plain = constrained_solver.federated(problem, start, outer, 0.1)
    gap = fp.GroupLossGap(-1, 0.1)
    model, loss = LogisticRegression(4).double(), resolve_loss("logistic")
    clients = fp.make_clients(model, loss, [TensorDataset(*part) for part in parts], fp.Problem(constraints=(gap,)))
    clients += fp.make_clients(model, loss, [test], fp.Problem(None, (gap,)))
    figures = in_library(clients, start[0], outer, 0.1, Newton()).to_json()
    assert figures["converged"] and bool(plain.converged.all())
    assert float(plain.objective[0]) == pytest.approx(figures["objective"], abs=1e-3)
    assert float(plain.values.max()) == pytest.approx(np.max(figures["constraint_values"]), abs=2e-3)


def test_table_1_reaches_optimum(tmp_path, monkeypatch):
    """All three sets run (two once raised an error), and each line's objective is the central optimum."""
    monkeypatch.setattr(constrained_tables, "rows_of", lambda name: classes(dim=2, apart=2.0))
    monkeypatch.setitem(constrained_tables.TABLE_1, "monks", {1: (0.6, 1e-3), 5: (0.7, 1e-3)})
    found = constrained_tables.np_findings(Bench("quick", tmp_path))
    assert len(found.rows) == 10 and all(math.isinf(row.true) for row in found.rows)
    for row in found.rows:
        best = float(row.remark.split("optimum ")[1].split(";")[0])
        assert row.ours == pytest.approx(best, rel=2e-2), row
    assert {row.paper for row in found.rows if row.setting.startswith("monks")} == {0.6, 0.7}


def test_table_2_holds_gap_except_at_printed_rho(tmp_path, monkeypatch):
    split = Split(people(300, 1), people(100, 2), 2, None, "made up")
    monkeypatch.setattr(constrained_tables, "load", lambda name, bias=True: split)
    found = constrained_tables.fairness_findings(Bench("quick", tmp_path))
    rows = {row.setting: row for row in found.rows}
    start = float(rows["n = 5, settings as printed"].ours)
    good = rows["n = 5, our settings"]
    assert "1/1 converged" in good.remark and good.ours < start - 0.05
    assert float(good.remark.split("max ")[1].split(" ")[0]) <= 0.102
    assert "0/1 converged" in rows["n = 5, settings as printed"].remark


def test_table_4_runs_reach_optimum(tmp_path, monkeypatch):
    monkeypatch.setattr(constrained_tables, "SIZES", ((100, 1),))
    found = constrained_tables.qp_findings(Bench("quick", tmp_path))
    assert "12 of 12 runs" in found.verdict
    assert [row.paper for row in found.rows] == [-0.23, 9.81, 49.40]
    # an instance's objective grows like the number of clients times that of constraints
    assert 4 < found.rows[1].ours < 18 and 30 < found.rows[2].ours < 70


def test_private_runs_state_their_whole_epsilon(tmp_path, monkeypatch):
    split = Split(people(300, 1), people(100, 2), 2, None, "made up")
    monkeypatch.setattr(constrained_tables, "load", lambda name, bias=True: split)
    private = constrained_tables.private_findings(Bench("quick", tmp_path / "a"))
    assert [row.true for row in private.rows] == pytest.approx([3.0] * 3, rel=1e-3)
    beyond = constrained_tables.beyond_findings(Bench("quick", tmp_path / "b"))
    assert [row.true for row in beyond.rows] == pytest.approx([math.inf, math.inf, 1, 8, 1, 8], rel=1e-3)
    exact, free = beyond.rows[:2]
    assert exact.ours > free.ours  # a constraint costs loss
    assert float(exact.remark.split("gap ")[1].split(" ")[0]) <= 0.101
