"""Next characters in Shakespeare's plays, by role: from a plain text of plays, or from LEAF's json folders."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.data.base import Split
from fedpriv.data.owners import encode_names
from fedpriv.errors import DataError
from fedpriv.settings import Count, validate_arguments

# The vocabulary is public and fixed, for any characters in the text: 0 starts a window, pads it, and represents all
# other characters; then newline and printable ASCII.
_ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
_TOKENS = {character: number for number, character in enumerate(_ALPHABET, start=1)}
N_TOKENS = 1 + len(_ALPHABET)
_NO_TARGET = -100
_TEST_SHARE = 5  # one of this many windows


@validate_arguments("data")
def shakespeare(
    *, root: str | None = None, length: Count = 80, min_windows: Count = 5, max_roles: Count | None = None
) -> Split:
    """Loads Shakespeare by role: windows of characters; each character is predicted from the ones before it.

    An example is a window of `length` characters of one role: the input is a start mark and the window without its last
    character, the targets are the window. Windows do not overlap, so each character is in one example, which the
    privacy unit `sample` protects; LEAF's examples overlap by all but one character, so a character is in 80 of them.
    The last window of a role is padded to the same length, and padding has no target. The start of a window depends on
    the length of the role's earlier text: epsilon treats the division into windows as given, and their number as
    public.

    The last fifth of each role's windows is for testing, which depends on the number of windows only.

    Args:
        root: Folder with `input.txt` (or `input.txt.gz`), with speeches separated by blank lines, each with `ROLE:` as
            first line; or LEAF's folder with `train/*.json` and `test/*.json`: its division is kept, and every
            `length`-th of its overlapping examples is used. None is `$FEDPRIV_DATA/shakespeare`.
        length: Characters in a window; for LEAF's files at most theirs, 80.
        min_windows: Omit roles with fewer windows for training.
        max_roles: Largest number of roles; the roles with the most windows are used. None uses all roles.

    Returns:
        Inputs int64 `[n, length]` of 97 tokens, targets int64 `[n, length]` with -100 for no target. Metrics are
        accuracy and perplexity of a character.

    Raises:
        DataError: If a file is missing or broken, or no role is left.

    Source: Caldas and others (2018), LEAF; Karpathy (2015), char-rnn, for the plain text.
    """
    folder = _folder(root)
    if (folder / "train").is_dir():
        train = _read_leaf(folder / "train", length)
        test = _read_leaf(folder / "test", length)
    else:
        train, test = _divided(_read_plain(folder), length)
    roles = [role for role in sorted(train) if len(train[role]) >= min_windows]
    roles.sort(key=lambda role: len(train[role]), reverse=True)
    roles = sorted(roles[:max_roles])
    if not roles:
        raise DataError(
            f"shakespeare: no role in {folder} has at least {min_windows} training windows: lower min_windows"
        )
    tests = {role: test[role] for role in roles if len(test.get(role, ()))}
    if not tests:
        raise DataError(f"shakespeare: no role in {folder} has enough text for one test window: lower length")

    train_owners = [role for role in roles for _ in train[role]]
    test_owners = [role for role, windows in tests.items() for _ in windows]
    (writers, test_writers), names = encode_names(train_owners, test_owners)
    train_set = _examples(torch.cat([train[role] for role in roles]))
    test_set = _examples(torch.cat([*tests.values()]))
    sizes = f"{len(train_set)} train and {len(test_set)} test windows of {length} characters"
    description = f"Shakespeare: {len(roles)} roles, {sizes}"
    return Split(train_set, test_set, N_TOKENS, writers, description, test_writers=test_writers, writer_names=names)


def _folder(root: str | None) -> Path:
    shared = os.environ.get("FEDPRIV_DATA")
    fix = (
        "set root to a folder with input.txt(.gz), or to LEAF's folder with train/ and test/ (created by its "
        "preprocess.sh)"
    )
    if root is None and shared is None:
        raise DataError(f"shakespeare: no root given and FEDPRIV_DATA is unset: {fix}")
    folder = Path(root or Path(shared or "") / "shakespeare")
    names = ("input.txt", "input.txt.gz", "train")
    if not any((folder / name).exists() for name in names):
        raise DataError(f"shakespeare: {folder} has neither input.txt nor train/: {fix}")
    return folder


def _read_plain(folder: Path) -> dict[str, str]:
    """Reads the text of each role, its speeches one after another."""
    path = folder / "input.txt"
    try:
        if path.is_file():
            content = path.read_bytes()
        else:
            path = folder / "input.txt.gz"
            content = gzip.decompress(path.read_bytes())
        text = content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}): fetch it again") from error
    speeches: dict[str, list[str]] = {}
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        heading, newline, speech = paragraph.strip("\n").partition("\n")
        if newline and heading.endswith(":"):  # other paragraphs are stage directions
            speeches.setdefault(heading[:-1].strip(), []).append(speech + "\n")
    if not speeches:
        fix = "write speeches separated by blank lines, each after a line ROLE:"
        raise DataError(f"{path} contains no speech: {fix}")
    return {role: "".join(parts) for role, parts in speeches.items()}


def _divided(texts: Mapping[str, str], length: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the windows of each role for training, and for testing, tokens `[n, length]` each."""
    train: dict[str, Tensor] = {}
    test: dict[str, Tensor] = {}
    for role, text in texts.items():
        windows = _windows(text, length)
        count = len(windows) - len(windows) // _TEST_SHARE
        train[role] = windows[:count]
        test[role] = windows[count:]
    return train, test


def _windows(text: str, length: int) -> Tensor:
    """Cuts a text into windows of tokens, `[n, length]`; the last is filled up with -100."""
    tokens = [_TOKENS.get(character, 0) for character in text]
    tokens += [_NO_TARGET] * (-len(tokens) % length)
    return torch.tensor(tokens, dtype=torch.int64).reshape(-1, length)


def _read_leaf(folder: Path, length: int) -> dict[str, Tensor]:
    """Reads LEAF's json files: every `length`-th example of each user, so that windows do not overlap."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"shakespeare: no json files in {folder}: create train/ and test/ with LEAF's preprocess.sh")
    windows: dict[str, Tensor] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            tables = {str(user): content["user_data"][user] for user in content["users"]}
            texts = {
                # of x, the characters before y, the last ones
                user: [x[len(x) - length + 1 :] + y for x, y in zip(table["x"], table["y"], strict=True)][::length]
                for user, table in tables.items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "it must contain users, and user_data with {x: texts, y: characters} for each user"
            raise DataError(f"{path}: not a LEAF json file ({type(error).__name__}: {error}): {fix}") from error
        for user, rows in texts.items():
            if user in windows or any(len(row) != length for row in rows):
                fix = "set length to at most the length of the texts, or run LEAF's preprocess.sh again"
                raise DataError(
                    f"{path}: user {user} occurs twice, or has texts shorter than a window ({length} characters): {fix}"
                )
            windows[user] = torch.cat([_windows(row, length) for row in rows] or [torch.zeros(0, length).long()])
    return windows


def _examples(windows: Tensor) -> TensorDataset:
    """Returns inputs, the windows shifted by one after a start mark, and targets, the windows."""
    inputs = torch.zeros_like(windows)
    inputs[:, 1:] = windows[:, :-1].clamp_min(0)
    return TensorDataset(inputs, windows)
