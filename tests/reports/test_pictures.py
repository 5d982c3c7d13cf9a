"""One picture code for a result and a run's folder, which cuts neither title nor epsilon."""

from __future__ import annotations

from collections.abc import Callable
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
from fedpriv.forecast.compare import Comparison
from fedpriv.reports.picture import draw
from fedpriv.reports.report import Run

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
def test_long_title_and_caption_fit_picture(name: str, result: fp.Result) -> None:
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
    message = " ".join(text.get_text() for text in texts).replace("\n", "").replace(" ", "")
    assert f"{NAMES[name]}:Linear".replace(" ", "") in message
    assert str(long.spent).replace(" ", "") in message
    assert "epsilon=8(" in message
    pyplot.close(figure)


def test_result_and_folder_draw_same_curves(tmp_path: Path) -> None:
    """Only the title may differ, because the folder holds more facts; below it every pixel is equal."""
    config = load_config(RUN, ["data.partition.n_clients=3", "rounds=3"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    run = build(config, tmp_path)
    list(run)
    draw(Run.read(tmp_path), tmp_path / "folder.png")
    figure = run.result().plot()
    figure.savefig(tmp_path / "result.png", dpi=150)
    pyplot.close(figure)
    ours, theirs = (image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("result", "folder"))
    assert ours.shape == theirs.shape
    title = 40  # pixels
    assert np.array_equal(ours[title:], theirs[title:])
    assert ours[title:].std() > 0.05, "something is drawn"


PLOTS: dict[str, Callable[[fp.Result, str], object]] = {
    "result": lambda result, file: result.plot(file),
    "history": lambda result, file: result.history.plot("test_accuracy", file=file),
    "comparison": lambda result, file: Comparison({"a": (result,)}, None).plot(file),
}


@pytest.mark.parametrize("name", PLOTS)
def test_plot_to_file_prints_path(
    name: str, result: fp.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.png"
    PLOTS[name](result, str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == f"picture: {file}\n"
    with pytest.raises(fp.ConfigError, match=r"use a file name that ends in \.png"):
        PLOTS[name](result, str(tmp_path / "run.xyz"))
    with pytest.raises(fp.FedprivError, match="could not be written"):
        PLOTS[name](result, str(tmp_path / "gone" / "run.png"))


def test_comparison_legend_below_panels(result: fp.Result) -> None:
    """Long names neither cover a curve nor make the panels narrow."""
    names = [
        f"{index} strategy.learning_rate=0.5 privacy.clip.bound=0.1 data.partition.seed=4 " * 2 for index in range(3)
    ]
    figure = Comparison(dict.fromkeys(names, (result,)), None).plot()
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x1 <= figure.bbox.width
    for axes in figure.axes:
        panel = axes.get_window_extent()
        assert axes.get_legend() is None
        assert box.y1 <= panel.y0
        assert panel.width > 0.35 * figure.bbox.width
    pyplot.close(figure)


def test_comparison_line_styles_unique(result: fp.Result) -> None:
    figure = Comparison({str(index): (result,) for index in range(12)}, None).plot()
    lines = figure.axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 12
    pyplot.close(figure)


def test_legend_of_run_above_its_panel(result: fp.Result) -> None:
    spread = {"client_test_accuracy_p10": 0.1, "client_test_accuracy_p90": 0.9, "client_test_accuracy_min": 0.0}
    rows = [{**row, **spread} for row in result.reports]
    figure = replace(result, reports=tuple(rows)).plot()
    figure.canvas.draw()
    top = figure.axes[0]
    legend = top.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert box.y0 >= top.get_window_extent().y1
    for text in (top._left_title, *top.texts[-1:]):
        assert box.y1 <= text.get_window_extent().y0 + 1
    pyplot.close(figure)
