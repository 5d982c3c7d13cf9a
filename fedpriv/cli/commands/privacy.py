"""The commands about privacy guarantees: audit, budget, tradeoff, compare, tune, claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedpriv.cli import shipped
from fedpriv.cli.options import AllowPlugins, AsJson, ConfigFile, Overrides

commands = typer.Typer()


@commands.command()
def audit(
    subject: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN|STRATEGY", help="Configuration, folder of a run, or 'package.module:Name'."),
    ],
    overrides: Overrides = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write audit.json and audit.png to this folder; they are not private."
        ),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Folder with other runs, which may use the same data.")
    ] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Search for broken guarantees of a run or a strategy: data, clipping, noise, ledger, other outputs.

    The exit code is 0 if all checks held, 1 if something was found, and 2 if something could not be checked.
    """
    from fedpriv.cli import auditing

    result = auditing.run(subject, overrides or [], folder, runs, as_json=as_json)
    if result.status:
        raise typer.Exit(result.status)


@commands.command()
def budget(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The budget file; --epsilon creates it.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Create a budget: the most that all runs on the data may spend.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the budget.")] = 1e-5,
    unit: Annotated[str, typer.Option("--unit", help="Privacy unit: sample or client.")] = "sample",
    relation: Annotated[
        str, typer.Option("--relation", help="Neighbouring relation: replace_one or add_remove.")
    ] = "replace_one",
    invariants: Annotated[
        str, typer.Option("--invariants", help="What neighbouring data sets also have in common, e.g. 'sizes public'.")
    ] = "",
    data: Annotated[str, typer.Option("--data", help="Name of the data set; default: name of the file.")] = "",
    accountant: Annotated[
        str | None,
        typer.Option("--accountant", help="Use only this accountant; gaussian and pure also allow adaptive choices."),
    ] = None,
    opacus: Annotated[
        Path | None,
        typer.Option("--opacus", metavar="FILE", help="Charge earlier training with Opacus: a checkpoint, or JSON."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the training with Opacus.")] = None,
    poisson_sampling: Annotated[
        bool,
        typer.Option(
            "--poisson-sampling", help="The batches of Opacus were Poisson draws, as make_private draws them."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create the lifetime budget of a data set, or show the spending of each run and the remaining budget.

    A run with this budget in its configuration (privacy.budget) first reserves its whole plan, or stops with an error.
    """
    from fedpriv.cli import budgeting

    if epsilon is not None:
        terms = {"unit": unit, "relation": relation, "invariants": invariants, "data": data, "accountant": accountant}
        budgeting.create(file, epsilon=epsilon, delta=delta, **terms)
    if opacus is not None:
        budgeting.charge_opacus(file, opacus, name, poisson_sampling=poisson_sampling)
    budgeting.print_balance(file, as_json=as_json)


@commands.command()
def tradeoff(
    config: ConfigFile,
    epsilons: Annotated[
        str, typer.Argument(metavar="epsilon=E,E,...", help="Target epsilons, e.g. epsilon=.5,1,2,4,8.")
    ],
    overrides: Overrides = None,
    public_data: Annotated[
        list[str] | None,
        typer.Option(
            "--public-data",
            metavar="FIELD=VALUE",
            help="Also train on public or made-up data: the setting that replaces the private data, e.g. "
            "data.train=public.csv.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs on the public data per target.", min=1)] = 3,
    picture: Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Write a picture to this file.")] = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Show the noise for each target epsilon, and the success of an attacker at it; spends nothing."""
    from fedpriv.cli import trading

    trading.run(config, epsilons, overrides or [], public_data or [], seeds, picture, as_json=as_json)


@commands.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG... [SECTION.FIELD=VALUE]...",
            help="YAML files or names of shipped configurations, and settings to change in all of them.",
            autocompletion=shipped.complete_names,
        ),
    ],
    variants: Annotated[
        list[str] | None,
        typer.Option("--variant", metavar="FIELD=VALUE", help="Add a row to the table, with this setting changed."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs per row.", min=1)] = 3,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="New folder for the runs, comparison.png and comparison.json."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print the privacy cost of all runs together, without training.")
    ] = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Train several configurations or settings on one task, in one table, with their total privacy cost."""
    from fedpriv.cli import comparing

    comparing.run(words, variants or [], seeds, folder, plan_only=plan_only, as_json=as_json)


@commands.command()
def tune(
    config: ConfigFile,
    space: Annotated[
        Path, typer.Argument(metavar="SPACE", help="YAML file of fields with ranges, e.g. rounds: {low: 5, high: 50}.")
    ],
    overrides: Overrides = None,
    trials: Annotated[
        int, typer.Option("--trials", help="Number of runs; with --secret-trials, the expected number.")
    ] = 20,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="Largest privacy cost of the search; default: the cost of its plan."),
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="The score, on public test data.")] = "test_accuracy",
    score_noise: Annotated[
        float | None,
        typer.Option(
            "--score-noise",
            help="For private test data: noise of scores, as a multiple of what one example can change.",
        ),
    ] = None,
    better: Annotated[str | None, typer.Option("--better", help="higher or lower, for custom metrics.")] = None,
    sampler: Annotated[str, typer.Option("--sampler", help="tpe learns from scores; random ignores them.")] = "tpe",
    secret_trials: Annotated[
        str | None,
        typer.Option(
            "--secret-trials", help="Draw the number of trials in secret and publish one model: logarithmic, ..."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Public seed of the sampler.")] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the search; an unfinished search in it is resumed."),
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the privacy cost and exit.")] = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Search for good settings; the privacy cost of all trials is printed, and limited, before the first trial."""
    from fedpriv.cli import tuning
    from fedpriv.tuning import SearchSettings

    # their texts are checked by the settings
    unchecked: Any = {"score_noise": score_noise, "better": better, "secret_trials": secret_trials, "sampler": sampler}
    settings = SearchSettings(trials, metric=metric, epsilon=epsilon, seed=seed, **unchecked)
    tuning.run(config, space, overrides or [], settings, folder, plan_only=plan_only, as_json=as_json)


@commands.command()
def claims(
    name: Annotated[str, typer.Argument(metavar="PAPER", help="A method, e.g. iadmm; a wrong name lists all.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING=VALUE]...", help="e.g. rounds=1000 delta=1e-6")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--out", metavar="PNG", help="Write a picture of both epsilons over rounds to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a paper's stated epsilon with the epsilon of its noise, and with the noise that it would need."""
    from fedpriv.cli.printing import print_json, print_rows
    from fedpriv.config.files import override
    from fedpriv.papers.checking import check, draw

    settings: dict[str, Any] = {}
    for option in options or []:
        settings = override(settings, option)
    comparison = check(name, settings)
    picture_row: dict[str, str] = {}
    if picture is not None:
        draw(comparison, picture)
        picture_row["picture"] = str(picture)
    if as_json:
        print_json({**comparison.to_json(), **picture_row})
    else:
        print_rows({**comparison.rows(), **picture_row})
