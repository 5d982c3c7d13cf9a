"""Draw the package's rooms on their floors, from its own imports.

    python docs/design/floors.py fedpriv docs/assets/floors.png

A room is a folder or file in the package's root; it stands one floor above the highest room that it imports. The number
in a room is its lines; an arrow that runs upwards would be red.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import networkx as nx

mpl.use("agg")
import matplotlib.pyplot as plt


def arrows(package: Path) -> nx.DiGraph:
    """Rooms with their `lines`, and an edge for each pair of which the first imports the second."""
    rooms, sources = nx.DiGraph(), sorted(package.rglob("*.py"))
    of = {source: source.relative_to(package).parts[0].removesuffix(".py") for source in sources}
    hidden = {"__init__", "__main__"}
    for source in sources:
        if of[source] not in hidden:
            before = rooms.nodes.get(of[source], {"lines": 0})["lines"]
            rooms.add_node(of[source], lines=before + len(source.read_text().splitlines()))
    for source in sources:
        for target in imported(ast.parse(source.read_text()), package.name):
            if {of[source], target} <= set(rooms) and target != of[source]:
                rooms.add_edge(of[source], target)
    return rooms


def imported(tree: ast.Module, name: str) -> set[str]:
    """Rooms that a module imports as it runs, not for the type checker alone."""
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in checked or node.module is None:
            continue
        if node.module == name:
            found |= {alias.name for alias in node.names}
        elif node.module.startswith(f"{name}."):
            found.add(node.module.split(".")[1])
    return found


def floors(rooms: nx.DiGraph) -> dict[str, int]:
    """Floor of each room from 1; rooms that import each other in a circle share one."""
    groups = nx.condensation(rooms)
    floor: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        floor[group] = 1 + max((floor[below] for below in groups.successors(group)), default=0)
    return {room: floor[group] for group, data in groups.nodes(data=True) for room in data["members"]}


def draw(rooms: nx.DiGraph, path: Path) -> str:
    """Save the picture; returns what it shows in one line."""
    floor, places = floors(rooms), dict[str, tuple[float, float]]()
    by_floor = defaultdict(list)
    for room in sorted(rooms):
        by_floor[floor[room]].append(room)
    for height, there in by_floor.items():
        places |= {room: ((i + 1) / (len(there) + 1), height) for i, room in enumerate(there)}
    upwards = [(a, b) for a, b in rooms.edges if floor[a] <= floor[b]]
    figure, axes = plt.subplots(figsize=(11, 0.8 * max(by_floor) + 1))
    for a, b in rooms.edges:
        color = "tab:red" if (a, b) in upwards else "0.75"
        style = {"arrowstyle": "-|>", "color": color, "lw": 0.6, "shrinkA": 9, "shrinkB": 9}
        axes.annotate("", xy=places[b], xytext=places[a], arrowprops=style, zorder=1)
    for room, place in places.items():
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:blue"}
        axes.annotate(f"{room}\n{rooms.nodes[room]['lines']:,}", place, ha="center", va="center", fontsize=7, bbox=box)
    axes.set(ylim=(0.4, max(by_floor) + 0.6), xlim=(0, 1), yticks=sorted(by_floor), xticks=[], ylabel="floor")
    axes.spines[:].set_visible(False)
    said = (
        f"{len(rooms)} rooms on {len(by_floor)} floors, {rooms.number_of_edges()} arrows, {len(upwards)} not downwards"
    )
    axes.set_title(said, fontsize=9)
    figure.savefig(path, bbox_inches="tight", dpi=120)
    return said


if __name__ == "__main__":
    print(draw(arrows(Path(sys.argv[1])), Path(sys.argv[2])))
