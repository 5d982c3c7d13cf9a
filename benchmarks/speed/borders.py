"""Measures the cost of distributing a graph's nodes over processes: one mixing of 100 rows of a small CNN's size.

    python benchmarks/speed/borders.py [--processes 2] [--turns 50] [--markdown FILE]

In each turn four operations alternate: a mixing (rows of neighbours are exchanged between processes while the product
is computed), its exchange (which selects the rows), gloo's bare exchange of as many rows, and the product that one
process computes from all rows. Wall milliseconds are from the fastest turn, of its slowest process, and need an
otherwise idle machine; processor milliseconds are medians for the busiest process. `--smoke` runs tiny sizes: its
numbers are meaningless.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rows import SMOKE, Effort

NODES, LENGTH, DEGREE = 100, 26_010, 4
GRAPHS = "ring", "random links, degree 4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--markdown", type=Path, help="write the table to a file, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    told = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        for name in GRAPHS:
            measure(name, told.turns, SMOKE if told.smoke else Effort())
        return
    columns = "graph", "rows that cross", "ms of", "mixing", "its exchange", "bare gloo", "product in one process"
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(told.processes)]
    words = [__file__, "--turns", str(told.turns), *(["--smoke"] * told.smoke)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for text in done.stdout.splitlines():
        name, crossing, *of = json.loads(text)
        for kind, found in zip(("the wall", "the processor"), of, strict=True):
            lines.append(f"| {' | '.join((name, str(crossing), kind, *(f'{one:.2f}' for one in found)))} |")
    print("\n".join(lines))
    if told.markdown:
        told.markdown.write_text("\n".join(lines) + "\n")


def measure(name: str, turns: int, effort: Effort) -> None:
    """Runs this process's part; the first process prints a line."""
    import networkx as nx
    import torch
    import torch.distributed as dist

    import fedpriv as fp
    from fedpriv.clients.shard import ClientShard
    from fedpriv.network.engines import MESHES
    from fedpriv.network.sharded_graph import ShardedGraph
    from fedpriv.network.sharding import shard_clients, shard_network, split_evenly
    from fedpriv.randomness.streams import Randomness

    torch.set_num_threads(1)
    nodes, length = effort.of(NODES, DEGREE + 2), effort.of(LENGTH)
    links = nx.cycle_graph(nodes) if name == "ring" else nx.random_regular_graph(DEGREE, nodes, seed=0)
    graph = fp.Graph(links)
    mesh = MESHES["clients"](60.0)
    me = mesh.world.rank
    part = shard_clients(ClientShard(range(nodes), [1] * nodes, 1), mesh)
    shared = shard_network(graph, part, mesh)
    assert isinstance(shared, ShardedGraph)
    rows, all_rows = torch.randn(len(part.ids), length), torch.randn(nodes, length)
    for network in (graph, shared):
        network.participants(0, Randomness(0))
    shared.local_positions(part.ids, rows)

    # the rows that other processes need from this one, and this one from them
    every = split_evenly(nodes, mesh.world.world_size)
    near = {rank: {b for a in share for b in links[a]} for rank, share in enumerate(every)}
    told = {rank: len(near[rank] & {*every[me]}) for rank in near if rank != me}
    heard = {rank: len(near[me] & {*every[rank]}) for rank in near if rank != me}
    into, out_of = ({rank: torch.randn(count, length) for rank, count in of.items() if count} for of in (heard, told))

    def bare() -> None:
        calls = [dist.P2POp(dist.irecv, rows, rank) for rank, rows in into.items()]
        calls += [dist.P2POp(dist.isend, rows, rank) for rank, rows in out_of.items()]
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()

    def exchange() -> None:
        with shared.crossing(shared.border(rows), rows):
            pass

    mix, alone = (lambda: shared.mix(rows)), (lambda: graph.mix(all_rows))
    contenders: tuple[Callable[[], object], ...] = (mix, exchange, bare, alone)
    walls: list[list[float]] = [[] for _ in contenders]
    busy: list[list[float]] = [[] for _ in contenders]
    for turn in range(turns + 1):  # the first one plans and connects
        for contender, wall, own in zip(contenders, walls, busy, strict=True):
            dist.barrier()
            begun, worked = time.perf_counter(), time.process_time()
            contender()
            if turn:
                wall.append(time.perf_counter() - begun)
                own.append(time.process_time() - worked)
    slowest, busiest = torch.tensor(walls) * 1e3, torch.tensor(busy).median(1).values * 1e3
    for found in (slowest, busiest):
        dist.all_reduce(found, dist.ReduceOp.MAX)
    if mesh.is_main:
        print(json.dumps([name, sum(heard.values()), slowest.amin(1).tolist(), busiest.tolist()]), flush=True)


if __name__ == "__main__":
    main()
