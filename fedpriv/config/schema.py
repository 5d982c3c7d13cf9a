"""The sections and settings of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from inspect import signature
from operator import or_
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, create_model, model_validator

from fedpriv.clients import AUGMENTATIONS, Augmentation
from fedpriv.config.base import Plugin, Section, YamlFormat, options_model, options_section, with_field_errors
from fedpriv.config.network import NetworkSection
from fedpriv.config.privacy import PrivacySection
from fedpriv.config.problem import ProblemSection
from fedpriv.config.strategies import CONTEXT, STRATEGIES
from fedpriv.config.yaml_formats import YAML_FORMATS
from fedpriv.data import DATASETS, Extractor
from fedpriv.data.partition import PARTITIONS, Kind
from fedpriv.errors import ConfigError
from fedpriv.models import LOSSES, MODELS, Lora, Weights
from fedpriv.papers.recipe import Recipe
from fedpriv.privacy import Privacy
from fedpriv.runs import TrainingOptions
from fedpriv.settings import Count, Whole
from fedpriv.strategies import Strategy


class PartitionSection(Section):
    """The distribution of examples: `kind` names a function of `fedpriv.data.partition`, followed by its options."""

    kind: Kind
    n_clients: int | None
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of this kind."""
        return {name: value for name, value in self if name not in PartitionSection.model_fields}


_FROM_DATA = ("n_examples", "labels", "writers", "generator")


def _partition_section(kind: Kind) -> type[PartitionSection]:
    """Creates the section of a kind of partition, with the parameters of its function as options."""
    tag: Any = Literal[kind]
    options: Any = options_model(PARTITIONS[kind], _FROM_DATA)
    return create_model(kind, __base__=(options, PartitionSection), kind=(tag, ...))


PARTITION_SECTIONS: Mapping[str, type[PartitionSection]] = {kind: _partition_section(kind) for kind in PARTITIONS}
_PARTITION: Any = Annotated[reduce(or_, PARTITION_SECTIONS.values()), Field(discriminator="kind")]


class AugmentSection(Plugin):
    """A random change of inputs."""

    field, registry = "data.augment", AUGMENTATIONS


class StandardizeSection(Section):
    """Private standardisation of the numeric columns of a table; see `fedpriv.config.standardizing`.

    `columns` are columns in `data.numbers`, by default all except the label. `share` is the part of the run's budget
    (of the squared ratio of sensitivity to noise) for their means and deviations, which are released before the first
    round.
    """

    columns: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1


class DataSection(Plugin):
    """A data set and its division among clients.

    `augment` lists random changes of training inputs, which are applied in order and drawn anew for each query:
    `[{name: crop, padding: 2}, flip]`. With an `augmentation_multiplicity` of K, an example has K views, and their mean
    gradient is clipped once. `extractor` names a frozen network in a file; its outputs become the inputs: `{file:
    body.safetensors, model: resnet18_gn, layer: avgpool, exclude: [fc.*]}` or `{file: body.onnx}`. `standardize` scales
    numeric columns of a table by private means and deviations: `{columns: [age], share: 0.1}`.
    """

    field, registry = "data", DATASETS

    partition: Annotated[PartitionSection, YamlFormat(_PARTITION)]
    augment: list[AugmentSection] = Field(default_factory=list[AugmentSection])
    augmentation_multiplicity: Count = 1
    extractor: Annotated[Extractor, YamlFormat(with_field_errors(Extractor))] | None = None
    standardize: StandardizeSection | None = None

    @property
    def augmentation(self) -> Augmentation:
        """Random views of train examples."""
        return Augmentation([section.build() for section in self.augment], self.augmentation_multiplicity)


def _as_file(raw: object) -> object:
    if isinstance(raw, str):
        return {"file": raw}
    return raw


class ModelSection(Plugin):
    """The model; `fix` replaces layers that mix examples, such as BatchNorm.

    `weights` names a local file with initial weights: a path, or `{file: PATH, exclude: [head.*]}`.
    `train` lists the parameters to train, with `*` for any text: `[head.*]`. All others are frozen and must be public.
    `lora` adds adapters to linear layers, which are then also trained: `{layers: [blocks.*.query], rank: 4}`.
    """

    field, registry, context = "model", MODELS, ("input_shape", "n_features", "n_classes")

    fix: bool = False
    weights: Annotated[Weights, YamlFormat(with_field_errors(Weights)), BeforeValidator(_as_file)] | None = None
    lora: Annotated[Lora, YamlFormat(with_field_errors(Lora))] | None = None
    train: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


class LossSection(Plugin):
    """The loss."""

    field, registry = "loss", LOSSES


class StrategySection(Plugin):
    """The algorithm. `variant: published` is the version published in a paper, with its noise, private or not."""

    field, registry, context, yaml_formats = "strategy", STRATEGIES, CONTEXT, YAML_FORMATS

    variant: Literal["sound", "published"] = "sound"

    @model_validator(mode="before")
    @classmethod
    def _optimizer_only_where_steps_are_free(cls, raw: object) -> object:
        """Raises an error for an optimiser with strategies that require their own plain step."""
        if not (isinstance(raw, dict) and "optimizer" in raw and raw.get("name") in STRATEGIES):
            return raw
        names = [name for name, entry in STRATEGIES.items() if "optimizer" in signature(entry.build).parameters]
        if raw["name"] not in names or raw.get("variant", "sound") != "sound":
            fix = (
                f"{raw['name']} computes its own steps and uses no optimiser: leave it out, or choose a strategy with "
                f"an optimiser: {', '.join(names)}"
            )
            raise ConfigError("strategy.optimizer", raw["optimizer"], fix)
        return raw

    @classmethod
    def variants(cls, name: str) -> tuple[dict[str, str], ...]:
        """Returns no field, and `variant: published` for a name with a published variant."""
        if STRATEGIES[name].variants.published:
            return ({}, {"variant": "published"})
        return ({},)

    @classmethod
    def builder(cls, section_fields: Mapping[str, Any]) -> Callable[..., Strategy | Recipe]:
        """Returns the function that builds the strategy, for this variant."""
        name = section_fields["name"]
        if section_fields.get("variant") != "published":
            return super().builder(section_fields)
        published = None
        if name in STRATEGIES:
            published = STRATEGIES[name].variants.published
        if published is None:
            names = ", ".join(name for name, entry in STRATEGIES.items() if entry.variants.published)
            raise ConfigError(
                "strategy.variant",
                "published",
                f"does not exist for {name}: leave it out, or use one of the strategies {names}",
            )
        return published

    def recipe(self, rounds: int, epsilon_bar: float | None, active_fraction: float = 1.0) -> Recipe:
        """Builds the strategy, with its schedule and published noise if it has any."""
        built: Any = self.build(rounds=rounds, epsilon_bar=epsilon_bar, active_fraction=active_fraction)
        recipe = built
        if isinstance(built, Strategy) and self.name in STRATEGIES:
            recipe = STRATEGIES[self.name].variants.after(built)
        elif isinstance(built, Strategy):
            recipe = Recipe(built)
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                "strategy",
                self.name,
                f"must return a fedpriv.Strategy, but returns a {type(built).__name__}: correct the function",
            )
        name = self.name
        if self.variant != "sound":
            name = f"{self.name} ({self.variant})"
        return replace(recipe, strategy=replace(recipe.strategy, name=name))


REPORTING = ("evaluate_every", "checkpoint_every", "stop_on", "stop", "keep", "save_node_models", "optimum")
_REPORTING_OPTIONS: Any = options_section(TrainingOptions, REPORTING)


class LogSection(_REPORTING_OPTIONS):
    """The contents and frequency of logs: options of `fedpriv.train`, and the files to write.

    `model.pt` is the model (the mean over nodes); `save_node_models` writes each node's model to `node_models.pt`.
    `stop_on` ends a run when a released model is not finite (`nonfinite`), also when its test loss is not finite
    (`nonfinite_loss`), or never (`nothing`); the whole plan is then charged.
    `optimum` is the smallest value of the objective, if known. The result then contains the gap to it, which is not
    private: for experiments on public data only.
    `stop` ends a run when a test metric no longer improves; the whole plan is then charged. `keep: best` returns the
    model of the round with the best test metric: at no epsilon, but with an optimistic metric. `metrics` adds further
    metrics by name, each a `package.module:name` of a function of outputs and targets; if targets are numbers, also
    `rmse` or `mae`, in the units of the data's own column; with two classes also `auc`, `sensitivity`, `specificity`,
    `brier` or `calibration_error`. `client_tests` also tests each client's model on the test examples of its own
    writers (femnist), and reports the spread over clients. `test: false` is for private test data: nothing is computed
    on them (`fedpriv tune --score-noise` releases a noised score).
    """

    test: bool = True
    tensorboard: bool = True
    csv: bool = False
    metrics: dict[str, str] = Field(default_factory=dict)
    client_tests: bool = False

    @model_validator(mode="after")
    def _tests_what_may_be_tested(self) -> Self:
        needs_test_data = {"stop": self.stop, "metrics": self.metrics, "client_tests": self.client_tests}
        for name, value in needs_test_data.items():
            if value and not self.test:
                raise ConfigError(
                    f"log.{name}", value, "needs test data, but log.test is false: leave out this setting or log.test"
                )
        return self


_RUN_OPTIONS: Any = options_section(TrainingOptions, ("rounds", "seed", "compute"))


class Config(_RUN_OPTIONS):
    """The configuration of a run: options of `fedpriv.train`, and sections for settings that are objects in Python."""

    data: DataSection
    model: ModelSection
    loss: LossSection = LossSection(name="cross_entropy")
    problem: ProblemSection = ProblemSection()
    strategy: StrategySection
    privacy: PrivacySection
    network: NetworkSection = NetworkSection()
    secret_seed: Annotated[Whole | None, Field(exclude=True)] = None  # neither written to files nor fingerprinted
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self.promise()  # raises for settings that contradict each other; also builds the strategy and the network
        return self

    def recipe(self, n_clients: int | None = None) -> Recipe:
        """Builds the strategy and its noise; give `n_clients` if the configuration leaves it to the data."""
        fraction = self.network.active_fraction(n_clients or self.data.partition.n_clients)
        return self.strategy.recipe(self.rounds, self.privacy.epsilon_bar, fraction)

    def promise(self, n_clients: int | None = None) -> Privacy:
        """Builds the privacy settings; see `recipe` for `n_clients`."""
        if self.strategy.variant == "published" and self.privacy.epsilon_bar is None:
            fix = (
                "is required by strategy.variant: published: set the paper's epsilon per round, e.g. 0.05 (.inf for no "
                "noise)"
            )
            raise ConfigError("privacy.epsilon_bar", None, fix)
        return self.privacy.build(self.recipe(n_clients))
