"""Each kind of model is served by the backend that is meant for it, with the gradients of one example at a time.

What mixes examples is refused by the layer's name, with a fix that is tried here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from model_kinds import (
    CLASSES,
    KINDS,
    WORDS,
    E,
    Kind,
    Mapped,
    Residual,
    T,
    attended,
    attention,
    encoded,
    encoder,
    inputs,
    means,
    of_words,
)
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import constants
from fedpriv.clients.population import Population
from fedpriv.data.nested import Rows, each
from fedpriv.errors import PromiseWarning
from fedpriv.models import fix_model
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.attention import WRITTEN_OUT
from fedpriv.oracle.validation import validate_per_example
from fedpriv.privacy.clipping import Clip

CLIPS = [Clip(0.3), Clip(1e6), None]
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:enable_nested_tensor", "ignore:.*norm_first"
)


def clients(kind: Kind, model: nn.Module, examples: int = 6) -> list[fp.Client]:
    return fp.make_clients(
        model, kind.loss, [Rows(inputs(kind.inputs, examples), torch.randint(0, CLASSES, (examples,))) for _ in "ab"]
    )


def batch(kind: Kind, dtype: torch.dtype) -> Batch:
    """Three examples of each of two clients."""
    x = each(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs(kind.inputs, 6))
    cells = torch.arange(6).reshape(2, 3)
    return Batch(
        torch.arange(2),
        each(lambda t: t.unflatten(0, (2, 3)), x),
        torch.randint(0, CLASSES, (2, 3)),
        torch.ones_like(cells, dtype=torch.bool),
    )


def single(whole: Batch) -> Iterator[Batch]:
    """Its examples, one of each client at a time."""
    for at in range(3):
        one = slice(at, at + 1)
        x, y = (each(lambda t, one=one: t[:, one], part) for part in (whole.inputs, whole.targets))
        yield Batch(whole.rows, x, y, whole.mask[:, one])


def assert_close(found: Tensor, wanted: Tensor, relative: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=relative, atol=relative * float(wanted.abs().max()))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-9), (torch.float32, 1e-6)], ids=["64", "32"])
def test_gradients_are_those_of_one_example_at_a_time(name: str, dtype: torch.dtype, relative: float) -> None:
    torch.manual_seed(1)
    kind = KINDS[name]
    model = kind.make()
    population = Population(clients(kind, model), dtype=dtype)
    population.reset_models()
    validate_per_example(population)
    chosen = select_backend("auto", population).name
    assert chosen in kind.backend
    model = model.to(dtype)
    if kind.random:
        model.eval()
    backend, loop = BACKENDS[chosen](model, kind.loss), BACKENDS["loop"](model, kind.loss)
    whole, start = batch(kind, dtype), population.params[0]
    apart = torch.stack([start, start + 0.1 * torch.randn_like(start)])
    for rows in (start.expand(2, -1), apart):
        for clip in CLIPS:
            found = backend.clipped_sum(rows, whole, clip)[0]
            assert_close(found, loop.clipped_sum(rows, whole, clip)[0], relative)
            alone = [backend.clipped_sum(rows, one, clip)[0] for one in single(whole)]
            assert_close(found, torch.stack(alone).sum(0), relative)
            assert found.abs().max() > 0


@pytest.mark.parametrize("name", KINDS)
def test_training_moves_what_is_trained_and_nothing_else(name: str) -> None:
    torch.manual_seed(2)
    kind = KINDS[name]
    model = kind.make()
    first = next(model.parameters())
    first.requires_grad_(len(list(model.parameters())) == 1)
    made = clients(kind, model)
    test = Rows(inputs(kind.inputs, 4), torch.randint(0, CLASSES, (4,)))
    before = copy.deepcopy(made[0].model)
    run = fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=2, test=test, seed=0)
    assert torch.isfinite(torch.tensor(list(run)[-1].metrics["test_loss"]))
    for client in made:
        frozen = constants(client.model)
        assert all(torch.equal(frozen[key], value) for key, value in constants(before).items())
        trained = {key: p for key, p in client.model.named_parameters() if p.requires_grad}
        assert all(not torch.equal(trained[key], p) for key, p in before.named_parameters() if p.requires_grad)


# --- what mixes examples


def norm(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Residual(make)


def shifted(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x.mean(1)).roll(1, 0)


def branching(layers: nn.ModuleList, x: Tensor) -> Tensor:
    values = layers[0](x.mean(1))
    return values if float(x.detach().sum()) > 0 else values.tanh()


def examples_first(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, nn.MultiheadAttention | nn.LSTM):
            layer.batch_first = True
    return model


def changed(model: nn.Module, **settings: Any) -> nn.Module:
    vars(model.layers[0]).update(settings)
    return model


def by_parametrization(model: nn.Module) -> nn.Module:
    before, x = model.layers[0].weight.detach().clone(), nn.utils.remove_weight_norm(model.layers[0])
    nn.utils.parametrizations.weight_norm(x)
    torch.testing.assert_close(x.weight.detach(), before)
    return model


def called_once(model: nn.Module) -> nn.Module:
    model(torch.zeros(1, T, E))
    return model


def in_eval_mode(model: nn.Module) -> nn.Module:
    model.norm.eval()
    return model


REFUSED: dict[str, tuple[Kind, str, list[Callable[[nn.Module], nn.Module]]]] = {
    "batch norm": (
        Kind(norm(lambda: nn.BatchNorm2d(4)), inputs="image"),
        r"model\.norm = 'BatchNorm2d'.*Call \.eval\(\) on it.*GroupNorm there, a change of the model",
        [in_eval_mode, fix_model],
    ),
    "instance norm with statistics": (
        Kind(norm(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), inputs="image"),
        r"model\.norm = 'InstanceNorm2d'.*set track_running_stats=False",
        [fix_model],
    ),
    "attention over examples": (
        Kind(lambda: Mapped(attended, attention(batch_first=False)())),
        r"model\.layers\.0 = 'MultiheadAttention'.*with batch_first=True that is not so: this was tried",
        [examples_first],
    ),
    "encoder over examples": (
        Kind(lambda: Mapped(encoded, encoder(batch_first=False)())),
        r"self_attn = 'MultiheadAttention'.*with batch_first=True that is not so",
        [examples_first],
    ),
    "lstm over examples": (
        Kind(lambda: Mapped(lambda m, x: m[0](x)[0][:, -1], nn.LSTM(E, E))),
        r"model\.layers\.0 = 'LSTM'.*with batch_first=True that is not so",
        [examples_first],
    ),
    "sparse embedding": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, sparse=True)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*set sparse=False",
        [lambda model: changed(model, sparse=False)],
    ),
    "embedding whose gradients count words": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, scale_grad_by_freq=True)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*set scale_grad_by_freq=False",
        [lambda model: changed(model, scale_grad_by_freq=False)],
    ),
    "weight norm by hooks": (
        Kind(lambda: Mapped(means, nn.utils.weight_norm(nn.Linear(E, E)))),
        r"model = 'Mapped': cannot be copied.*nn\.utils\.remove_weight_norm and then nn\.utils\.parametrizations",
        [by_parametrization],
    ),
    "layers without shapes": (
        Kind(lambda: Mapped(means, nn.LazyLinear(E))),
        r"model\.layers\.0\.weight = 'UninitializedParameter': has no shape yet: call the model once",
        [called_once],
    ),
    "embedding that rescales itself": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, max_norm=1.0).requires_grad_(False)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*tells what the data hold; set max_norm=None",
        [lambda model: changed(model, max_norm=None)],
    ),
    "a branch on the whole batch": (Kind(lambda: Mapped(branching, nn.Linear(E, E))), r"model = 'Mapped'", []),
    "another example's outputs": (Kind(lambda: Mapped(shifted, nn.Linear(E, E))), r"model = 'Mapped'", []),
}


@pytest.mark.filterwarnings("ignore:model.* is a new GroupNorm")
@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_is_refused_by_name_and_the_fix_helps(name: str) -> None:
    torch.manual_seed(3)
    kind, said, fixes = REFUSED[name]

    def run(model: nn.Module) -> fp.Training:
        return fp.Training(clients(kind, model), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)

    with pytest.raises(fp.ConfigError, match=said):
        run(kind.make())
    for fix in fixes:
        assert len(list(run(fix(kind.make())))) == 1


@pytest.mark.parametrize("through_data", [False, True])
def test_a_model_that_writes_into_what_is_frozen_is_refused(through_data: bool) -> None:
    """Frozen values are released without noise: marks of what was looked up would be, too."""

    class Marking(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            with torch.no_grad():
                weight = self.weight.data if through_data else self.weight
                weight[input.flatten(), 0] += 1e-6
            return super().forward(input)

    def make() -> nn.Module:
        return Mapped(of_words, Marking(WORDS, E).requires_grad_(False))

    kind = Kind(make, inputs="words")
    with pytest.raises(fp.ConfigError, match=r"model\.layers\.0\.weight = 'frozen': a forward pass changes it"):
        fp.Training(clients(kind, make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)


def test_fixes_that_keep_weights_keep_what_the_model_computes() -> None:
    torch.manual_seed(4)
    x = inputs("image", 4)
    model = Residual(lambda: nn.BatchNorm2d(4))
    model(x)
    tested = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(in_eval_mode(model)(x), tested)
    model = Residual(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    torch.testing.assert_close(fix_model(model)(x), model(x))


# --- backends choose themselves


def test_a_model_that_vmap_cannot_batch_is_told_with_the_reason_and_the_price() -> None:
    kind = KINDS["gru, packed"]
    with pytest.warns(PromiseWarning, match=r"one example at a time, about \d+ times slower.*vmap: It looks like"):
        run = fp.Training(clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert sum("one example at a time" in text for text in run.warnings) == 1
    told = fp.Training(
        clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute("loop")
    )
    assert not told.warnings


def test_constraints_on_a_model_that_vmap_cannot_batch_are_refused() -> None:
    kind = KINDS["gru, packed"]
    made = clients(kind, kind.make())
    owners = [fp.Client(c.model, c.loss, c.loader, problem=fp.Problem(constraints=(fp.LossAtMost(2.0),))) for c in made]
    with pytest.raises(fp.ConfigError, match=r"problem\.constraints = 'Mapped': .*a model that vmap can batch"):
        fp.Training(owners, fp.private_al(), fp.Privacy(epsilon=3), rounds=2)


@pytest.mark.parametrize("backend", ["ghost", "vmap"])
def test_a_backend_that_is_insisted_on_and_does_not_serve_the_model_is_refused(backend: Any) -> None:
    kind = KINDS["gru, packed"]
    with pytest.raises(fp.ConfigError, match=rf"compute\.backend = '{backend}': does not serve this model .*'auto'"):
        fp.Training(
            clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute(backend)
        )


def test_the_choice_does_not_look_at_the_data() -> None:
    """All that the model is given is made up: numbers below 1, where the data have 5."""
    largest: list[float] = []

    class Looking(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if not is_functorch_wrapped_tensor(input):
                largest.append(float(input.detach().abs().max()))
            return super().forward(input)

    model = nn.Sequential(Looking(E, E), nn.Linear(E, CLASSES))
    data = [Rows(torch.full((6, E), 5.0), torch.zeros(6).long()) for _ in "ab"]
    population = Population(fp.make_clients(model, nn.CrossEntropyLoss(), data))
    population.reset_models()
    assert select_backend("auto", population).name == "ghost"
    assert len(largest) > 10 and max(largest) <= 1


def test_inputs_by_name_reach_the_model_and_padding_counts_for_nothing() -> None:
    """The same words padded to other lengths give the same gradient: what is padded is masked."""
    torch.manual_seed(5)
    kind = KINDS["text with a mask, by name"]
    model = kind.make().double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    words, y, one = torch.tensor([[[3, 1, 2]]]), torch.zeros(1, 1).long(), torch.ones(1, 1, dtype=torch.bool)

    def gradient(length: int) -> Tensor:
        padded = nn.functional.pad(words, (0, length - 3))
        given = {"words": padded, "mask": (torch.arange(length) < 3).expand(1, 1, -1)}
        return BACKENDS["ghost"](model, kind.loss).clipped_sum(row, Batch(torch.zeros(1).long(), given, y, one), None)[
            0
        ]

    torch.testing.assert_close(gradient(3), gradient(T), rtol=1e-9, atol=1e-12)


def test_inputs_that_are_no_tensors_are_refused() -> None:
    class Strings(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return {"text": "a word"}, torch.tensor(0)

    with pytest.raises(fp.DataError, match=r"of tensors, or of dicts and tuples of tensors"):
        Population(fp.make_clients(nn.Linear(E, CLASSES), nn.CrossEntropyLoss(), [Strings()]))


@pytest.mark.parametrize("mask", [None, "causal", "boolean", "added"])
def test_attention_that_is_written_out_is_torchs(mask: str | None) -> None:
    torch.manual_seed(6)
    q, k, v = torch.randn(3, 2, 2, T, E, dtype=torch.float64)
    allowed = torch.ones(T, T, dtype=torch.bool).tril(1)
    added = torch.randn(T, T, dtype=torch.float64)
    given = {"causal": {"is_causal": True}, "boolean": {"attn_mask": allowed}, "added": {"attn_mask": added}}
    options = given.get(mask or "", {})
    attend = nn.functional.scaled_dot_product_attention
    found = WRITTEN_OUT[attend](q, k, v, dropout_p=1e-12, **options)
    torch.testing.assert_close(found, attend(q, k, v, **options))
    assert WRITTEN_OUT[attend](q, k, v) is None


@pytest.mark.parametrize("backend", ["ghost", "loop"])
def test_each_example_has_a_mask_of_its_own_in_attention_with_dropout(backend: str) -> None:
    """Of 64 equal examples about half lose a given weight: not all, and not none."""
    torch.manual_seed(7)
    model = Mapped(attended, attention(dropout=0.5)()).double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    x, y = torch.randn(1, 1, T, E).double().expand(1, 64, -1, -1), torch.zeros(1, 64).long()
    whole = Batch(torch.zeros(1).long(), x, y, torch.ones(1, 64, dtype=torch.bool))
    served = BACKENDS[backend](model, nn.CrossEntropyLoss())
    sums = torch.stack([served.clipped_sum(row, one, Clip(1e6))[0] for one in list(single(whole))[:2]])
    assert not torch.equal(*sums)
    mean = served.clipped_sum(row, whole, Clip(1e6))[0] / 64
    again = served.clipped_sum(row, whole, Clip(1e6))[0] / 64
    assert 0 < float((mean - again).norm()) < float((sums[0] - sums[1]).norm())


def test_what_is_frozen_and_buffers_are_in_the_type_of_a_run() -> None:
    """Else a run in float64, or on another device, mixes types and devices."""
    kind = KINDS["adapter beside a frozen layer"]
    model = kind.make()
    model.register_buffer("places", torch.ones(2))
    population = Population(clients(kind, model), dtype=torch.float64)
    for one in (population.model, *(client.model for client in population.clients)):
        assert {value.dtype for value in constants(one).values()} == {torch.float64}
