"""Draws the import graph of the packages in fedpriv, in layers.

    python docs/design/floors.py fedpriv docs/assets/floors.png

A package is a folder or file in the root of fedpriv. Its layer is one above the highest package that it imports.
Each box contains the number of lines of a package. An import that does not point downwards would be red.
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


def import_graph(root: Path) -> nx.DiGraph:
    """Returns packages with their `lines`, and an edge from each package to each package that it imports."""
    packages, sources = nx.DiGraph(), sorted(root.rglob("*.py"))
    package_of = {source: source.relative_to(root).parts[0].removesuffix(".py") for source in sources}
    hidden = {"__init__", "__main__"}
    for source in sources:
        if package_of[source] not in hidden:
            before = packages.nodes.get(package_of[source], {"lines": 0})["lines"]
            packages.add_node(package_of[source], lines=before + len(source.read_text().splitlines()))
    for source in sources:
        for target in imported(ast.parse(source.read_text()), root.name):
            if {package_of[source], target} <= set(packages) and target != package_of[source]:
                packages.add_edge(package_of[source], target)
    return packages


def imported(tree: ast.Module, name: str) -> set[str]:
    """Returns the packages that a module imports at run time, without imports for type checkers."""
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


def layers(packages: nx.DiGraph) -> dict[str, int]:
    """Returns the layer of each package, from 1; packages in an import cycle share a layer."""
    groups = nx.condensation(packages)
    layer: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        layer[group] = 1 + max((layer[below] for below in groups.successors(group)), default=0)
    return {package: layer[group] for group, data in groups.nodes(data=True) for package in data["members"]}


def draw(packages: nx.DiGraph, path: Path) -> str:
    """Saves the picture; returns its title."""
    layer, places = layers(packages), dict[str, tuple[float, float]]()
    by_layer = defaultdict(list)
    for package in sorted(packages):
        by_layer[layer[package]].append(package)
    for height, members in by_layer.items():
        # shift every second layer, so that boxes of different layers do not stand exactly above each other
        shift = 0.06 if height % 2 else -0.06
        places |= {package: ((i + 1) / (len(members) + 1) + shift, height) for i, package in enumerate(members)}
    upwards = [(a, b) for a, b in packages.edges if layer[a] <= layer[b]]
    figure, axes = plt.subplots(figsize=(11, 0.8 * max(by_layer) + 1))
    for a, b in packages.edges:
        color = "tab:red" if (a, b) in upwards else "0.75"
        style = {"arrowstyle": "-|>", "color": color, "lw": 0.6, "shrinkA": 9, "shrinkB": 9}
        axes.annotate("", xy=places[b], xytext=places[a], arrowprops=style, zorder=1)
    for package, place in places.items():
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:blue"}
        text = f"{package}\n{packages.nodes[package]['lines']:,} lines"
        axes.annotate(text, place, ha="center", va="center", fontsize=8, bbox=box)
    axes.set(ylim=(0.4, max(by_layer) + 0.6), xlim=(0, 1), yticks=sorted(by_layer), xticks=[], ylabel="layer")
    axes.spines[:].set_visible(False)
    title = (
        f"{len(packages)} packages in {len(by_layer)} layers; "
        f"{packages.number_of_edges()} imports between packages, {len(upwards)} of them not downwards"
    )
    axes.set_title(title, fontsize=10)
    figure.savefig(path, bbox_inches="tight", dpi=120)
    return title


if __name__ == "__main__":
    print(draw(import_graph(Path(sys.argv[1])), Path(sys.argv[2])))
