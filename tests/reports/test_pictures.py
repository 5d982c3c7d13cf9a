"""One picture code for a result and a run's folder, which cuts neither title nor epsilon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import image, pyplot
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import build, load_config, to_yaml
from fedpriv.reports.picture import draw
from fedpriv.reports.report import Run
from fedpriv.reports.sinks import Jsonl

matplotlib.use("agg")
RUN = Path(__file__).parents[1] / "run.yaml"
NAMES = {
    "usual": "Sum of Gaussians With Momentum, My Company's Own Version for Mammography in Many Wards",
    "one word": "GradientTrackingWithMomentumAndWeightDecayForManyHospitalsOfOneCompanyInNorthernGermany",
}


@pytest.fixture(scope="module")
def result() -> fp.Result:
    draw_rows = torch.Generator().manual_seed(0)
    sets = [TensorDataset(torch.randn(30, 4, generator=draw_rows), torch.arange(30) % 3) for _ in range(3)]
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), sets[1:])
    return fp.train(clients, fp.fedavg(0.5), fp.Privacy(epsilon=8, delta=1e-3), rounds=3, test=sets[0], seed=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_a_long_title_and_its_caption_stay_within_the_picture(name: str, result: fp.Result) -> None:
    besides = "the set of labels, read from the data of all hospitals together, before the first round"
    long = replace(result, strategy=NAMES[name], spent=replace(result.spent, not_covered=(besides, besides)))
    figure = long.plot()
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    above = figure.axes[0]
    texts = [above._left_title, *above.texts]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    said = " ".join(text.get_text() for text in texts).replace("\n", "").replace(" ", "")
    assert f"{NAMES[name]}:Linear".replace(" ", "") in said
    assert str(long.spent).replace(" ", "") in said
    assert "epsilon=8(" in said
    pyplot.close(figure)


def test_a_result_and_its_folder_have_the_same_curves(tmp_path: Path) -> None:
    """But for the title, which the folder knows more of: below it every pixel is the same."""
    config = load_config(RUN, ["data.partition.n_clients=3", "rounds=3"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    sink, run = Jsonl(tmp_path / "metrics.jsonl"), build(config, tmp_path)
    for report in run:
        sink.write(report)
    sink.close()
    draw(Run.read(tmp_path), tmp_path / "folder.png")
    figure = run.result().plot()
    figure.savefig(tmp_path / "result.png", dpi=150)
    pyplot.close(figure)
    ours, theirs = (image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("result", "folder"))
    assert ours.shape == theirs.shape
    title = 40  # pixels
    assert np.array_equal(ours[title:], theirs[title:])
    assert ours[title:].std() > 0.05, "something is drawn"
