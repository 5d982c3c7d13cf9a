"""Compares a paper's privacy claim with the true cost of its noise: as text, as JSON, and as a picture over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.errors import ConfigError
from fedpriv.papers.claims import Claim
from fedpriv.papers.claims.papers import Paper, paper
from fedpriv.privacy.accounting import round_up
from fedpriv.storage import BLUE, GREY, VERMILION, new_figure, strict_json, write_png


@dataclass(frozen=True)
class Checked:
    """A paper's claim and the true privacy cost of its noise.

    Attributes:
        source: The paper.
        settings: Settings of the run.
        claim: The stated epsilon and the epsilon of the noise.
        more_noise: Factor for the noise at which the run costs the stated epsilon; None if no amount of noise does.
    """

    source: Paper
    settings: dict[str, float]
    claim: Claim
    more_noise: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `fedpriv claims --json`; an infinite epsilon is `"inf"`."""
        claim, printed = self.claim, strict_json.encode_epsilon
        totals = {name: printed(getattr(claim, name)) for name in ("stated_epsilon", "basic_total", "tight_total")}
        views = {view: printed(epsilon) for view, epsilon in claim.views}
        return strict_json.to_plain(
            {**asdict(claim), **totals, "views": views, "settings": self.settings, "more_noise": self.more_noise}
        )

    def rows(self) -> dict[str, str]:
        """Returns names and values, as printed."""
        claim, factor = self.claim, self.more_noise
        if factor is None:
            needed = "no finite amount: the released values are exact"
        else:
            needed = f"{round_up(factor)} times the published one are enough"
        if factor is None and math.isfinite(claim.tight_total):
            needed = "not computed: the stated value is a lower bound"
        true, basic = _printed(claim.tight_total), _printed(claim.basic_total)
        rows = {
            "method": self.source.title,
            "settings": ", ".join(f"{name}={value:g}" for name, value in self.settings.items()),
            "stated": claim.stated,
            "stated epsilon": f"{_printed(claim.stated_epsilon)}, for {claim.scope}",
            "true epsilon": f"{true} for the whole run; {basic} by basic composition",
            **{f"  {view}": _printed(epsilon) for view, epsilon in claim.views},
            "noise needed": needed,
            "violated": claim.why_not or "no known assumption",
        }
        return rows


def check(name: str, given: Mapping[str, Any]) -> Checked:
    """Checks a paper's claim.

    Args:
        name: One of `papers.PAPERS`.
        given: Settings that differ from the paper's experiments.

    Raises:
        ConfigError: If there is no such paper or setting, or a value is out of range.
    """
    source = paper(name)
    settings = source.filled(given)
    return Checked(source, settings, source.claim(**settings), source.more_noise(settings))


def draw(checked_claim: Checked, path: Path) -> None:
    """Draws the stated and the true epsilon against the number of rounds.

    Args:
        checked_claim: The claim.
        path: PNG file to write.

    Raises:
        ConfigError: If the name does not end in .png, or there is no finite epsilon to draw.
    """
    if path.suffix != ".png":
        raise ConfigError("--out", str(path), "the picture must be a PNG file; use a name that ends in .png")
    if math.isinf(checked_claim.claim.tight_total):
        raise ConfigError("--out", str(path), "cannot be drawn, because the true epsilon is infinite: leave it out")
    points = checked_claim.source.over_rounds(checked_claim.settings)
    rounds = [number for number, _ in points]
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    axes.plot(rounds, [claim.tight_total for _, claim in points], color=VERMILION, marker="o", label="true, whole run")
    axes.plot(rounds, [claim.basic_total for _, claim in points], color=GREY, linestyle=":", label="basic composition")
    stated = f"stated, for {checked_claim.claim.scope}"
    axes.plot(rounds, [claim.stated_epsilon for _, claim in points], color=BLUE, linestyle="--", label=stated)
    axes.set(xscale="log", yscale="log", xlabel=checked_claim.source.rounds, ylabel="epsilon")
    axes.set_title(checked_claim.source.title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_png(figure, path)


def _printed(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "inf"
    return round_up(epsilon)
