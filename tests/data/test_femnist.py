import json

import numpy as np
import pytest
import torch

from fedpriv.data import labels_of, load
from fedpriv.errors import ConfigError, DataError

# writer -> (train, test) examples; "c" has test examples only
WRITERS = {"a": (3, 1), "b": (5, 2), "c": (0, 4), "d": (1, 0)}


def writer_examples(writer, part):
    n = WRITERS[writer][part]
    rng = np.random.default_rng([ord(writer), part])
    return rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 62, n)


def leaf_table(writers, part):
    data = {}
    for writer in writers:
        images, labels = writer_examples(writer, part)
        data[writer] = {"x": (images.reshape(-1, 784) / 255).tolist(), "y": labels.tolist()}
    return {"users": list(data), "num_samples": [len(table["y"]) for table in data.values()], "user_data": data}


@pytest.fixture
def leaf(tmp_path):
    """A LEAF folder whose train part lies in two files."""
    for part, name, groups in ((0, "train", ["ba", "d"]), (1, "test", ["cab"])):
        (tmp_path / name).mkdir()
        for index, group in enumerate(groups):
            path = tmp_path / name / f"all_data_{index}_niid_05_keep_0_{name}_9.json"
            path.write_text(json.dumps(leaf_table(group, part)))
    return tmp_path


@pytest.fixture
def npz(tmp_path):
    """The same examples in one npz file."""
    rows = [(w, part) for w in WRITERS for part in (0, 1)]
    np.savez(
        tmp_path / "small.npz",
        images=np.concatenate([writer_examples(*row)[0] for row in rows]),
        labels=np.concatenate([writer_examples(*row)[1] for row in rows]),
        writers=np.concatenate([np.full(WRITERS[w][part], "abcd".index(w)) for w, part in rows]),
        split=np.concatenate([np.full(WRITERS[w][part], part, dtype=np.uint8) for w, part in rows]),
    )
    return tmp_path


@pytest.mark.data
def test_real_femnist_counts(shared_data):
    root = str(shared_data / "femnist")
    paper = load("femnist", root=root, files=["femnist_iadmm5pct.npz"])
    assert len(paper.train) == 15440 and len(paper.writers.unique()) == 114
    counts = labels_of(paper.train).bincount(minlength=62).tolist()
    assert counts[:10] == [1095, 1199, 1086, 1097, 1031, 1025, 1108, 1145, 1071, 1076] and counts[61] == 83
    assert paper.n_classes == 62 and paper.train.tensors[0].shape[1:] == (1, 28, 28)
    assert paper.train.tensors[0].mean() < 0.3, "ink is the exception, so the paper must be 0"
    assert len(load("femnist", root=root, files=["femnist_iadmm5pct.npz"], test="all").test) == 4167


@pytest.mark.data
def test_real_femnist_files_combine(shared_data):
    both = load("femnist", root=str(shared_data / "femnist"), flat=True)
    assert both.train.tensors[0].shape == (15440 + 39115, 784) and len(both.writers.unique()) == 397


def test_femnist_leaf_and_npz_equal(leaf, npz):
    table = load("femnist", root=str(npz), files=["small.npz"])
    folders = load("femnist", root=str(leaf))
    assert torch.equal(table.writers, folders.writers)
    assert table.writers.tolist() == [0] * 3 + [1] * 5 + [3]
    for ours, theirs in ((table.train, folders.train), (table.test, folders.test)):
        torch.testing.assert_close(ours.tensors[0], theirs.tensors[0], rtol=0, atol=1e-7)
        assert torch.equal(ours.tensors[1], theirs.tensors[1])


def test_femnist_invert_sets_ink_to_one(leaf):
    images, labels = writer_examples("a", 0)
    kept = load("femnist", root=str(leaf), invert=False).train
    torch.testing.assert_close(kept.tensors[0][:3, 0], torch.tensor(images) / 255)
    assert kept.tensors[1][:3].tolist() == labels.tolist()
    torch.testing.assert_close(load("femnist", root=str(leaf)).train.tensors[0], 1 - kept.tensors[0])


def test_femnist_writer_filters(leaf):
    def sizes(**options):
        split = load("femnist", root=str(leaf), **options)
        return split.writers.unique().tolist(), len(split.train), len(split.test)

    assert sizes() == ([0, 1, 3], 9, 3)
    assert sizes(test="all") == ([0, 1, 3], 9, 7)
    assert sizes(min_examples=3) == ([0, 1], 8, 3)
    assert sizes(max_writers=1) == ([0], 3, 1)
    assert sizes(min_examples=4, max_writers=5) == ([1], 5, 2)
    with pytest.raises(DataError, match=r"no writer in .* has 6 train examples"):
        sizes(min_examples=6)


@pytest.mark.parametrize(("option", "value"), [("min_examples", 0), ("max_writers", 0), ("test", "none")])
def test_femnist_option_out_of_range_raises(leaf, option, value):
    with pytest.raises(ConfigError, match=rf"data\.{option} = {value!r}"):
        load("femnist", root=str(leaf), **{option: value})


def test_femnist_missing_files_raise(tmp_path, leaf, monkeypatch):
    with pytest.raises(DataError, match=r"folder .*nowhere does not exist"):
        load("femnist", root=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"file .*absent\.npz does not exist"):
        load("femnist", root=str(tmp_path), files=["absent.npz"])
    with pytest.raises(DataError, match="no npz files, and no folders train/ and test/ with json files: set root"):
        load("femnist", root=str(leaf / "train"))
    for path in (leaf / "test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"no json files in .*test"):
        load("femnist", root=str(leaf))
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    with pytest.raises(DataError, match="FEDPRIV_DATA is unset"):
        load("femnist")


def bad_leaf(change):
    table = leaf_table("ab", 0)
    change(table)
    return json.dumps(table)


BROKEN_JSON = {
    "truncated": json.dumps(leaf_table("ab", 0))[:-100],
    "no users": bad_leaf(lambda table: table.pop("users")),
    "not a table": "[1, 2]",
    "user without data": bad_leaf(lambda table: table["user_data"].pop("a")),
    "short image": bad_leaf(lambda table: table["user_data"]["a"]["x"][0].pop()),
    "label missing": bad_leaf(lambda table: table["user_data"]["a"]["y"].pop()),
    "word for a label": bad_leaf(lambda table: table["user_data"]["a"].update(y=["x", "y", "z"])),
    "user of the other file": json.dumps(leaf_table("d", 0)),
}


@pytest.mark.parametrize("kind", BROKEN_JSON)
def test_femnist_broken_json_raises(leaf, kind):
    next((leaf / "train").glob("all_data_0*")).write_text(BROKEN_JSON[kind])
    with pytest.raises(DataError, match=r"all_data_.*\.json: "):
        load("femnist", root=str(leaf))


def test_femnist_value_out_of_range_raises(leaf):
    path = next((leaf / "train").glob("all_data_0*"))
    path.write_text(bad_leaf(lambda table: table["user_data"]["a"].update(y=[0, 62, 1])))
    with pytest.raises(DataError, match=r"train\[1\] has label 62"):
        load("femnist", root=str(leaf))
    path.write_text(bad_leaf(lambda table: table["user_data"]["a"]["x"][2].__setitem__(5, float("nan"))))
    with pytest.raises(DataError, match=r"train\[2\] has an input that is NaN"):
        load("femnist", root=str(leaf))


def test_femnist_broken_npz_raises(npz):
    good = dict(np.load(npz / "small.npz"))

    def fails(message, **arrays):
        np.savez(npz / "bad.npz", **arrays)
        with pytest.raises(DataError, match=message):
            load("femnist", root=str(npz), files=["bad.npz"])

    fails(r"bad\.npz: lacks the arrays \['split'\]", **{k: v for k, v in good.items() if k != "split"})
    fails(r"bad\.npz: the shapes of the arrays \['images'\] do not fit", **{**good, "images": good["images"][:-1]})
    fails(r"bad\.npz: not a readable npz", **{**good, "labels": np.array([None] * 16)})
    (npz / "bad.npz").write_bytes((npz / "small.npz").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"bad\.npz: not a readable npz"):
        load("femnist", root=str(npz), files=["bad.npz"])
    with pytest.raises(DataError, match="contain the same writer numbers"):
        load("femnist", root=str(npz), files=["small.npz", "small.npz"])
