"""Inexact ADMM as published (Ryu and Kim, 2022), many settings side by side: 20 000 full rounds on a processor.

The library's runs are the reference (`fedpriv.papers.admm`); a test compares the iterates. Here several settings,
called lanes, share each pass over the data, images are stored in bfloat16, and a round can compute its gradients on a
part of each agent's examples, in rotation. The scale of the noise is that of all examples.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.data import load
from fedpriv.papers.admm import published_rho

Method = Literal["ObjT", "ObjP", "OutP"]
BETA, DELTA_BAR = 1e-6, 1e-6


@dataclass(frozen=True)
class Lane:
    """One setting.

    Attributes:
        epsilon: The epsilon of a round; infinite for no noise.
        rho: A number, or "hat" for eq 21, or "hat/100" (OutP+).
        a: Factor of the radius, of eta, or of eta-hat.
        power: Power of the radius a / t**power (ObjT): 0 as in the public code, 2 as in the text.
        form: OutP's noise and eta-hat: as in the public `code`, with the `deviation` instead of the variance, or
            `corrected` for the number of examples as well.
        bound: Bound on the l2 norm of an example's gradient that OutP assumes.
    """

    epsilon: float = math.inf
    rho: float | str = "hat"
    a: float = 1.0
    power: float = 0.0
    form: str = "code"
    bound: float = 1.0

    def penalty(self, preset: Literal["mnist", "femnist"], t: int) -> float:
        """Returns rho of round `t`, from 1."""
        if not isinstance(self.rho, str):
            return self.rho
        return published_rho(preset, self.epsilon)(t) / (100 if self.rho == "hat/100" else 1)

    def inverse_eta(self, sizes: Tensor, t: int) -> Tensor:
        """Returns 1 / eta-hat of round `t` for clients with `sizes` examples (theorem 4 of Huang et al.)."""
        of_sum = sizes if self.form != "corrected" else torch.ones_like(sizes)
        found = of_sum * self.bound**2 / 4
        if math.isfinite(self.epsilon):
            found = found + 2 * of_sum * self.bound * math.sqrt(t * math.log(1.25 / DELTA_BAR)) / (sizes * self.epsilon)
        return found / self.a

    def deviation(self, sizes: Tensor, rho: float, inverse_eta: Tensor) -> Tensor:
        """Returns the standard deviation of OutP's noise on z."""
        if math.isinf(self.epsilon):
            return torch.zeros_like(sizes)
        found = 2 * self.bound * math.sqrt(2 * math.log(1.25 / DELTA_BAR)) / (self.epsilon * (rho + inverse_eta))
        if self.form == "code":
            return found**2
        return found / sizes if self.form == "corrected" else found


@dataclass(frozen=True)
class Federation:
    """Agents' examples, padded to the same number: a label of -1 is no example.

    Attributes:
        x: `[agents, examples, features]`.
        y: `[agents, examples]`.
        x_test: `[tests, features]`.
        y_test: `[tests]`.
        classes: Number of classes.
        preset: The constants of eq 21.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    preset: Literal["mnist", "femnist"] = "mnist"

    @property
    def sizes(self) -> Tensor:
        """Each agent's number of examples."""
        return (self.y >= 0).sum(1).float()


def simulate(
    data: Federation,
    method: Method,
    lanes: Sequence[Lane],
    rounds: int,
    seed: int,
    at: Sequence[int],
    parts: int = 1,
) -> list[dict[str, list[float]]]:
    """Runs a method with all settings side by side.

    Args:
        data: The agents' examples.
        method: The algorithm.
        lanes: The settings.
        rounds: Number of rounds.
        seed: Seed of the noise.
        at: Rounds, from 1, at which to measure.
        parts: Gradients are computed on one of so many parts of each agent's examples, in rotation.

    Returns:
        For each setting, in each round of `at`: test error of w in percent (`error`), mean absolute noise (`noise`) and
        the sum of |w - z_p| (`violation`); and the largest absolute coordinate of the last w (`last`, one number).
    """
    state = _State(data, method, lanes, seed, parts)
    found: list[dict[str, list[float]]] = [{"error": [], "noise": [], "violation": [], "last": []} for _ in lanes]
    for t in range(1, rounds + 1):
        state.step(t)
        if t in at:
            for name, values in state.measure().items():
                for lane, value in zip(found, values, strict=True):
                    lane[name].append(value)
    for lane, value in zip(found, state.w.abs().amax((0, 2)).tolist(), strict=True):
        lane["last"].append(value)
    return found


class _State:
    """The variables of all lanes: z and lambda are `[agents, features, lanes, classes]`, w has no agents."""

    def __init__(self, data: Federation, method: Method, lanes: Sequence[Lane], seed: int, parts: int) -> None:
        self.data, self.method, self.lanes, self.parts = data, method, list(lanes), parts
        agents, examples, features = data.x.shape
        self.wide = torch.float64 if data.x.dtype == torch.float64 else torch.float32
        shape = features, len(lanes), data.classes
        self.w = torch.zeros(shape, dtype=self.wide)
        self.z = torch.zeros((agents, *shape), dtype=self.wide)
        self.dual = torch.zeros_like(self.z)
        self.noise = torch.zeros_like(self.z)
        self.sizes = data.sizes.to(self.wide)
        self.total = float(self.sizes.sum())
        self.draws = np.random.Generator(np.random.SFC64([seed, len(method), ord(method[-1])]))
        self.length = examples // parts
        valid = data.y >= 0
        one_hot = torch.nn.functional.one_hot(data.y.clamp_min(0), data.classes).to(self.wide)
        self.one_hot, self.valid = one_hot.unsqueeze(2), valid.to(self.wide)[..., None, None]
        self.lengths = data.x.abs().to(self.wide).sum(2)  # l1 norms
        self.largest: deque[Tensor] = deque(maxlen=parts)

    def step(self, t: int) -> None:
        """Runs round `t`, from 1."""
        rho = [lane.penalty(self.data.preset, t) for lane in self.lanes]
        by_lane = torch.tensor(rho, dtype=self.wide)[:, None]
        gradient = self._gradient(t)
        if self.method == "OutP":
            self._output(t, rho, by_lane, gradient)
            self.w = (self.z - self.dual / by_lane).mean(0)
        else:
            self.w = (self.z - self.dual / by_lane).mean(0)
            self._objective(t, by_lane, gradient)
        self.dual += (self.w - self.z).mul_(by_lane)

    def measure(self) -> dict[str, list[float]]:
        """Returns error, noise and violation of each lane."""
        scores = torch.einsum("nj,jlk->nlk", self.data.x_test.to(self.wide), self.w)
        wrong = (scores.argmax(2) != self.data.y_test[:, None]).double().mean(0)
        return {
            "error": (100 * wrong).tolist(),
            "noise": self.noise.abs().mean((0, 1, 3)).tolist(),
            "violation": (self.w - self.z).abs().sum((0, 1, 3)).tolist(),
        }

    def _gradient(self, t: int) -> Tensor:
        """Returns the sum of the examples' gradients at z, and notes the largest l1 norm of one."""
        data, lanes = self.data, len(self.lanes)
        start = (t - 1) % self.parts * self.length
        used = slice(start, start + self.length)
        x = data.x[:, used]
        flat = self.z.flatten(2).to(data.x.dtype)
        outputs = torch.bmm(x, flat).to(self.wide).unflatten(2, (lanes, data.classes))
        residual = (outputs.softmax(3).sub_(self.one_hot[:, used])).mul_(self.valid[:, used])
        if self.method != "OutP":
            norms = residual.abs().sum(3) * self.lengths[:, used, None]
            self.largest.append(norms.amax(1))
        back = torch.bmm(x.transpose(1, 2), residual.flatten(2).to(data.x.dtype)).to(self.wide)
        return back.mul_(data.x.shape[1] / self.length).unflatten(2, (lanes, data.classes))

    def _objective(self, t: int, rho: Tensor, total_gradient: Tensor) -> None:
        agents = len(self.z)
        gradient = total_gradient.div_(self.total).add_(self.z, alpha=2 * BETA / agents)
        if any(math.isfinite(lane.epsilon) for lane in self.lanes):
            epsilons = torch.tensor([lane.epsilon for lane in self.lanes], dtype=self.wide)
            scale = torch.stack([*self.largest]).amax(0) / self.total / epsilons  # eq 20
            self.noise = self._drawn("laplace") * scale[:, None, :, None]
            gradient += self.noise
        if self.method == "ObjP":
            pull = torch.tensor([math.sqrt(t) / lane.a for lane in self.lanes], dtype=self.wide)[:, None]
            new = self.w * rho + self.dual
            self.z = new.sub_(gradient).add_(self.z * pull).div_(rho + pull)
        else:
            radius = torch.tensor([lane.a / t**lane.power for lane in self.lanes], dtype=self.wide)[:, None]
            move = (self.dual - gradient).div_(rho).add_(self.w).sub_(self.z)
            self.z = self.z + move.clamp_(-radius, radius)

    def _output(self, t: int, rhos: list[float], rho: Tensor, total_gradient: Tensor) -> None:
        """The public code's order: z first, at the last round's w; the gradient is the agent's mean."""
        pulls = [lane.inverse_eta(self.sizes, t) for lane in self.lanes]
        spread = [
            lane.deviation(self.sizes, value, pull) for lane, value, pull in zip(self.lanes, rhos, pulls, strict=True)
        ]
        pull = torch.stack(pulls, 1)[:, None, :, None]
        gradient = total_gradient.div_(self.sizes[:, None, None, None]).add_(self.z, alpha=2 * BETA)
        new = self.w * rho + self.dual
        self.z = new.sub_(gradient).add_(self.z * pull).div_(rho + pull)
        if any(math.isfinite(lane.epsilon) for lane in self.lanes):
            self.noise = self._drawn("normal") * torch.stack(spread, 1)[:, None, :, None]
            self.z += self.noise

    def _drawn(self, law: Literal["laplace", "normal"]) -> Tensor:
        """Returns noise of scale 1 for z, the same for all lanes: their differences are then less noisy."""
        agents, features, _, classes = self.z.shape
        count = agents * features * classes
        if law == "normal":
            drawn = self.draws.standard_normal(count, dtype=np.float32)
        else:
            drawn = self.draws.standard_exponential(count, dtype=np.float32)
            signs = np.unpackbits(np.frombuffer(self.draws.bytes(count // 8 + 1), np.uint8))[:count]
            drawn *= signs.astype(np.int8) * 2 - 1
        return torch.from_numpy(drawn).to(self.wide).view(agents, features, 1, classes)


def federation(x: Tensor, y: Tensor, agents: int, x_test: Tensor, y_test: Tensor) -> Federation:
    """Returns examples that are divided evenly among agents in their order, as in the public code."""
    size = len(y) // agents
    x, y = x[: agents * size], y[: agents * size]
    return Federation(x.view(agents, size, -1), y.view(agents, size), x_test, y_test, int(y.max()) + 1)


def mnist() -> Federation:
    """MNIST, ten agents in file order, in bfloat16."""
    split = load("mnist", root=str(_folder("mnist")), flat=True)
    (x, y), (x_test, y_test) = split.train[:], split.test[:]
    return federation(x.bfloat16(), y, 10, x_test, y_test)


def digits() -> Federation:
    """Scikit-learn's digits, ten agents, in float32: a small stand-in for MNIST."""
    split = load("digits", flat=True)
    (x, y), (x_test, y_test) = split.train[:], split.test[:]
    return federation(x.float(), y, 10, x_test.float(), y_test)


def femnist(writers: int = 114) -> Federation:
    """The paper's own sample of FEMNIST, as far as it is stored: 114 of its 195 writers have training images."""
    with np.load(_folder("femnist") / "femnist_iadmm5pct.npz") as file:
        stored = {name: file[name] for name in ("images", "labels", "writers", "split")}
    images = torch.from_numpy(1 - stored["images"].reshape(len(stored["labels"]), -1).astype(np.float32) / 255)
    labels, train = torch.from_numpy(stored["labels"]), stored["split"] == 0
    names = np.unique(stored["writers"][train])[:writers]
    kept = [np.flatnonzero(train & (stored["writers"] == name)) for name in names]
    most, order = max(map(len, kept)), torch.Generator().manual_seed(0)
    x = torch.zeros(len(kept), most, images.shape[1], dtype=torch.bfloat16)
    y = torch.full((len(kept), most), -1)
    for agent, rows in enumerate(kept):  # at random places, so that each part has its share of every agent
        places = torch.randperm(most, generator=order)[: len(rows)]
        x[agent, places], y[agent, places] = images[rows].bfloat16(), labels[rows]
    tests = ~train
    return Federation(x, y, images[tests], labels[tests], 62, "femnist")


def _folder(name: str) -> Path:
    return Path(os.environ.get("FEDPRIV_DATA", "data")) / name


@cache
def _loaded(name: str, writers: int) -> Federation:
    return {"mnist": mnist, "digits": digits, "femnist": lambda: femnist(writers)}[name]()


def measured_rounds(rounds: int, count: int = 30) -> list[int]:
    """Returns rounds spread evenly over a run, and the first few."""
    return sorted({1, *(max(1, round(rounds * k / count)) for k in range(1, count + 1))})


def run(
    name: str, writers: int, method: Method, lanes: list[dict[str, Any]], rounds: int, seed: int, parts: int
) -> list[dict[str, list[float]]]:
    """Runs a point of an experiment; its arguments and result can be stored as JSON."""
    data = _loaded(name, writers)
    return simulate(data, method, [Lane(**lane) for lane in lanes], rounds, seed, measured_rounds(rounds), parts)


def as_json(lanes: Sequence[Lane]) -> list[dict[str, Any]]:
    """Returns lanes as an argument of `run`."""
    return [asdict(lane) for lane in lanes]
