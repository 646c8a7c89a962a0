"""Load a model's file."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fl_labelskew_registry import LabelSkewError, Network, catalog, mistake
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fl_labelskew_plugins.data.files import fits
from fl_labelskew_plugins.engine.samples import normaliser
from fl_labelskew_plugins.machine.place import free_memory
from fl_labelskew_plugins.machine.text import clean, failure, few
from fl_labelskew_plugins.models.module import Headed
from fl_labelskew_plugins.recipe import mistakes
from fl_labelskew_plugins.recipe.network_file import find
from fl_labelskew_plugins.recipe.sections import is_code
from fl_labelskew_plugins.runs import model_file
from fl_labelskew_plugins.runs.model_file import About
from fl_labelskew_plugins.tensors import Weights

LAST, BEST = "model.safetensors", "best.safetensors"
SMALL = 2**20  # numbers in a batch without an estimate of the layers' memory, which takes seconds


class Whole(nn.Module):
    """A network after normalisation, from samples ``(B, ...)`` to logits ``(B, C)``."""

    def __init__(self, network: nn.Module, about: About) -> None:
        super().__init__()
        self.network = network
        mean, std, dims = tuple(about.mean or ()), tuple(about.std or ()), len(about.input_shape) + 1
        dtype = getattr(torch, about.dtype)
        self.normalise = normaliser(mean, std, dims=dims, dtype=dtype, device=torch.device("cpu"))
        self.eval()

    def forward(self, samples: Tensor) -> Tensor:
        """Logits, float32."""
        logits: Tensor = self.network(self.normalise(samples)).float()
        return logits


@dataclass(frozen=True)
class Trained:
    """A model from its file; ``network`` takes normalised samples, and returns logits ``(B, C)``."""

    file: Path
    about: About
    network: nn.Module

    def whole(self) -> Whole:
        """See :class:`Whole`; raises LabelSkewError if the normalisation is unknown."""
        if self.about.mean is None or self.about.std is None:
            problem = "does not say how samples are normalised, because its writer had no samples"
            use = "the model.safetensors of a silo, which has the normalisation of the silo's samples"
            raise mistake(clean(self.file, 4096), problem, use)
        return Whole(self.network, self.about)

    def logits(self, samples: NDArray[Any]) -> Tensor:
        """Logits ``(B, C)`` float32 of samples ``(B, ...)``; raises LabelSkewError if the samples do not fit."""
        whole, size = self.whole(), len(samples)
        if samples.size > SMALL:
            self.check_memory(1)
            size = max(1, int(free_memory() // max(self._memory, 1)))  # smaller batches if memory is short
        try:
            with torch.inference_mode():
                parts = [samples[start : start + size] for start in range(0, len(samples), size)]
                return torch.cat([whole(torch.from_numpy(part)) for part in parts])
        except (RuntimeError, IndexError, ValueError) as error:  # such as an invalid character number
            problem = f"the network does not take these samples: {clean(failure(error))}"
            raise LabelSkewError(f"{clean(self.file, 4096)}: {problem}") from None

    def check_memory(self, count: int) -> None:
        """Raise LabelSkewError unless the layers' values for ``count`` samples fit into memory."""
        use = "a machine with more memory, or a model of smaller samples"
        fits(count * self._memory, clean(self.file, 4096), "the layers of its network", use)

    @cached_property
    def _memory(self) -> int:
        """Estimated bytes for one sample: three times the largest layer's; 0 if unknown."""
        sizes = [0]

        def measure(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            sizes.append(sum(t.numel() * t.element_size() for t in (*given, made) if isinstance(t, Tensor)))

        kind = torch.uint8 if self.about.mean == [] and self.about.dtype == "uint8" else torch.float32
        sample = torch.empty((1, *self.about.input_shape), dtype=kind, device="meta")
        weights = {name: value.to("meta") for name, value in self.network.state_dict().items()}
        hooks = [module.register_forward_hook(measure) for module in self.network.modules()]
        try:
            with suppress(Exception), torch.inference_mode():
                torch.func.functional_call(self.network, weights, (sample,))
        finally:
            for hook in hooks:
                hook.remove()
        return 3 * max(sizes)


def load(file: Path, network: Network | None = None, *, code: str | None = None) -> Trained:
    """Load a model's file, which may be untrusted; raises LabelSkewError if it is invalid or needs a missing plugin.

    ``network``: if it was a Python object; ``code``: ``FILE.py:FUNCTION``, if it was one. The file never chooses code.
    """
    about, weights = model_file.read(file)
    where = clean(file, 4096)
    if network is None:
        network = _network(about, weights, where, code)
    return Trained(file, about, build(network, tuple(about.input_shape), len(about.class_names), weights, where))


def _network(about: About, weights: Weights, where: str, code: str | None) -> Network:
    if about.network is None:
        raise mistake(where, f"its network was an object ({about.module})", "fl.load_run(RUN, model=...) in Python")
    if code is not None or is_code(about.network):
        return _from_code(about, where, code)
    kind = load_plugin("models", about.network, where)
    params = about.network_params | dict(kind.trained_params)
    network: Network = create(kind, params, f"{where}: model {about.network}: ")
    # untrusted metadata may ask for any size, so first build shapes only; modules that cannot be built in this way
    # raise one of these errors, and are checked later
    with suppress(NotImplementedError, RuntimeError, TypeError), _limited(weights, where), torch.device("meta"):
        check(network.build(tuple(about.input_shape), len(about.class_names)), weights, where)
    return network


def _from_code(about: About, where: str, code: str | None) -> Network:
    """The network of the function ``code``; raises LabelSkewError if it is not the model's."""
    params, name = dict(about.network_params), clean(about.network)
    digest = clean(params.pop("sha256", "unknown"), 64)
    if not is_code(name):
        raise mistake(f"network {clean(code)}", f"{where} has the network {name}", "no network")
    if code is None:
        form = f"PATH/{name}" if ".py:" in name else name
        use = f"--network {form}, in Python fl.load_run(RUN, model='{form}')"
        raise mistake(where, f"its network is {name} (SHA-256 {digest}), and its code runs only if you name it", use)
    function = find(code)
    if (function.sha256, function.name) != (digest, name.rpartition(":")[2]):
        problem = f"{function} has SHA-256 {function.sha256}, but {where} needs {name} with {digest}"
        raise mistake("network", problem, "the original file")
    network: Network = create(function, params, f"{where}: model {name}: ")
    return network


def load_plugin(kind: catalog.Kind, name: str, where: str) -> Any:
    """Load a plugin's class; raises LabelSkewError if it is not installed."""
    names = sorted({entry.name for entry in catalog.entries(kind)})
    if name not in names:
        noun = kind.removesuffix("s")
        raise LabelSkewError(
            f"{where}: needs the {noun} {name!r}, which is not installed; install its package, or "
            f"use one of {few(names, 40)}"
        )
    return catalog.load(kind, name)


def create(plugin: Any, params: Mapping[str, Any], place: str) -> Any:
    """A plugin with parameters from a file; raises LabelSkewError if they are invalid."""
    args, lines = mistakes.checked(plugin.Params, dict(params), place)
    if args is None:
        raise LabelSkewError(lines[0])
    return plugin(args)


def check(module: nn.Module, weights: Weights, where: str) -> None:
    """Raise LabelSkewError unless the weights have a module's names and shapes."""
    needed = module.state_dict()
    wrong = [name for name in {**needed, **weights} if name not in needed or name not in weights]
    wrong += [name for name in needed.keys() & weights.keys() if needed[name].shape != weights[name].shape]
    if wrong:
        name = clean(min(wrong))
        problem = f"weights do not fit the network: {name} is missing, unknown or misshapen"
        raise mistake(where, problem, "the original file")


@contextmanager
def _limited(weights: Weights, where: str) -> Iterator[None]:
    """Raise LabelSkewError if a network is built with far more tensors or numbers than the file."""
    tensors, numbers = 10 * len(weights) + 1000, 10 * sum(value.numel() for value in weights.values()) + 10**7
    thread = threading.get_ident()

    def count(_: nn.Module, name: str, parameter: Any) -> None:
        nonlocal tensors, numbers
        if parameter is not None and threading.get_ident() == thread:
            tensors, numbers = tensors - 1, numbers - parameter.numel()
            if min(tensors, numbers) < 0:
                problem = "weights do not fit the network: the file has far fewer numbers than the network"
                raise mistake(where, problem, "the original file")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def build(network: Network, shape: tuple[int, ...], classes: int, weights: Weights, where: str) -> nn.Module:
    """The module with these weights, in eval mode; raises LabelSkewError if they do not fit."""
    if network.trained_params:
        network = type(network)(network.params.model_copy(update=dict(network.trained_params)))
    with torch.random.fork_rng([]):  # keeps the caller's next draws unchanged
        try:
            with _limited(weights, where):
                module = network.build(shape, classes)
        except LabelSkewError:
            raise
        except Exception as error:  # of any plugin, or for extreme sizes
            raise LabelSkewError(f"{where}: its network cannot be built: {clean(failure(error))}") from error
    check(module, weights, where)
    module.load_state_dict(weights)
    return (module.whole() if isinstance(module, Headed) else module).eval()


def file_of(place: Path, *, best: bool = False, client: str | None = None) -> Path:
    """The model's file in a run's folder, or the given file; raises LabelSkewError if it does not exist.

    ``best``: the best round's instead of the last one's; ``client``: a client's own, by its name or number from 0.
    """
    where = clean(place, 4096)
    if best and client is not None:
        raise LabelSkewError("--best selects the global model, --client a client's own; use one of them")
    if not place.exists():
        raise mistake(where, "does not exist", "the folder of a run, or a .safetensors file of a model")
    if not place.is_dir():
        if best or client is not None:
            option = "--best" if best else "--client"
            raise mistake(option, f"{where} is a single model", "the run's folder with it")
        return place
    if client is not None:
        return _client_file(place, client)
    file = place / (BEST if best else LAST)
    if file.is_file():
        return file
    if best:
        use = "tracking_args.keep_best: true and test samples of the server or clients"
        raise mistake(where, f"has no {BEST}", use)
    is_run = (place / "recipe.yaml").is_file()
    # a silo's folder contains one folder per run; folders in a run's folder belong to earlier rounds
    below = [] if is_run else sorted(place.glob(f"*/{file.name}"))
    if len(below) == 1:
        return below[0]
    if below:
        problem = f"has no {file.name}, but {len(below)} folders in it have one"
        raise mistake(where, problem, f"one of them, such as {clean(below[-1].parent, 4096)}")
    so_far = "; --best is the best one so far" if (place / BEST).is_file() else ""
    reason = "is written after the last round" + so_far if is_run else "exists only in the folder of a run"
    raise LabelSkewError(f"{where}: has no {LAST}, which {reason}")


def _client_file(place: Path, client: str) -> Path:
    files = sorted((place / "clients").glob("client*.safetensors"))
    metadata = {file: model_file.read_metadata(file) for file in files}
    for file, about in metadata.items():
        if about is not None and about.client_name == client:
            return file
    number = int(client) if client.isdecimal() and client.isascii() else -1
    numbered = place / "clients" / f"client{number:06d}.safetensors"
    if numbered in files:
        return numbered
    names = [file.stem if about is None else about.client_name or str(about.client) for file, about in metadata.items()]
    use = few(names) if names else "no --client; methods such as map or fedphp keep one model per trained client"
    raise mistake(f"--client {clean(client)}", f"{clean(place, 4096)} has no model of that client", use)
