"""Small data files of every format, and damage to one of them."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_harness import Case

from fedpriv.data.columns import ADULT, BREAST_CANCER, MONKS, Column

TABLE = {
    "train": "train.csv",
    "test": "test.csv",
    "label": "y",
    "classes": ["no", "yes"],
    "numbers": {"age": [0, 100]},
    "categories": {"colour": ["red", "green"]},
    "client": "who",
}
NOT_A_VALUE = ["zzqqxx", "nan", "-inf", "1e999", "0x1", "--1", "\u0663 ", "1_0", "\x00", "NULL", "yes " * 999]


@dataclass(frozen=True)
class Format:
    """A data set whose files can be made up.

    Attributes:
        options: Of `fedpriv.data.load`, but for the folder.
        write: Makes its files.
        split: What parts the fields of a line of text; None for a file that is no table.
        optional: Whether a line may have fewer fields.
    """

    options: dict[str, Any]
    write: Callable[[Path, random.Random], None]
    split: str | None = None
    optional: bool = False


def _csv(folder: Path, rng: random.Random) -> None:
    for name in ("train.csv", "test.csv"):
        rows = [
            f"{rng.randrange(100)},{rng.choice(('red', 'green'))},{rng.choice(('no', 'yes'))},{i}" for i in range(9)
        ]
        (folder / name).write_text("\n".join(["age,colour,y,who", *rows]) + "\n")


def _libsvm(folder: Path, rng: random.Random) -> None:
    for name in ("a", "b"):
        rows = [f"{rng.choice((-1, 1))} 1:{rng.random():.3f} 3:{rng.randrange(9)}" for _ in range(9)]
        (folder / name).write_text("\n".join(rows) + "\n")


def _drawn(column: Column, rng: random.Random) -> str:
    return rng.choice(column.words) if column.words else str(rng.randint(column.low, min(column.high, column.low + 99)))


def _rows(columns: tuple[Column, ...], rng: random.Random, joint: str, *last: str) -> str:
    return "".join(joint.join([*(_drawn(column, rng) for column in columns), *last]) + "\n" for _ in range(12))


def _adult(folder: Path, rng: random.Random) -> None:
    (folder / "adult.data").write_text(_rows(ADULT, rng, ", "))
    with gzip.open(folder / "adult.test.gz", "wt") as file:
        file.write(_rows(ADULT, rng, ", "))


def _breast_cancer(folder: Path, rng: random.Random) -> None:
    (folder / "breast-cancer-wisconsin.data").write_text(_rows(BREAST_CANCER, rng, ","))


def _monks(folder: Path, rng: random.Random) -> None:
    for name in ("monks-1.train", "monks-1.test"):
        (folder / name).write_text(_rows(MONKS, rng, " ", "data_1"))


def _mnist(folder: Path, rng: random.Random) -> None:
    for part, n in (("train", 6), ("t10k", 3)):
        pixels = rng.randbytes(n * 784)
        head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (n, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + pixels)
        labels = bytes([0, 0, 8, 1]) + n.to_bytes(4, "big") + bytes(rng.randrange(10) for _ in range(n))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def _leaf(folder: Path, rng: random.Random) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir()
        users = {f"f{i}": {"x": [[round(rng.random(), 2)] * 784] * 2, "y": [rng.randrange(62)] * 2} for i in range(2)}
        content = {"users": [*users], "num_samples": [2, 2], "user_data": users}
        (folder / part / "all.json").write_text(json.dumps(content))


def _npz(folder: Path, rng: random.Random) -> None:
    drawn, content = np.random.default_rng(rng.randrange(2**32)), io.BytesIO()
    images = drawn.integers(0, 256, (6, 28, 28), np.uint8)
    labels, writers = drawn.integers(0, 62, 6), np.arange(6) // 3
    np.savez_compressed(content, images=images, labels=labels, writers=writers, split=np.arange(6) % 2)
    (folder / "some.npz").write_bytes(content.getvalue())


FORMATS = {
    "csv": Format(TABLE, _csv, ","),
    "libsvm": Format({"train": "a", "test": "b", "n_features": 3}, _libsvm, " ", optional=True),
    "adult": Format({}, _adult, ", "),
    "breast_cancer": Format({}, _breast_cancer, ","),
    "monks": Format({"protocol": "paper"}, _monks, " "),
    "mnist": Format({}, _mnist),
    "femnist": Format({}, _leaf),
    "femnist npz": Format({}, _npz),
}


def draw(rng: random.Random, folder: Path) -> tuple[str, dict[str, Any], Case]:
    """Files of a format in the folder, one of them damaged: the data set's name, its options, and what was done."""
    name = rng.choice([*FORMATS])
    made = FORMATS[name]
    made.write(folder, rng)
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    options = dict(made.options)
    places = {key: str(folder / options[key]) for key in ("train", "test") if name == "csv"}
    root = {} if name == "csv" else {"root": str(folder)}
    damage = rng.choice((_field, _field, _bytes)) if made.split else _bytes
    damage = _leaf_value if name == "femnist" and rng.random() < 0.6 else damage
    what, nonsense = damage(path, made, rng)
    return name.split()[0], options | places | root, Case(f"{name}, {path.name}: {what}", nonsense)


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _store(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _field(path: Path, made: Format, rng: random.Random) -> tuple[str, bool]:
    """A field of a table becomes what its column cannot hold, goes, or comes twice."""
    assert made.split is not None
    lines = _content(path).decode().splitlines()
    first = 1 if lines[0].startswith("age,") else 0
    row = rng.randrange(first, len(lines))
    fields = lines[row].split(made.split)
    free = first == 1 and len(fields) == 4  # the client's name may be anything
    at = rng.randrange(len(fields) - (1 if free or fields[-1] == "data_1" else 0))
    kind = rng.choice(("value", "value", "value", "gone", "twice"))
    before = fields[at]
    match kind:
        case "value":
            fields[at] = rng.choice(NOT_A_VALUE)
        case "gone":
            del fields[at]
        case _:
            fields.insert(at, before)
    lines[row] = made.split.join(fields)
    _store(path, ("\n".join(lines) + "\n").encode())
    # libsvm: a label is a number, and so is 1e999 to its reader; fewer features are zeros
    sure = (kind == "value" and fields[at] not in ("1e999", "1_0", "\u0663 ", "0x1")) or (
        not made.optional and kind != "value"
    )
    return f"row {row}, field {at}, {before!r} {kind} {fields[at : at + 1]!r:.60}", sure


def _bytes(path: Path, made: Format, rng: random.Random) -> tuple[str, bool]:
    """Bytes are lost, changed or added; a compressed or binary file that is shorter is known to be."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    match rng.choice(("cut", "empty", "gone", "flip", "add", "lose", "folder")):
        case "cut":
            path.write_bytes(content[:at])
            return f"cut after {at} bytes", made.split is None or path.suffix == ".gz"
        case "empty":
            path.write_bytes(b"")
            return "empty", True
        case "gone":
            path.unlink()
            return "gone", True
        case "folder":
            path.unlink()
            path.mkdir()
            return "a folder", True
        case "flip":
            content[at] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            return f"a bit of byte {at}", False
        case "add":
            content[at:at] = rng.choice((b"\xff\xfe", b"\x00", b"\n", b'"', b",,", rng.randbytes(5)))
            path.write_bytes(content)
            return f"bytes added at {at}", False
        case _:
            del content[at : at + rng.randrange(1, 50)]
            path.write_bytes(content)
            return f"bytes lost at {at}", False


def _leaf_value(path: Path, _: Format, rng: random.Random) -> tuple[str, bool]:
    """A value of LEAF's json becomes one of another kind."""
    content = json.loads(path.read_text())
    table = content["user_data"]["f0"]
    wrong = rng.choice([None, "a", {}, [], [[]], -1, 1e400, True, [["a"] * 784] * 2, [[0.5] * 783] * 2, "9" * 5000])
    key = rng.choice(["x", "y"])
    table[key] = (
        rng.choice([[62, 0], [-1, 0], [0.5, 0], ["a", 0], [None, 0], [10**30, 0], wrong]) if key == "y" else wrong
    )
    path.write_text(json.dumps(content))
    return f"{key} is {table[key]!r:.60}", True
