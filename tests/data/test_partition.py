import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.data import partition
from fedpriv.errors import ConfigError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn_labels(n, n_classes, seed):
    return torch.randint(n_classes, (n,), generator=seeded(seed))


def assert_each_example_once(parts, n_examples, n_clients):
    assert len(parts) == n_clients
    assert all(len(part) > 0 and part.dtype == torch.int64 for part in parts)
    assert all(torch.equal(part, part.sort().values) for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n_examples))


sizes = st.tuples(st.integers(1, 120), st.integers(1, 12)).filter(lambda pair: pair[1] <= pair[0])


@given(sizes, st.sampled_from(["iid", "in_order"]), st.integers(0, 99))
def test_even_partition_sizes_differ_by_one(size, kind, seed):
    n, n_clients = size
    parts = partition(kind, drawn_labels(n, 5, seed), n_clients, seeded(seed))
    assert_each_example_once(parts, n, n_clients)
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    if kind == "in_order":
        assert torch.equal(torch.cat(parts), torch.arange(n))


@given(sizes, st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_by_label_limits_labels_per_client(size, labels_per_client, n_classes, seed):
    n, n_clients = size
    labels = drawn_labels(n, n_classes, seed)
    possible = len(labels.unique()) <= n_clients * labels_per_client <= n
    if not possible:
        with pytest.raises(ConfigError, match="labels_per_client"):
            partition("by_label", labels, n_clients, seeded(seed), labels_per_client=labels_per_client)
        return
    parts = partition("by_label", labels, n_clients, seeded(seed), labels_per_client=labels_per_client)
    assert_each_example_once(parts, n, n_clients)
    assert all(len(labels[part].unique()) <= labels_per_client for part in parts)


@settings(max_examples=50)
@given(st.integers(40, 200), st.integers(1, 5), st.floats(0.3, 1e4), st.integers(0, 99))
def test_dirichlet_partition_min_examples(n, n_clients, alpha, seed):
    labels = drawn_labels(n, 4, seed)
    parts = partition("dirichlet", labels, n_clients, seeded(seed), alpha=alpha, min_examples=2)
    assert_each_example_once(parts, n, n_clients)
    assert min(len(part) for part in parts) >= 2


@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_by_writer_keeps_writers_together(n, n_writers, n_clients, seed):
    writers = 100 + 7 * drawn_labels(n, n_writers, seed)
    present = writers.unique()
    if n_clients > len(present):
        with pytest.raises(ConfigError, match="number of writers"):
            partition("by_writer", torch.zeros(n), n_clients, seeded(seed), writers=writers)
        return
    parts = partition("by_writer", torch.zeros(n), n_clients, seeded(seed), writers=writers)
    assert_each_example_once(parts, n, n_clients)
    held = [set(writers[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(present)
    assert max(map(len, held)) - min(map(len, held)) <= 1
    if n_clients == len(present):
        assert held == [{writer} for writer in present.tolist()]


def test_partition_depends_on_generator():
    labels = drawn_labels(200, 5, 0)
    for kind in ("iid", "by_label", "dirichlet"):
        first, again, other = (partition(kind, labels, 5, seeded(seed)) for seed in (1, 1, 2))
        assert all(map(torch.equal, first, again))
        assert not all(a.equal(b) for a, b in zip(first, other, strict=True))


def test_dirichlet_alpha_sets_label_skew():
    labels = torch.arange(10).repeat_interleave(300)

    def largest_share(alpha):
        parts = partition("dirichlet", labels, 10, seeded(), alpha=alpha)
        return sum(float(labels[part].bincount(minlength=10).max() / len(part)) for part in parts) / 10

    assert largest_share(0.1) > 0.45 and largest_share(1e4) < 0.13


def test_by_label_equal_counts_equal_shards():
    parts = partition("by_label", torch.arange(10).repeat(60), 100, seeded())
    assert {len(part) for part in parts} == {6}


def test_invalid_partition_raises():
    labels = torch.tensor([0, 0, 1, 1])
    for kind in ("iid", "in_order", "by_label", "dirichlet"):
        with pytest.raises(ConfigError, match=r"n_clients = 5: must be between 1 and 4.*empty"):
            partition(kind, labels, 5, seeded())
        for n_clients in (0, -1, 1.5):
            with pytest.raises(ConfigError, match=rf"n_clients = {n_clients}: must be a whole number, at least 1"):
                partition(kind, labels, n_clients, seeded())
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"alpha = .*positive, finite"):
            partition("dirichlet", labels, 2, seeded(), alpha=alpha)
    with pytest.raises(ConfigError, match="min_examples = 3: must be between 1 and 2"):
        partition("dirichlet", labels, 2, seeded(), min_examples=3)
    with pytest.raises(ConfigError, match=r"alpha = 1e-09.*raise alpha"):
        partition("dirichlet", torch.zeros(50, dtype=torch.int64), 5, seeded(), alpha=1e-9)
    with pytest.raises(ConfigError, match="labels_per_client = 0"):
        partition("by_label", labels, 2, seeded(), labels_per_client=0)
    with pytest.raises(ConfigError, match="writers = None: must name the owner"):
        partition("by_writer", labels, 2, seeded())
    with pytest.raises(ConfigError, match="did you mean 'dirichlet'"):
        partition("dirichlett", labels, 2, seeded())


@pytest.mark.data
def test_femnist_by_writer_client_sizes(shared_data):
    from fedpriv.data import labels_of, load

    split = load("femnist", root=str(shared_data / "femnist"), files=["femnist_iadmm5pct.npz"])
    parts = partition("by_writer", labels_of(split.train), 114, seeded(), writers=split.writers)
    assert_each_example_once(parts, 15440, 114)
    assert min(map(len, parts)) == 3 and max(map(len, parts)) == 164
