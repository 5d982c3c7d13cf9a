"""Frozen extractors, which compute features once, before training, with a network from the user's own file.

The network was fitted on other data and counts as public, so epsilon covers neither those data nor the network. The
features of an example must depend on no other example; this is tested on synthetic examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fedpriv.data.base import Split, labels_of
from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.models import load_weights
from fedpriv.settings import Count, suggest_nearest, validate_arguments

_FIELD = "data.extractor"
_DIFFERENCE = 1e-3  # of features of an example alone and among others, relative to their size: rounding is far below
Network = Callable[[Tensor], Tensor]
"""Maps a batch of inputs `[b, ...]` to features `[b, ...]`."""


@validate_arguments("data.extractor")
@dataclass(frozen=True)
class Extractor:
    """A network in a file; its outputs are the inputs of the trained model.

    Args:
        file: A `.safetensors` file, or a `.pt` or `.pth` file with a `state_dict`, loaded without executing code; or an
            `.onnx` file, which also contains the layers and needs the extra `onnx`.
        model: The network's architecture, a key of `MODELS` or `package.module:Name`; none for ONNX.
        options: The options of that model, such as `{n_classes: 1000}`.
        exclude: Patterns of names that keep their initial values, such as `fc.*` if the head is not used.
        layer: Name of the layer with the features as output; empty for the output of the network.
        normalize: Scale each example's features to norm 1, so that gradients have similar norms.
        sha256: Digest that the file must have; empty skips the check. The privacy statement includes the digest.

    Raises:
        ConfigError: If `model` is missing for a file of weights, or given for an ONNX file.
    """

    file: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    exclude: tuple[str, ...] = ()
    layer: str = ""
    normalize: bool = True
    sha256: str = ""

    def __post_init__(self) -> None:
        if self.is_onnx and (self.model or self.options or self.exclude or self.layer):
            fix = "is an ONNX file, which contains its own layers: leave out model, options, exclude and layer"
            raise ConfigError(_FIELD, self.file, fix)
        if not self.is_onnx and not self.model:
            raise ConfigError(
                f"{_FIELD}.model",
                self.model,
                "is required for a file of weights: name the model of these weights, or use an .onnx file",
            )

    @property
    def is_onnx(self) -> bool:
        """True if the file contains layers and not only weights."""
        return Path(self.file).suffix.lower() == ".onnx"

    def digest(self) -> str:
        """Returns the SHA-256 digest of the file's contents.

        Raises:
            ConfigError: If the file cannot be read, or its digest differs from `sha256`.
        """
        try:
            with Path(self.file).open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{_FIELD}.file", self.file, f"cannot be read ({error.strerror}): correct the path"
            ) from error
        if self.sha256 and self.sha256.lower() != digest:
            raise ConfigError(
                f"{_FIELD}.sha256",
                self.sha256,
                f"differs from the SHA-256 of {self.file}, {digest}: use the intended file, or correct sha256",
            )
        return digest


@validate_arguments("extract_features")
def extract_features(
    network: nn.Module | Network,
    dataset: Dataset[Any],
    *,
    layer: str = "",
    normalize: bool = True,
    batch_size: Count = 256,
) -> TensorDataset:
    """Replaces each input by its features, which a frozen network computes once.

    The network and the data that it was fitted on must be public, because epsilon covers neither of them.

    Args:
        network: A module, which is used in eval mode, or a function of batches.
        dataset: Examples `(input, target)`.
        layer: Name of the module's layer that provides the features; empty for the module's output.
        normalize: Scale each example's features to norm 1; features of norm 0 stay 0.
        batch_size: Number of examples that are computed at a time.

    Returns:
        Features float32 `[n, n_features]`, and the targets as they are.

    Raises:
        ConfigError: If there is no such layer, or the features of an example depend on other examples.
        DataError: If the network cannot process an input, or a feature is not finite.
    """
    compute = network
    if isinstance(network, nn.Module):
        network.eval()
        compute = _output_of(network, layer)
    elif layer:
        raise ConfigError(
            f"{_FIELD}.layer", layer, "is only for torch modules, and this network is a function: leave it out"
        )
    first: Tensor = dataset[0][0]
    with torch.no_grad():
        _check_alone(compute, first)
        features = torch.cat([_features(compute, inputs) for inputs in _batches(dataset, batch_size)])
    if normalize:
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        features = features / norms.clamp_min(torch.finfo(features.dtype).tiny)
    return TensorDataset(features, labels_of(dataset))


def _batches(dataset: Dataset[Any], batch_size: int) -> list[Tensor]:
    n = len(dataset)  # pyright: ignore[reportArgumentType] - `Split` has checked it
    if type(dataset) is TensorDataset:
        return [*dataset.tensors[0].split(batch_size)]
    inputs = [dataset[index][0] for index in range(n)]
    return [torch.stack(inputs[start : start + batch_size]) for start in range(0, n, batch_size)]


def _features(compute: Network, inputs: Tensor) -> Tensor:
    """Returns the features of a batch, float32 `[b, n_features]`."""
    try:
        outputs = compute(inputs)
        features = torch.as_tensor(outputs).float().reshape(len(inputs), -1)
    except Exception as error:  # whatever a user's network raises
        fix = "change the inputs to the shape that it was made for (data.transforms, or data.size of an image_folder)"
        shape = tuple(inputs.shape[1:])
        raise DataError(
            f"the extractor cannot process inputs of shape {shape} ({summarize_error(error)}): {fix}"
        ) from error
    if not torch.isfinite(features).all():
        raise DataError(
            "the extractor computes features that are not finite (NaN or infinity): use another file, or scale the "
            "inputs to the range that it was made for"
        )
    return features


def _check_alone(compute: Network, example: Tensor) -> None:
    """Raises an error if a network's features of an example depend on the rest of the batch; reads no values.

    Args:
        compute: The network.
        example: An example that provides shape and type.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (3, *example.shape)
    if example.is_floating_point():
        made_up = torch.rand(shape, generator=generator)
    else:
        made_up = torch.randint(2, shape, generator=generator).to(example.dtype)
    together = _features(compute, made_up)
    alone = torch.cat([_features(compute, row[None]) for row in made_up])
    if not torch.allclose(together, alone, rtol=_DIFFERENCE, atol=_DIFFERENCE * float(alone.abs().max())):
        fix = (
            "since epsilon covers one example, an extractor must process each example alone: replace the layers that "
            "combine examples, such as a BatchNorm in training mode"
        )
        raise ConfigError(
            _FIELD,
            "the network",
            f"computes features of an example that depend on the other examples in the batch; {fix}",
        )


def _output_of(network: nn.Module, layer: str) -> Network:
    """Returns a function that computes the output of the network, or of its layer of this name."""
    if not layer:
        return network
    layers = dict(network.named_modules())
    if layer not in layers:
        raise ConfigError(
            f"{_FIELD}.layer", layer, f"the model has no such layer{suggest_nearest(layer, filter(None, layers))}"
        )

    def compute(inputs: Tensor) -> Tensor:
        outputs: list[Tensor] = []

        def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
            outputs.append(output)

        hook = layers[layer].register_forward_hook(keep)
        try:
            network(inputs)
        finally:
            hook.remove()
        return outputs[-1]

    return compute


def load_onnx(file: str | Path) -> Network:
    """Loads an ONNX file with one input, as a function of batches that returns its first output.

    Raises:
        ConfigError: If the extra `onnx` is missing, or the file cannot be read or has several inputs.
    """
    try:
        import onnxruntime
    except ImportError as error:
        fix = "an .onnx file needs onnxruntime: pip install fedpriv[onnx]"
        raise ConfigError(f"{_FIELD}.file", str(file), fix) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's own kinds
        raise ConfigError(
            f"{_FIELD}.file",
            str(file),
            f"cannot be read as an ONNX file ({summarize_error(error)}): correct the path, or export the file again",
        ) from error
    names = [node.name for node in session.get_inputs()]
    if len(names) != 1:
        raise ConfigError(
            f"{_FIELD}.file",
            str(file),
            f"has {len(names)} inputs ({', '.join(names)}): use a network with exactly one input",
        )
    return lambda inputs: torch.from_numpy(session.run(None, {names[0]: inputs.numpy()})[0])


def extract_split(extractor: Extractor, split: Split, build: Callable[..., nn.Module]) -> Split:
    """Returns a data set with features as inputs.

    Args:
        extractor: The network, and the layer that provides the features.
        split: The data set.
        build: Builds a model by name, see `fedpriv.models.resolve`.

    Raises:
        ConfigError: If the file, the model or the layer does not fit.
        DataError: If the network cannot process the inputs.
    """
    digest = extractor.digest()
    if extractor.is_onnx:
        network = load_onnx(extractor.file)
    else:
        options = dict(extractor.options)
        n_classes = options.pop("n_classes", split.n_classes)
        shape = tuple(split.train[0][0].shape)
        network = build(extractor.model, input_shape=shape, n_classes=n_classes, **options)
        load_weights(network, extractor.file, exclude=extractor.exclude)

    def features(dataset: Dataset[Any]) -> TensorDataset:
        return extract_features(network, dataset, layer=extractor.layer, normalize=extractor.normalize)

    return Split(
        train=features(split.train),
        test=features(split.test),
        n_classes=split.n_classes,
        writers=split.writers,
        description=f"{split.description}; features of {extractor.file} (SHA-256 {digest[:16]}...)",
        test_writers=split.test_writers,
        target_scale=split.target_scale,
        writer_names=split.writer_names,
    )
