"""Prints the noise and an attacker's success at several target epsilons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fedpriv.cli import shipped
from fedpriv.cli.printing import out, print_json, spinner_with_text
from fedpriv.errors import ConfigError
from fedpriv.planning import align_columns
from fedpriv.tuning.tradeoff import tradeoff


def run(
    config: Path,
    targets: str,
    overrides: Sequence[str],
    public_data: Sequence[str],
    seeds: int,
    picture: Path | None,
    *,
    as_json: bool,
) -> None:
    """Prints the table, and draws it.

    Args:
        config: The configuration.
        targets: `epsilon=.5,1,2`.
        overrides: Settings to change.
        public_data: Settings that replace the private data.
        seeds: Runs on public data for each target.
        picture: PNG file to write; None draws nothing.
        as_json: Print one JSON object.

    Raises:
        ConfigError: If the targets have the wrong form, or cannot be reached.
    """
    if picture is not None and picture.suffix != ".png":
        raise ConfigError("--out", str(picture), "the picture must be a PNG file: use a name that ends in .png")
    with spinner_with_text("planning") as status:
        result = tradeoff(
            shipped.resolve(config),
            overrides,
            _numbers(targets),
            public_data=public_data,
            seeds=seeds,
            watch=lambda text: status.update(text),
        )
    if picture is not None:
        result.figure().savefig(picture)
    if as_json:
        print_json(result.to_json())
        return
    for line in align_columns(result.table()):
        out.print(escape(line))
    for note in result.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
    if picture is not None:
        out.print(f"picture: {escape(str(picture))}")


def _numbers(text: str) -> list[float]:
    name, equals, values = text.partition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if name not in ("epsilon", "privacy.epsilon") or not equals or not numbers:
        raise ConfigError("epsilon", text, "must be a list of target epsilons, e.g. epsilon=.5,1,2,4,8")
    return numbers
