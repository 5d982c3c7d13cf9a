"""Trains digits_iadmm from Python: `python digits_iadmm.py`."""

from pathlib import Path

from fedpriv.config import build, load_config

HERE = Path(__file__).parent


def main() -> None:
    """Plan, train, report, save."""
    # any setting can be changed here, e.g. load_config(path, ["privacy.epsilon=1"])
    training = build(load_config(HERE / "digits_iadmm.yaml"))
    print(f"planned: {training.plan.spent()}")
    for report in training:
        print(
            f"round {report.round}/{report.rounds}", {name: round(value, 4) for name, value in report.metrics.items()}
        )
    result = training.result()
    print(result)
    # result.model is the trained torch module, result.spent what it cost
    result.save(HERE / "digits_iadmm_result")


if __name__ == "__main__":
    main()
