"""`fedpriv tune --score-noise`: scores on private test data are noised, priced, and all that is told of these data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mpmath
import pytest
import torch
from test_tune import central, quiet, search
from torch.utils.data import TensorDataset

from fedpriv.cli import app
from fedpriv.config.building import load_data, make_model, read_outline
from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting import gaussian
from fedpriv.randomness.real_draws import real_normal
from fedpriv.randomness.streams import Randomness
from fedpriv.tuning import scores
from fedpriv.tuning.search import Search
from fedpriv.tuning.statement import search_statement


def test_noised_score_cost_composes_with_trials():
    """Three runs of epsilon 3 and three scores, Gaussian and unsampled."""
    cost = search(score_noise=10.0).cost
    mu2 = 3 * (gaussian.compute_ratio(3.0, 1e-5) ** 2 + 1 / 10**2)
    assert cost.spent.epsilon == pytest.approx(gaussian.compute_epsilon(mu2**0.5, 1e-5), rel=1e-3)
    assert cost.one_trial.epsilon > search().cost.one_trial.epsilon


def test_secret_trials_charge_noised_scores():
    assert (
        central(secret_trials="geometric", score_noise=5.0).cost.spent.epsilon
        > central(secret_trials="geometric").cost.spent.epsilon
    )


@pytest.mark.parametrize(("relation", "change"), [("replace_one", 1.0), ("add_remove", 0.5)])
def test_score_noise_matches_record(relation: str, change: float):
    """A correct prediction counts 1/2 above the middle: replacing it changes the sum by 1, removing it by 1/2."""
    record = search(
        f"privacy.relation={relation}", "privacy.epsilon=null", "privacy.noise_multiplier=9", score_noise=4.0
    )
    last = record.plan({"strategy.rho.scale": 1.0}).records[-1]
    assert (last.query, last.mechanism, last.noise_multiplier, last.bound) == ("statistic:score", "gaussian", 4.0, 0.5)
    assert scores.compute_deviation(4.0, last.relation) == 4.0 * change


def right_answers(searched: Search, folder: Path) -> tuple[int, int]:
    config = searched.config(json.loads((folder.parent / "trials.json").read_text())["trials"][0]["chosen"])
    split = load_data(config)
    model, _ = make_model(config, read_outline(config))
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    x, y = (torch.stack([torch.as_tensor(one[k]) for one in split.test]) for k in (0, 1))
    return int((model.eval()(x).argmax(1) == y).sum()), len(y)


def test_only_noised_scores_released(tmp_path: Path):
    searched = search(score_noise=7.0, trials=1)
    (trial,) = searched.run(tmp_path / "a", quiet).trials
    folder = tmp_path / "a" / "trials" / "0000"
    released = json.loads((folder / "result.json").read_text())
    assert {name: value for name, value in released.items() if "test" in name and value is not None} == {}
    assert "test_" not in (folder / "metrics.jsonl").read_text()
    right, count = right_answers(searched, folder)
    config = searched.config(trial.chosen)
    assert trial.score is not None
    assert json.loads((folder / "noised_score.json").read_text()) == trial.score
    assert [scores.noised_accuracy(config, folder, 7.0, "replace_one") for _ in range(2)] == [trial.score] * 2
    released = round(trial.score * count)
    assert trial.score == released / count  # a whole number
    assert abs(released - right) < 6 * 7.0


@pytest.mark.parametrize("changed_label", [0.0, 0.5])
def test_score_error_independent_of_label_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed_label: float
) -> None:
    """The values of float labels decide whether a classifier is binary, so all such labels raise the same error."""
    searched = search(score_noise=7.0, trials=1)
    (trial,) = searched.run(tmp_path / "a", quiet).trials
    folder, config = tmp_path / "a" / "trials" / "0000", searched.config(trial.chosen)
    (folder / "noised_score.json").unlink()  # as if it were not computed yet
    split = load_data(config)
    x = torch.stack([torch.as_tensor(one[0]) for one in split.test])
    labels = torch.ones(len(x))
    labels[3] = changed_label
    monkeypatch.setattr(scores, "load_data", lambda _: SimpleNamespace(test=TensorDataset(x, labels)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))
    torch.save(model.state_dict(), folder / "model.pt")
    monkeypatch.setattr(scores, "make_model", lambda *_: (model, torch.nn.BCEWithLogitsLoss()))
    with pytest.raises(ConfigError, match=r"score_noise = 7\.0: needs test_accuracy, which is defined only for labels"):
        scores.noised_accuracy(config, folder, 7.0, "replace_one")


def test_noised_score_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second score of the same or other test data would be a query result that is not charged."""
    noise = 7e6  # two draws of it, rounded to whole numbers, are hardly ever equal
    searched = search(score_noise=noise, trials=1)
    (trial,) = searched.run(tmp_path / "a", quiet).trials
    folder, config = tmp_path / "a" / "trials" / "0000", searched.config(trial.chosen)
    split = load_data(config)
    x, y = (torch.stack([torch.as_tensor(one[k]) for one in split.test]) for k in (0, 1))
    changed = replace(split, test=TensorDataset(x, y.roll(1)))
    monkeypatch.setattr(scores, "load_data", lambda _: changed)
    assert scores.noised_accuracy(config, folder, noise, "replace_one") == trial.score
    # a score that was never stored was never seen, and has noise of its own
    (folder / "noised_score.json").unlink()
    assert scores.noised_accuracy(config, folder, noise, "replace_one") != trial.score


def test_score_noise_deviation():
    drawn = torch.tensor([scores.add_rounded_noise(50, 7.0, Randomness()) for _ in range(400)], dtype=torch.float64)
    assert float(drawn.mean()) == pytest.approx(50, abs=4 * 7 / 20)
    assert float(drawn.std()) == pytest.approx(7, rel=4 / 800**0.5)


def test_noised_score_is_exact_sum_rounded():
    """With this much noise float64 cannot represent the sum to a whole number; the real-valued sum decides."""
    scale = 1e15
    for seed in range(40):
        randomness = Randomness(0, seed)
        key = randomness_key(randomness)
        interval = real_normal(key, 1, 0, 4)
        assert interval is not None
        with mpmath.workprec(400):
            ends = {int(mpmath.floor(50 + scale * mpmath.mpf(end) + 0.5)) for end in interval}
        assert {scores.add_rounded_noise(50, scale, randomness)} == ends


def randomness_key(randomness: Randomness) -> bytes:
    return randomness.keys("score", 0, 0, [0]).numpy()[0].tobytes()


def test_statement_counts_noised_scores(tmp_path: Path):
    searched = search(score_noise=3.0, trials=2)
    searched.run(tmp_path / "a", quiet)
    page = search_statement(tmp_path / "a")
    output = json.dumps(page.to_json())
    assert f"epsilon={searched.cost.spent.epsilon:.4g}"[:12] in output
    assert "on private test data, with noise of 3 times what one example changes" in output
    assert "public test data" not in output
    assert "every number computed on them" not in output
    assert "the number of test records" in output


def test_unprotected_score_settings_raise():
    with pytest.raises(ConfigError, match=r"cannot be used with score_noise.*: use test_accuracy"):
        search(score_noise=3.0, metric="test_loss")
    with pytest.raises(ConfigError, match="protect only one test example"):
        search(
            "privacy.unit=client",
            "privacy.noise_on=message",
            "strategy={name: fedavg, learning_rate: .5}",
            score_noise=3.0,
        )
    with pytest.raises(ConfigError, match=r"log\.stop"):
        _ = search("log.stop={metric: test_loss}", score_noise=3.0).cost


def test_tune_plan_includes_score_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    space = tmp_path / "space.yaml"
    space.write_text("strategy.rho.scale: [0.1, 1]\n")
    words = ["tune", "digits_iadmm", str(space), "--trials", "2", "--score-noise", "20", "--plan", "--json"]
    app(words, standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["epsilon"] > 3
