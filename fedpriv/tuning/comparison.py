"""Several configurations on one task: each trained several times, in separate folders, with their total cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedpriv.config import Config, load_config
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.forecast.compare import Comparison
from fedpriv.privacy import RunCost, compose
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.runs import Result, RoundReport, total
from fedpriv.tuning.search_cost import plan_trial
from fedpriv.tuning.trials import run_in_folder

Watch = Callable[[str, RoundReport], None]


class ConfigComparison:
    """Settings on one task, as configurations.

    Args:
        paths: Configurations to compare.
        overrides: Settings that are changed in all of them.
        variants: Settings that are changed in one line of the comparison each, e.g. `rounds=40`; every configuration is
            trained with each of them. Empty to train the configurations unchanged.
        seeds: Number of runs of each, with public seeds 0, 1, ... and separate secret noise.

    Raises:
        ConfigError: If there is nothing to compare, the tasks differ, or all runs would share their noise.

    Attributes:
        configs: By name, the configuration of each seed.
    """

    def __init__(self, paths: Sequence[Path], overrides: Sequence[str], variants: Sequence[str], seeds: int) -> None:
        self.configs: dict[str, list[Config]] = {}
        for path in paths:
            for variant in variants or [""]:
                name = " ".join(text for text in (path.stem if len(paths) > 1 else "", variant) if text) or path.stem
                if name in self.configs:
                    raise ConfigError(
                        "comparison",
                        name,
                        "would be the name of two rows: give each file and each --variant once, and give files "
                        "different names",
                    )
                changed = [*overrides]
                if variant:
                    changed.append(variant)
                self.configs[name] = [load_config(path, [*changed, f"seed={seed}"]) for seed in range(seeds)]
        first_name = next(iter(self.configs))
        for name, configs in self.configs.items():
            if configs[0].secret_seed is not None:
                fix = "would be used by several runs, which would then share their noise: leave it out"
                raise ConfigError(f"{name}: secret_seed", configs[0].secret_seed, fix)
            if configs[0].data != self.configs[first_name][0].data:
                fix = (
                    f"differs from the data of {first_name}, so metrics could not be compared: use the same section "
                    "data in all configurations"
                )
                raise ConfigError(f"{name}: data", configs[0].data.name, fix)

    def cost(self) -> PrivacySpent | None:
        """Returns the largest total cost of all runs, before any is made; None without a common guarantee."""
        planned = list[RunCost]()
        for name, configs in self.configs.items():
            for seed, config in enumerate(configs):
                plan = plan_trial(config)
                planned.append(
                    RunCost(
                        f"{name}, seed {seed}",
                        plan.records,
                        plan.n_clients,
                        "the same in all runs",
                        not_covered=plan.not_covered,
                        float64_noise=plan.float64_noise,
                    )
                )
        try:
            return compose(planned, min(configs[0].privacy.delta for configs in self.configs.values()))
        except PrivacyError:
            return None

    def run(self, folder: Path, watch: Watch) -> Comparison:
        """Trains all, each in a separate folder below `folder`, so that their ledgers are kept.

        Args:
            folder: A new or empty folder.
            watch: Called with a run's name and the report of every round.

        Raises:
            ConfigError: If the folder is not empty.
        """
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError("--out", str(folder), "is not empty: name a new folder")
        results: dict[str, tuple[Result, ...]] = {}
        for number, (name, configs) in enumerate(self.configs.items(), start=1):
            trained = list[Result]()
            for seed, config in enumerate(configs):
                trained.append(
                    run_in_folder(
                        config,
                        folder / f"{number}-{seed}",
                        lambda report, name=f"{name}, seed {seed}": watch(name, report),
                    )
                )
            results[name] = tuple(trained)
        return Comparison(results, _compute_cost(results))


def _compute_cost(results: Mapping[str, Sequence[Result]]) -> PrivacySpent | None:
    """Returns the total cost of all runs; None if they have no common guarantee."""
    try:
        return total([result for of_setting in results.values() for result in of_setting])
    except PrivacyError:
        return None
