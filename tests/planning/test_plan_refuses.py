"""What a run refuses, its plan refuses with the same words, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError

RUN = Path(__file__).parents[1] / "run.yaml"
FAR = "log.metrics.far=torch.nn.functional:cross_entropy"
FEDAVG = "strategy={name: fedavg, learning_rate: 1}"
REFUSED = {
    r"compute\.dtype = 'float64': compute\.precision bfloat16 needs float32 parameters": [
        "compute={precision: bfloat16, dtype: float64}"
    ],
    r"compute\.precision = 'bfloat16': is supported only for the privacy unit sample": [
        "compute.precision=bfloat16",
        FEDAVG,
        "privacy={epsilon: 3, unit: client, noise_on: message}",
    ],
    r"compute\.client_state = 'disk': clients of fedavg keep no state": ["compute.client_state=disk", FEDAVG],
    r"compute\.client_state = 'disk': every client takes part": ["compute.client_state=disk"],
    r"compute\.backend = 'linear': needs a model of one nn\.Linear": ["compute.backend=linear", "model=mnist_cnn"],
    r"log\.stop\.metric = 'acuracy': is not a metric .* choose one of test_loss, test_accuracy": [
        "log.stop.metric=acuracy"
    ],
    r"log\.stop\.metric = 'client_test_loss_min'": ["log.stop.metric=client_test_loss_min"],
    r"log\.metrics\.error = 'rmse': needs targets that are numbers": ["log.metrics.error=rmse"],
    r"log\.metrics\.error = 'rsme': must be one of rmse, mae, auc": ["log.metrics.error=rsme"],
    r"log\.metrics = 'accuracy': is the name of a built-in metric": ["log.metrics.accuracy=math:hypot"],
    r"log\.stop\.better = None: is required for far: set 'higher' or 'lower'": [
        "log={metrics: {far: 'torch.nn.functional:cross_entropy'}, stop: {metric: far}}"
    ],
    r"log\.client_tests = True: needs the client of each test example, which digits does not give": [
        "log.client_tests=true"
    ],
}


@pytest.mark.parametrize("said", REFUSED)
@pytest.mark.usefixtures("allow_plugins")
def test_plan_and_run_raise_same_error(said: str) -> None:
    found: list[str] = []
    for make in (build, forecast):
        with pytest.raises(ConfigError, match=f"^{said}") as caught:
            make(load_config(RUN, REFUSED[said]))
        found.append(str(caught.value))
    assert found[0] == found[1]


@pytest.mark.usefixtures("allow_plugins")
def test_plan_accepts_valid_run_options() -> None:
    """Metrics are not computed on the generated examples of a plan."""
    stop = ["log.metrics.far=math:hypot", "log.stop={metric: far, better: lower}"]
    ghost = ["compute={precision: bfloat16, backend: ghost}"]
    for taken in (stop, ["log.stop.metric=loss"], ["compute.precision=bfloat16"], ghost):
        assert forecast(load_config(RUN, taken)).releases == 30
