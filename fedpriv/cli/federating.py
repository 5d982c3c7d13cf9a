"""`fedpriv site` and `fedpriv federate`: sites, plans, and their acceptance by sites."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv.cli.options import AllowPlugins, ConfigFile

if TYPE_CHECKING:
    from fedpriv.privacy import Pairwise
    from fedpriv.sites.descriptor import CertificatePin, SiteDescriptor
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.resolved_plan import ResolvedPlan

site = typer.Typer(no_args_is_help=True, help="Run a site: one organisation's data and budget.")
federate = typer.Typer(no_args_is_help=True, help="Run the server of a federation of sites.")

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="Folder of the site.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan proposed by the server.")]
_ABSENT = 0.05  # share of sites that a federation may miss in a round without notice
TLS = "tls"  # folder of a site's certificate, inside the site's folder


@site.command("init")
def site_init(
    folder: SiteFolder,
    settings: Annotated[
        Path, typer.Argument(metavar="YAML", help="YAML file with name, data, budget, and optionally public_size.")
    ],
    secrets: Annotated[
        str,
        typer.Option("--secrets", metavar="WHERE", help="Where its keys are stored: folder, env:NAME, keyring, ..."),
    ] = "folder",
    allow_plugins: AllowPlugins = False,
) -> None:
    """Create a site with new keys. Its card is the file for other parties."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.site import Site

    new_site = Site.create(folder, settings, secrets)
    rows = {
        "site": f"{new_site.card.name}, {new_site.card.size} examples, in {folder}: protect this folder like the data",
        "key": new_site.card.fingerprint,
        "for the server": str(folder / "card.json"),
        "next": f"run fedpriv site keys {folder}; then the server makes a plan (on one machine, keys are not needed)",
    }
    print_rows(rows)


@site.command("join")
def site_join(
    folder: SiteFolder,
    plan: PlanFile,
    accept: Annotated[
        str | None,
        typer.Option("--accept", metavar="FINGERPRINT", help="Fingerprint of the plan, as compared among the owners."),
    ] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Show a plan's requests to this site, and with --accept reply to them from now on."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.peers.picture import neighbour_names
    from fedpriv.sites.site import Site

    with closing(Site(folder)) as member:
        budget = member.budget
        text = plan.read_text(encoding="utf-8")
        proposal, resolved_plan = member.consider(text)
        names = neighbour_names(resolved_plan, [card.name for card in resolved_plan.cards].index(member.card.name))
        if resolved_plan.is_graph:
            server = f"no server: this site sends its rows to {', '.join(names)} only"
        else:
            server = "a server, which receives what all sites send"
        print_rows(
            {
                "plan": proposal.fingerprint,
                "server": server,
                "queries": _format_queries(proposal, resolved_plan),
                "privacy cost": str(resolved_plan.plan.spent()),
                "sites": ", ".join(f"{card.name} ({card.fingerprint[:9]}...)" for card in proposal.cards),
                "budget": f"epsilon={budget.epsilon:g} (delta={budget.delta:g}) of this site, over all plans",
                "spent so far": f"{member.spent()}, over all plans",
            }
        )
        if accept is None:
            command = f'fedpriv site join {folder} {plan} --accept "FINGERPRINT"'
            print_rows(
                {"next": f"compare the plan's fingerprint with the other owners, not over the server; then {command}"}
            )
            return
        member.join(text, accept)
        command = f"fedpriv site run {folder} --connect tls/HOST:PORT"
        if resolved_plan.is_graph:
            command = f"fedpriv site peer {folder} --listen tls/0.0.0.0:7447 --connect tls/NEIGHBOUR:7447"
        print_rows({"accepted": proposal.fingerprint, "next": command})


def _format_queries(proposal: FederationPlan, resolved_plan: ResolvedPlan) -> str:
    """Returns what a plan asks of a site, as text."""
    from fedpriv.errors import format_count

    if resolved_plan.statistics is not None:
        return proposal.purpose
    n_answers = format_count(len(resolved_plan.plan.records), "answer")
    return f"{resolved_plan.strategy.name}, {format_count(resolved_plan.rounds, 'round')}, {n_answers}"


@site.command("absent")
def site_absent(
    folder: SiteFolder,
    rounds: Annotated[str, typer.Argument(metavar="ROUNDS", help="Rounds as numbered in rounds.jsonl: 7, or 7-9.")],
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FINGERPRINT", help="Fingerprint of the plan, if the site has several."),
    ] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Sign that this site does not reply in some future rounds, so that others omit the noise of its pairs.

    This cannot be undone. Stop the site before, and start it afterwards: the notice is sent with its next reply.
    """
    from fedpriv.cli.printing import print_rows
    from fedpriv.errors import ConfigError
    from fedpriv.sites.federation_plan import find_plan
    from fedpriv.sites.site import Site

    first, _, last = rounds.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        raise ConfigError("ROUNDS", rounds, "must be one round, such as 7, or a range of rounds, such as 7-9")
    with closing(Site(folder)) as absent_site:
        accepted = absent_site.plans
        if plan is None:
            hashes = list(accepted)
        else:
            hashes = find_plan(plan, accepted)
        if len(hashes) != 1:
            fix = (
                f"must be the fingerprint of one accepted plan, and this site has accepted {len(accepted)}; print them "
                f"with: fedpriv site status {folder}"
            )
            raise ConfigError("--plan", plan, fix)
        # users count rounds from 1
        notice = absent_site.declare_absence(hashes[0], int(first) - 1, int(last or first) - 1)
        covered = f"rounds {notice.first + 1} to {notice.last + 1} of plan {accepted[hashes[0]].fingerprint}"
        print_rows({"signed": f"{absent_site.card.name} is absent in {covered}", "next": f"fedpriv site run {folder}"})


@federate.command("plan")
def federate_plan(
    config: ConfigFile,
    cards: Annotated[
        list[str],
        typer.Argument(
            metavar="CARD... [SECTION.FIELD=VALUE]...",
            help="card.json of each site, in order; then settings.",
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the federation.")],
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="Folder of the server's certificate or signing request."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="A setting to change.")
    ] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Write the plan of a federation of these sites, for the sites to accept.

    Settings may follow the cards, as in `federate plan run.yaml north.json south.json rounds=40 --out fed`.
    """
    from fedpriv.cli import shipped
    from fedpriv.cli.printing import print_rows
    from fedpriv.config.statistics import is_statistics_file
    from fedpriv.errors import ConfigError, format_count
    from fedpriv.sites.descriptor import SiteDescriptor
    from fedpriv.sites.over_zenoh.certificates import read_planned_pin
    from fedpriv.sites.peers.picture import draw_graph
    from fedpriv.sites.recording import PLAN
    from fedpriv.sites.resolved_plan import ResolvedPlan

    overrides = [word for word in cards if "=" in word and not Path(word).exists()]
    files = [Path(word) for word in cards if word not in overrides]
    if not files:
        raise ConfigError("CARD", None, "is required: name the card.json of each site")
    descriptors = [SiteDescriptor.read(card) for card in files]
    if keys is None:
        coordinator = None
    else:
        coordinator = read_planned_pin(keys)
    source = shipped.resolve(config)
    changes = [*(settings or []), *overrides]
    if is_statistics_file(source):
        proposal = _plan_statistics(source, changes, descriptors, coordinator, folder)
    else:
        proposal = _plan_training(source, changes, descriptors, coordinator, folder)
    rows = {"plan": f"{folder / PLAN}, for each site to accept", "fingerprint": proposal.fingerprint}

    resolved_plan = ResolvedPlan.of(proposal)
    command = f"fedpriv federate run {folder}"
    if resolved_plan.is_graph:
        n_links = draw_graph(resolved_plan, folder / "graph.png")
        rows["graph"] = f"{folder / 'graph.png'}: {format_count(n_links, 'link')}, no server"
        command = f"each site: fedpriv site join SITE {folder / PLAN}"

    if resolved_plan.statistics is not None:
        rows |= {"statistics": proposal.purpose, **_width_rows(resolved_plan)}
    else:
        rows |= _pair_noise_rows(resolved_plan, len(descriptors))
    print_rows({**rows, "next": command})


def _plan_training(
    source: Path,
    changes: Sequence[str],
    cards: Sequence[SiteDescriptor],
    coordinator: CertificatePin | None,
    folder: Path,
) -> FederationPlan:
    """Writes a plan for training, and the configuration with the server's test data, to a new folder."""
    from fedpriv.cli.printing import print_warning
    from fedpriv.clients import PublicDataInfo
    from fedpriv.config import load_config, to_yaml
    from fedpriv.config.building import load_data
    from fedpriv.sites.federation_plan import PLAN_SECTIONS, propose
    from fedpriv.sites.recording import CONFIG, PLAN
    from fedpriv.sites.unsupported import settings_without_effect
    from fedpriv.storage import RunFolder

    loaded = load_config(source, changes, n_owners=len(cards))
    split = load_data(loaded)
    proposal = propose(loaded, cards, PublicDataInfo.of([split.test], split.n_classes), coordinator)
    with RunFolder.new(folder) as run_folder:
        run_folder.write(CONFIG, to_yaml(loaded).encode())
        run_folder.write(PLAN, proposal.text.encode())
    without_effect = settings_without_effect(loaded, PLAN_SECTIONS)
    if without_effect:
        print_warning(
            f"these settings have no effect between organisations: {', '.join(without_effect)}; leave them out"
        )
    return proposal


def _plan_statistics(
    source: Path,
    changes: Sequence[str],
    cards: Sequence[SiteDescriptor],
    coordinator: CertificatePin | None,
    folder: Path,
) -> FederationPlan:
    """Writes a plan for statistics to a new folder."""
    from fedpriv.config.statistics import load_statistics
    from fedpriv.sites.federation_plan import propose_statistics
    from fedpriv.sites.recording import PLAN
    from fedpriv.storage import RunFolder

    proposal = propose_statistics(load_statistics(source, changes), cards, coordinator)
    with RunFolder.new(folder) as run_folder:
        run_folder.write(PLAN, proposal.text.encode())
    return proposal


def _width_rows(resolved_plan: ResolvedPlan) -> dict[str, str]:
    """Returns about half of the width of each interval of a plan's statistics."""
    return {
        f"{name}: {label}": f"95 % interval of about ± {width:.3g}"
        for name, widths in resolved_plan.half_widths().items()
        for label, width in widths.items()
    }


def _pair_noise_rows(resolved_plan: ResolvedPlan, n_sites: int) -> dict[str, str]:
    """Returns the effects of absent sites on the noise of pairs, at the plan's own settings; empty without pairs."""
    from fedpriv.forecast.pairs import forecast_pairs
    from fedpriv.privacy import Complete, Pairwise

    rows = dict[str, str]()
    trust = resolved_plan.plan.privacy.trust
    pairs = forecast_pairs(resolved_plan.plan, resolved_plan.network, resolved_plan.public)
    if pairs is not None:
        for line in pairs.left:
            if (line.colluders, line.ratio) == (getattr(trust, "colluders", None), getattr(trust, "ratio", None)):
                factor = line.if_one_drops / line.in_mean
                rows["if absent"] = (
                    f"if one site is absent without a signed notice, the mean of the others has {factor:.2g} times the "
                    "noise"
                )
    if isinstance(trust, Pairwise) and isinstance(trust.secrets, Complete):
        rows["at random"] = _absences_row(n_sites, trust)
    return rows


def _absences_row(n_sites: int, trust: Pairwise) -> str:
    """Returns the effect of unannounced absences on the noise of pairs, and the best ratio for this many sites."""
    from fedpriv.forecast.pair_absences import compute_noise_with_absences, find_best_ratio

    best = find_best_ratio(n_sites, trust.colluders, _ABSENT)
    left = compute_noise_with_absences(n_sites, trust.ratio, trust.colluders, _ABSENT)
    least = compute_noise_with_absences(n_sites, best, trust.colluders, _ABSENT)
    return (
        f"if {_ABSENT:.0%} of the sites are absent without notice, the mean has {left:.0%} of the noise of trust: "
        f"local; with ratio {best:g}, it would have {least:.0%}"
    )
