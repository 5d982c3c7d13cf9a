"""The command line, on real runs: what it prints, what it refuses, and what survives a crash."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import own_code
import pytest
import torch
from commands import COMMAND, DIGITS, FULL_LINE, LONG, SMALL, fedpriv, killed, refused, result_of, same_run, trained
from forging import lines_of, rewrite

from fedpriv.runs.checkpoint import Checkpoint


def test_what_weakens_the_promise_is_said_before_the_first_round(tmp_path: Path) -> None:
    done = fedpriv("train", DIGITS, "--out", str(tmp_path), *SMALL, "privacy.delta=0.001")
    assert "warning: delta=0.001 is not below 1/1437" in done.stderr.split("round 1/")[0]


def test_train_prints_what_the_user_needs_and_fills_the_folder(tmp_path: Path):
    folder = tmp_path / "run"
    done = fedpriv("train", DIGITS, "--out", str(folder), *SMALL, "log.tensorboard=true", "log.csv=true")
    assert done.exit_code == 0
    assert re.search(r"test accuracy +\d+\.\d\d%", done.stdout)
    assert re.search(rf"privacy +{FULL_LINE}", done.stdout)
    assert re.search(rf"TensorBoard +\S*tensorboard --logdir {folder / 'tb'}", done.stdout)
    assert str(folder / "report.png") in done.stdout
    assert "round 6/6 · loss" in done.stderr
    assert "of 3" in done.stderr
    expected = {"config.yaml", "ledger.jsonl", "metrics.jsonl", "metrics.csv", "result.json", "checkpoint.pt", "tb"}
    assert {path.name for path in folder.iterdir()} == expected | {"report.png", "model.pt"}


def test_result_holds_what_it_must(tmp_path: Path):
    result = json.loads((trained(tmp_path / "run") / "result.json").read_text())
    names = "strategy rounds test_accuracy test_loss epsilon delta unit relation trust accountant per_client_epsilon"
    assert set(f"{names} seconds params_l2".split()) <= set(result)
    assert (result["strategy"], result["rounds"], result["unit"]) == ("iadmm_prox", 6, "sample")
    assert 2.9 < result["epsilon"] <= 3
    assert len(result["per_client_epsilon"]) == 5


def test_topology_describes_and_draws_a_graph(tmp_path: Path):
    """A ring of six with Metropolis weights: eigenvalues 1/3 + 2/3 cos(2 pi k / 6); a hexagon on paper."""
    picture = tmp_path / "ring.png"
    done = fedpriv("topology", "ring", "6", "mixing_steps=2", "--json", "--out", str(picture))
    facts = json.loads(done.stdout)
    assert (facts["nodes"], facts["links"], facts["diameter"], facts["mean_degree"]) == (6, 6, 3, 2)
    assert facts["spectral_gap"] == pytest.approx(1 / 3)
    assert facts["contraction"] == pytest.approx(4 / 9)
    assert facts["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    network = "network={topology: ring, mixing_steps: 2}"
    again = tmp_path / "again.png"
    planned = fedpriv(
        "plan",
        DIGITS,
        *SMALL,
        "strategy=decentralized_sgd",
        network,
        "data.partition.n_clients=6",
        "--json",
        "--out",
        str(again),
    )
    assert json.loads(planned.stdout)["network"] == {name: value for name, value in facts.items() if name != "picture"}
    assert again.read_bytes() == picture.read_bytes()
    (tmp_path / "links.txt").write_text("a b\nb c\nd e\n")
    assert "node 3 cannot be reached" in refused("topology", "edge_list", "5", f"topology.file={tmp_path}/links.txt")


def test_json_goes_alone_to_standard_output(tmp_path: Path):
    folder = tmp_path / "run"
    done = fedpriv("train", DIGITS, "--json", "--out", str(folder), *SMALL)
    assert json.loads(done.stdout)["folder"] == str(folder)
    for words in (["plan", DIGITS, "--json"], ["show", str(folder), "--json"], ["list", "--json"]):
        done = fedpriv(*words)
        assert done.exit_code == 0
        assert json.loads(done.stdout)
    assert json.loads(fedpriv("show", str(folder), "--json").stdout)["finished"] is True


def test_without_out_each_run_gets_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert fedpriv("train", DIGITS, *SMALL, "rounds=1").exit_code == 0
        assert Path(f"runs/run-{number}/result.json").exists()


def test_show_compares_several_runs(tmp_path: Path):
    one, other = trained(tmp_path / "one"), trained(tmp_path / "other", "privacy.unit=client", "privacy.epsilon=20")
    shown = fedpriv("show", str(one), str(other))
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["run", str(one), str(other), "note:"]
    assert "the runs differ in unit" in shown.stdout
    facts = json.loads(fedpriv("show", str(one), str(other), "--json").stdout)
    assert [run["epsilon"] for run in facts["runs"]] == [result_of(one)["epsilon"], result_of(other)["epsilon"]]
    assert len(facts["notes"]) == 1


def test_topology_draws_to_the_file_that_it_names(tmp_path: Path):
    picture = tmp_path / "ring.png"
    done = fedpriv("topology", "ring", "5", "--out", str(picture))
    assert done.exit_code == 0
    assert str(picture) in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    for wrong in (tmp_path, tmp_path / "ring.doc"):  # a folder would become a file beside it
        assert "give a name that ends in .png" in refused("topology", "ring", "5", "--out", str(wrong))


def test_list_tells_the_options_of_a_name():
    lines = fedpriv("list", "erdos_renyi").stdout.splitlines()
    assert lines[0] == "network.topology: erdos_renyi"
    told = dict(line.split(maxsplit=1) for line in lines[1:])
    assert set(told) == {"is", "p", "seed"}, "n_clients is not for the user to give"
    assert told["p"].endswith("required")
    assert told["seed"] == "a whole number; 0 by default"
    tracking = json.loads(fedpriv("list", "gradient_tracking", "--json").stdout)["strategy: gradient_tracking"]
    assert tracking["step_size"].endswith("{scale: 0.1, power: 0.0, ratio: 1.0} by default")
    assert tracking["step_size.scale"] == "a positive, finite number; 1.0 by default"
    assert tracking["gradient_at"] == "'sent' or 'mixed'; sent by default"
    assert "did you mean 'erdos_renyi'" in refused("list", "erdos_reny")


def test_list_and_plan_are_for_people():
    listed = fedpriv("list").stdout
    for name in ("iadmm_trust", "femnist_cnn", "digits", "laplace", "cross_entropy"):
        assert re.search(rf"^  {name} +\S", listed, flags=re.MULTILINE), name
    planned = fedpriv("plan", DIGITS).stdout
    assert re.search(rf"privacy +{FULL_LINE}", planned)
    assert re.search(rf"one round +{FULL_LINE}", planned)
    assert "640 numbers each; 12,800 numbers a round (51.2 kB), 1.54 MB in the whole run" in planned


def test_plan_says_why_the_published_variant_is_not_private():
    words = [
        "plan",
        DIGITS,
        "strategy={name: iadmm_prox, variant: published}",
        "privacy={epsilon_bar: .05}",
        "rounds=100",
    ]
    planned = fedpriv(*words).stdout
    assert "epsilon=inf (not private" in planned
    assert "epsilon_bar=0.05-DP in each round" in planned
    assert "5 by basic composition" in planned
    assert "not private as published: Delta_t is the largest l1 norm" in planned


def test_the_published_variant_is_reported_without_a_promise(tmp_path: Path):
    words = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: .05}"]
    folder = trained(tmp_path / "run", *words)
    result = result_of(folder)
    assert (result["strategy"], result["epsilon"]) == ("iadmm_trust (published)", "inf")
    assert "measured on the client's own data" in fedpriv("show", str(folder)).stdout
    assert (folder / "report.png").stat().st_size > 10_000


def test_fix_model_replaces_batch_norm(tmp_path: Path):
    model = ["model=own_code:WithBatchNorm", "--allow-plugins"]
    assert "--fix-model" in refused("train", DIGITS, "--out", str(tmp_path / "a"), *SMALL, *model)
    assert not (tmp_path / "a").exists(), "nothing was started, so nothing is left behind"
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "b"), "--fix-model", *SMALL, *model)
    assert done.exit_code == 0
    assert "fix: true" in (tmp_path / "b" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=-3", "rounds = -3: must be a whole number, at least 1"),
        ("privacy.clip.bound=0", "privacy.clip.bound = 0: must be a positive, finite number"),
        ("privacy.delta=0", "privacy.delta = 0: Gaussian noise needs delta > 0"),
        ("network.cohort.fixed=6", "network.cohort.fixed = 6: there are only 5 clients"),
        ("strategy.name=iadm_prox", "strategy = 'iadm_prox': unknown; did you mean 'iadmm_prox'"),
        ("data={name: mnist, root: nowhere, partition: {kind: iid, n_clients: 5}}", "nowhere"),
        ("data={name: femnist, root: nowhere, partition: {kind: by_writer}}", "no folder nowhere"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(override: str, message: str, tmp_path: Path):
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


def test_a_folder_that_holds_no_run(tmp_path: Path):
    assert "holds no run" in refused("resume", str(tmp_path))
    assert "holds no run" in refused("show", str(tmp_path))


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that `kill -9` ended between two checkpoints."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    killed(folder, [*SMALL, *LONG], after=10)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def stopped_folder(stopped_run: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in stopped_run.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, unbroken."""
    return trained(tmp_path_factory.mktemp("whole") / "run", *LONG)


def test_kill_9_and_resume_give_the_unbroken_run(stopped_folder: Path, whole_run: Path):
    so_far = json.loads(fedpriv("show", str(stopped_folder), "--json").stdout)
    assert so_far["finished"] is False
    assert 10 <= so_far["rounds"] < 40
    done = fedpriv("resume", str(stopped_folder))
    assert done.exit_code == 0, done.stderr
    same_run(stopped_folder, whole_run)


def test_a_truncated_ledger_is_refused(stopped_folder: Path):
    ledger = stopped_folder / "ledger.jsonl"
    ledger.write_bytes(b"\n".join(ledger.read_bytes().split(b"\n")[:4]) + b"\n")
    message = refused("resume", str(stopped_folder))
    assert "incomplete: " in message and "ledger.jsonl holds 3 records but" in message
    ledger.unlink()
    assert "without its ledger has no epsilon" in refused("resume", str(stopped_folder))


def test_a_damaged_line_is_refused(stopped_folder: Path):
    ledger = stopped_folder / "ledger.jsonl"
    lines = ledger.read_bytes().split(b"\n")
    ledger.write_bytes(b"\n".join([*lines[:3], lines[3][:20], *lines[4:]]))
    assert "line 4 does not follow from what comes before it: it was altered" in refused("resume", str(stopped_folder))


def test_a_torn_last_line_survives(stopped_folder: Path, whole_run: Path):
    with (stopped_folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round":17,"query":"gra')
    assert fedpriv("resume", str(stopped_folder)).exit_code == 0
    same_run(stopped_folder, whole_run)


def test_other_settings_are_refused(stopped_folder: Path):
    config = stopped_folder / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 40", "rounds: 41"))
    assert "config.yaml is not the one that the run began with" in refused("resume", str(stopped_folder))


def test_other_data_cannot_replay_the_same_noise(stopped_folder: Path):
    """The difference of the two answers would reveal the data; fresh noise is offered, and charged."""
    lines = lines_of(stopped_folder / "ledger.jsonl")
    assert lines[9]["round"] == 8
    lines[9]["digest"] = "00000000"
    saved = Checkpoint.load(stopped_folder / "checkpoint.pt", torch.device("cpu"))
    rewrite(stopped_folder / "ledger.jsonl", lines, saved.randomness().seal_key())
    metrics = stopped_folder / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:8]))
    assert "--fresh-noise" in refused("resume", str(stopped_folder))
    records = len(lines) - 1
    done = fedpriv("resume", str(stopped_folder), "--fresh-noise")
    assert done.exit_code == 0, done.stderr
    result = result_of(stopped_folder)
    assert result["epsilon"] <= 3, "the repeated rounds are paid for, so the budget ends the run before round 40"
    assert result["rounds"] == 40 - (records - 8)
    assert "the next round would overspend" in done.stdout


def test_control_c_says_how_to_go_on_even_before_the_first_checkpoint(tmp_path: Path, whole_run: Path):
    folder = tmp_path / "run"
    words = [*COMMAND, "train", DIGITS, "--out", str(folder), *SMALL, *LONG, "log.checkpoint_every=100"]
    words += ["--allow-plugins"]  # without it such a run could not go on
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells let background jobs ignore it
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as run:
        while not ((folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size):
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert f"go on with: fedpriv resume {folder} --allow-plugins\n" in stderr
    assert "Traceback" not in stderr
    assert fedpriv("resume", str(folder)).exit_code == 0
    same_run(folder, whole_run)


def with_disk(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run where no file may grow past `size` bytes: a write fails as it does on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    # Python would leave half of what it compiles for all others
    path = {**os.environ, "PYTHONPATH": str(Path(own_code.__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, preexec_fn=limit, env=path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_full_disk_ends_the_run_and_loses_nothing(tmp_path: Path):
    """The ledger is the first file to reach 8 kB. With space again the run goes on where it was."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    words = ["data.partition.n_clients=1", "model={name: 'own_code:Tiny', width: 1}", *SMALL[2:]]
    words += ["rounds=32", "log.checkpoint_every=8", "--allow-plugins"]
    done = with_disk(8192, "train", DIGITS, "--out", str(folder), *words)
    assert "ledger.jsonl could not be written" in done.stderr
    assert (folder / "ledger.jsonl").read_bytes().endswith(b"\n"), "no torn line is left"
    assert fedpriv("resume", str(folder), "--allow-plugins").exit_code == 0
    assert fedpriv("train", DIGITS, "--out", str(whole), *words).exit_code == 0
    same_run(folder, whole)


def test_a_disk_too_full_to_start_leaves_nothing(tmp_path: Path):
    done = with_disk(2000, "train", DIGITS, "--out", str(tmp_path / "run"), *SMALL)
    assert "checkpoint.pt could not be written" in done.stderr
    assert not (tmp_path / "run").exists()
