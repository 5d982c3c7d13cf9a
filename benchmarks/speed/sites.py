"""Measures a round between organisations: sites over Zenoh, each a process, against the same run in one process.

    python benchmarks/speed/sites.py [--markdown FILE] [--sites 5 20] [--parameters 10000 1000000]
    python benchmarks/speed/sites.py --soak 10000        # memory and handles of a site and of the server
    .venv-flower/bin/python benchmarks/speed/sites.py --flower 5      # rounds over Flower beside them

The data are synthetic, 10 examples per site, so that almost nothing is computed. Mutual TLS and signatures as between
hospitals, all on this machine. `carried` is a round in which sites send back the received bytes: the transport alone.
`flower`: the same sites over Flower, on this machine without TLS; needs an environment with flwr (`make demo-flower`).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import torch
import yaml
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import load_config
from fedpriv.config.building import load_data, make_population
from fedpriv.data.base import Split
from fedpriv.sites import Federation, FederationPlan, Site, SiteDescriptor, propose
from fedpriv.sites.messages import TrainRequest, pack
from fedpriv.sites.over_zenoh.certificates import install, make_authority, make_request, sign_request
from fedpriv.sites.over_zenoh.coordinator import OverZenoh
from fedpriv.sites.over_zenoh.site_server import SiteServer
from fedpriv.sites.recording import CONFIG, PLAN, ROUNDS

CLASSES, EXAMPLES = 10, 10
FIRST = 3  # rounds that are not counted, since connections are new
ADDRESS = "tls/127.0.0.1:17447"
FLOWER_PORT = 17500  # of the SuperLink; the next ones are used by the SuperNodes
COUNTED = ("one process", "carried", "sites")


def made_up(features: int, seed: int = 0, examples: int = EXAMPLES) -> Split:
    """Returns random examples; a data set of configurations under the name `sites:made_up`."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.rand(examples, features, generator=draws)
    dataset = TensorDataset(inputs, torch.arange(examples) % CLASSES)
    return Split(dataset, dataset, CLASSES, None, description=f"{examples} examples that mean nothing")


@dataclass(frozen=True)
class Federated:
    """Sites in folders below `folder`, with certificates, that have accepted a plan."""

    folder: Path
    plan: FederationPlan
    names: Sequence[str]


def federated(folder: Path, n_sites: int, parameters: int, rounds: int) -> Federated:
    """Creates the sites, certificates and plan."""
    features = max(1, parameters // CLASSES)
    config = load_config(config_file(folder, n_sites, features, rounds))
    names = [f"site{number}" for number in range(n_sites)]
    make_authority(folder / "authority", "benchmark", 2)

    def keys(target: Path, name: str, hosts: Sequence[str] = ()):
        make_request(target, name, hosts)
        _, signed = sign_request(folder / "authority", target / "request.pem", 1)
        return install(target, signed, folder / "authority" / "authority.pem")

    cards: list[SiteDescriptor] = []
    for number, name in enumerate(names):
        data = {"name": "sites:made_up", "features": features, "seed": number}
        settings = {"name": name, "data": data, "budget": {"epsilon": 1e6}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
        site = Site.create(folder / name, folder / f"{name}.yaml")
        cards.append(site.set_certificate(keys(folder / name / "tls", name)))
        site.close()
    coordinator = keys(folder / "keys", "coordinator", ["127.0.0.1"])
    plan = propose(config, cards, PublicDataInfo((EXAMPLES,), (features,), CLASSES), coordinator)
    for name in names:
        site = Site(folder / name)
        site.join(plan.text, plan.fingerprint)
        site.close()
    return Federated(folder, plan, names)


def config_file(folder: Path, n_sites: int, features: int, rounds: int) -> Path:
    path = folder / "run.yaml"
    partition = {"kind": "iid", "n_clients": n_sites}
    settings = {
        "data": {"name": "sites:made_up", "features": features, "examples": EXAMPLES * n_sites, "partition": partition},
        "model": "softmax",
        "strategy": {"name": "dp_gd", "learning_rate": 0.1},
        "privacy": {"noise_multiplier": 50.0},
        "rounds": rounds,
        "seed": 0,
    }
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def processes(made: Federated, kind: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts a process for each site: `sites` as in `fedpriv site run`, or `carried`."""
    here = str(Path(__file__).parent)
    env = {**os.environ, "FEDPRIV_ALLOW_PLUGINS": "1", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name in made.names:
            if kind == "sites":
                words = ["-m", "fedpriv", "site", "run", str(made.folder / name), "--connect", ADDRESS]
            else:
                words = [__file__, "--carry", str(made.folder / name)]
            log = (made.folder / f"{name}.log").open("ab")
            running.append(subprocess.Popen([sys.executable, *words], env=env, stdout=log, stderr=log))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


class Carrying(Site):
    """A site that computes and writes nothing."""

    def answer(self, question: bytes, *_: object) -> bytes:
        return question


def carry(folder: Path) -> None:
    """Sends back received bytes, until it is ended."""
    SiteServer(Carrying(folder), [ADDRESS], folder / "tls")
    threading.Event().wait()


@contextmanager
def connected(made: Federated, kind: str) -> Iterator[tuple[OverZenoh, list[subprocess.Popen[bytes]]]]:
    with (
        processes(made, kind) as running,
        OverZenoh(made.plan, [ADDRESS], made.folder / "keys", wait=120, grace=0) as transport,
    ):
        missing = transport.wait_for_all(600)
        assert not missing, f"{missing} did not start; see {made.folder}"
        yield transport, running


def timed(step: Callable[[int], object], rounds: int) -> list[float]:
    """Returns milliseconds of each round but the first ones."""
    costs: list[float] = []
    for index in range(rounds):
        start = perf_counter()
        step(index)
        costs.append(1e3 * (perf_counter() - start))
    return costs[FIRST:]


def rounds_between_sites(made: Federated, rounds: int, look: Callable[[int, list[int]], None] | None) -> list[float]:
    with connected(made, "sites") as (transport, running):
        federation = Federation(made.plan, transport, made.folder / "server")
        reports = iter(federation)

        def step(index: int) -> None:
            report = next(reports)
            assert not report.absent, report
            if look is not None:
                look(index, [os.getpid(), running[0].pid])

        costs = timed(step, rounds)
        federation.close()
    return costs


def rounds_over_flower(made: Federated, rounds: int) -> list[float]:
    """Returns milliseconds between lines of `rounds.jsonl`; the server is a process that Flower starts."""
    from fedpriv.sites.over_flower.starting import find_program, make_environment

    here = str(Path(__file__).parent)
    env = {
        **make_environment(),
        "FEDPRIV_ALLOW_PLUGINS": "1",
        "OMP_NUM_THREADS": "1",
        "FLWR_HOME": str(made.folder / "flwr"),
    }
    env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    server = made.folder / "flower"
    server.mkdir()
    (server / PLAN).write_text(made.plan.text)
    (server / CONFIG).write_bytes((made.folder / "run.yaml").read_bytes())
    superlink = f"127.0.0.1:{FLOWER_PORT}"
    fedpriv_command = [sys.executable, "-m", "fedpriv"]
    commands = [[find_program("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(FLOWER_PORT)]]
    for number, name in enumerate(made.names, start=1):
        words = ["site", "run", str(made.folder / name), "--superlink", superlink, "--port", str(FLOWER_PORT + number)]
        commands.append([*fedpriv_command, *words])
    commands.append([*fedpriv_command, "federate", "run", str(server), "--superlink", superlink])
    running: list[subprocess.Popen[bytes]] = []
    arrivals: list[float] = []
    try:
        for number, words in enumerate(commands):
            log = (made.folder / f"flower-{number}.log").open("ab")
            running.append(subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True))
            if number == 0:
                sleep(10)  # the SuperLink needs time to listen
        deadline = perf_counter() + 600 + 60 * rounds
        while len(arrivals) < rounds:
            assert perf_counter() < deadline and running[-1].poll() is None, f"see the logs in {made.folder}"
            if (server / ROUNDS).exists():
                n_lines = len((server / ROUNDS).read_bytes().splitlines())
                arrivals += [perf_counter()] * (n_lines - len(arrivals))
            sleep(0.005)
    finally:
        for process in reversed(running):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [1e3 * (after - before) for before, after in pairwise(arrivals)]


def rounds_carried(made: Federated, rounds: int, parameters: int) -> list[float]:
    row = torch.rand(parameters)
    with connected(made, "carried") as (transport, _):

        def step(index: int) -> None:
            question = pack(TrainRequest(made.plan.hash, index, row))
            replies = transport.ask(dict.fromkeys(range(len(made.names)), question))
            assert [*replies.values()] == [question] * len(made.names)

        return timed(step, rounds)


def rounds_in_one_process(made: Federated, rounds: int) -> list[float]:
    """Returns milliseconds of rounds with the same settings in one process, with its ledger on the same disk."""
    config = load_config(made.folder / "run.yaml", ["seed=0"])
    split = load_data(config)
    clients = make_population(config, split)
    training = fedpriv.Training(
        clients,
        config.recipe(len(clients)).strategy,
        config.promise(len(clients)),
        rounds=rounds,
        folder=made.folder / "one",
        checkpoint_every=1,  # sites also store their state in every round
        compute=fedpriv.Compute(threads=1),
    )
    reports = iter(training)
    return timed(lambda _: next(reports), rounds)


def row_of(n_sites: int, parameters: int, rounds: int, flower: int) -> dict[str, list[float]]:
    """Returns milliseconds of rounds of each kind in sequence, with `flower` rounds over Flower."""
    costs: dict[str, list[float]] = {}
    if flower:
        with TemporaryDirectory(prefix="fp") as temporary:  # sockets need short paths
            made = federated(Path(temporary), n_sites, parameters, flower + 1)
            costs["flower"] = rounds_over_flower(made, flower + 1)
    with TemporaryDirectory(prefix="sites") as temporary:
        made = federated(Path(temporary), n_sites, parameters, rounds + FIRST)
        costs["one process"] = rounds_in_one_process(made, rounds + FIRST)
        costs["carried"] = rounds_carried(made, rounds + FIRST, parameters)
        costs["sites"] = rounds_between_sites(made, rounds + FIRST, None)
    return costs


def resources(pid: int) -> str:
    """Returns memory and open handles of a process, from /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = {line.split(":")[0]: line.split(":")[1].split() for line in lines if ":" in line}
    handles = len([*Path(f"/proc/{pid}/fd").iterdir()])
    return f"{int(values['VmRSS'][0]) / 1024:.0f} MiB, {handles} handles, {values['Threads'][0]} threads"


def soak(rounds: int, n_sites: int, parameters: int) -> None:
    """Prints memory and handles of the server and of a site during many rounds."""

    def look(index: int, pids: list[int]) -> None:
        if index % max(1, rounds // 10) == 0 or index == rounds - 1:
            print(f"round {index}: server {resources(pids[0])}; site {resources(pids[1])}", flush=True)

    with TemporaryDirectory(prefix="sites") as temporary:
        made = federated(Path(temporary), n_sites, parameters, rounds)
        costs = rounds_between_sites(made, rounds, look)
    tenth = max(1, len(costs) // 10)
    first, last = median(costs[:tenth]), median(costs[-tenth:])
    print(f"{rounds} rounds of {n_sites} sites: median {first:.1f} ms in the first tenth, {last:.1f} ms in the last")


def table(results: dict[tuple[int, int], dict[str, list[float]]]) -> str:
    """Returns median and 99th percentile in milliseconds; over Flower the median and the largest."""
    lines = [
        "| sites | parameters | one process | carried | sites | overhead | flower |",
        "|---|---|---|---|---|---|---|",
    ]
    for (n_sites, parameters), costs in results.items():
        cells = [f"{median(costs[kind]):.1f} / {percentile(costs[kind]):.1f}" for kind in COUNTED]
        overhead = median(costs["sites"]) - median(costs["one process"])
        cells.append(f"{overhead:.1f}")
        if "flower" in costs:
            cells.append(f"{median(costs['flower']):.0f} / {max(costs['flower']):.0f}")
        else:
            cells.append("")
        lines.append(f"| {n_sites} | {parameters:.0e} | {' | '.join(cells)} |".replace("e+0", "e"))
    return "\n".join(lines) + "\n"


def percentile(costs: Sequence[float]) -> float:
    """Returns the 99th percentile."""
    return quantiles(costs, n=100, method="inclusive")[-1] if len(costs) > 1 else costs[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--parameters", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--soak", type=int, metavar="ROUNDS")
    parser.add_argument("--flower", type=int, metavar="ROUNDS", default=0)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--carry", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["FEDPRIV_ALLOW_PLUGINS"] = "1"
    sys.path.append(str(Path(__file__).parent))
    if options.carry is not None:
        carry(options.carry)
    if options.soak is not None:
        soak(options.soak, options.sites[0], options.parameters[0])
        return
    results: dict[tuple[int, int], dict[str, list[float]]] = {}
    for n_sites in options.sites:
        for parameters in options.parameters:
            results[n_sites, parameters] = row_of(n_sites, parameters, options.rounds, options.flower)
            print(table({(n_sites, parameters): results[n_sites, parameters]}), flush=True)
    if options.markdown is not None:
        options.markdown.write_text(table(results))


if __name__ == "__main__":
    main()
