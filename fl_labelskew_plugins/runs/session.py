"""Build the objects of a run from its recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from fl_labelskew_registry import Contribution, Data, Federation, Images, LabelSkewError, Method, mistake, shareable
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.checked import checked
from fl_labelskew_plugins.data import fakes
from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.data.stats import normalised
from fl_labelskew_plugins.engine import devices, threads
from fl_labelskew_plugins.engine.aggregate import check_extra
from fl_labelskew_plugins.engine.local import LocalSettings, LocalTrainer, snapshot, with_shared
from fl_labelskew_plugins.engine.samples import samples
from fl_labelskew_plugins.engine.sums import VECTOR, Sums, as_tensor
from fl_labelskew_plugins.engine.turn import Turn
from fl_labelskew_plugins.machine.place import available_cores, mpi_rank, place_on_node
from fl_labelskew_plugins.machine.text import counted, few
from fl_labelskew_plugins.partition.clients import Clients, Parts, digest, divide
from fl_labelskew_plugins.recipe.conflicts import fewest_summed
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.sections import DeviceArgs, TrainArgs
from fl_labelskew_plugins.runs import status
from fl_labelskew_plugins.tensors import OPTIMIZER, State, Weights, group, rest

if TYPE_CHECKING:
    from fl_labelskew_plugins.diagnostics.watch import Watch


OWN = "own"  # prefix of a client's model in its state, with train_args.reference: local


class ClientIndices(Mapping[int, Tensor]):
    """Sample indices ``(N_k,)`` of each client."""

    def __init__(self, parts: Parts, device: torch.device) -> None:
        self._parts, self._indices = parts, torch.from_numpy(parts.indices).to(device)

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self._parts):
            raise KeyError(client)
        return self._indices[self._parts.span(client)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._parts)))

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True)
class Session:
    """The objects of a run."""

    recipe: Recipe
    class_names: list[str]
    federation: Federation
    trainer: LocalTrainer
    start: Weights  # of round 0; Record keeps only shapes and dtypes
    sizes: list[int]  # training samples of each client; 0 if unknown
    notes: Mapping[str, str]  # text files to save with the results
    clients: Clients | None = None  # None if each silo knows only its own samples
    counts: Tensor | None = None  # (K, C) training samples, on the device; None if unknown
    data: str | None = None  # fingerprint; None if no process has the data of all clients
    input_shape: tuple[int, ...] = ()
    dtype: str = "float32"  # of samples as they are stored
    mean: tuple[float, ...] | None = None  # as in Data; None if unknown here, as `std`
    std: tuple[float, ...] | None = None

    def openings(self) -> Iterator[Contribution]:
        """All clients' parts of the opening exchange, if there is one."""
        if self.sums is not None or self.method.uses("opening"):
            yield from map(self.opening, range(self.federation.num_clients))

    def opening(self, client: int) -> Contribution:
        """A client's part; raises RunError for unannounced tensors."""
        tensors = Turn(self.trainer, client).opening()
        shapes = self.method.opening_shapes(self.federation)
        check_extra(tensors, shapes, where=f"opening of {self.trainer.name(client)}")
        if self.sums is not None:
            vector = self.sums.encode_opening(client, tensors, self.reported_tests(client))
            tensors = {VECTOR: as_tensor(vector)}
        return Contribution(client, tensors)

    def reported_tests(self, client: int) -> int:
        """Test samples on which a client reports its accuracy."""
        reports = self.recipe.comm.send_measures and self.recipe.validation.per_client
        return len(self.trainer.test_indices[client]) if reports else 0

    @cached_property
    def sums(self) -> Sums | None:
        """Encoder and decoder of sums; None without secure aggregation."""
        comm, privacy = self.recipe.comm, self.recipe.privacy
        if not comm.secure_aggregation:
            return None
        noise = None
        if privacy.noise_multiplier is not None and privacy.clip is not None:
            noise = (privacy.noise_multiplier, privacy.clip, fewest_summed(self.recipe))
        return Sums(self.trainer, self.start, bits=comm.secure_bits, clip=comm.largest_change, noise=noise)

    def admit(self, client: int, samples: int, counts: Sequence[int] | None) -> None:
        """Store a client's numbers of training samples, in total and per class."""
        self.sizes[client] = samples
        if self.counts is not None and counts is not None:
            self.counts[client] = torch.tensor(counts)

    @property
    def client_names(self) -> list[str]:
        """Display names: groups, silos' own files, or numbers."""
        if self.clients is not None:
            return [f"client {name}" if name == str(k) else name for k, name in enumerate(self.clients.names)]
        files = status.names(self.recipe.client_specific.data_silo_config, self.federation.num_clients)
        return [f"silo {rank}, {name}" if name else f"silo {rank}" for rank, name in enumerate(files, 1)]

    def own_model(self, state: State) -> Weights | None:
        """A client's own model, if its state has one."""
        if self.recipe.train.reference == "local":
            return group(state, OWN) or None
        return self.method.personalised(rest(state, OPTIMIZER))

    @property
    def client_models(self) -> str:
        """Display name of the clients' own models."""
        return "personalised models" if self.method.personalises() else "local models"

    @property
    def method(self) -> Method:
        """The recipe's method."""
        return self.recipe.method


def of_classes(names: Sequence[str], counts: Tensor | None, samples: int) -> str:
    """Samples and classes in words, from ``counts`` ``(K, C)``; ``samples``: 0 if unknown."""
    held = list(names)
    if counts is not None and len(counts):
        held = [name for name, some in zip(names, counts.sum(0).tolist(), strict=True) if some]
    every = counted(len(names), "class", "classes")
    classes = every if len(held) == len(names) else f"{len(held)} of {len(names)} classes"
    known = f"{counted(samples, 'training sample')} of " if samples else ""
    return known + classes + ("" if numbered(names) else f" ({few(held)})")


def numbered(names: Sequence[str]) -> bool:
    """Whether the classes' names are only their numbers."""
    return list(names) == [str(c) for c in range(len(names))]


def loaded(recipe: Recipe) -> Data:
    """Load and normalise the recipe's data set."""
    path = data_folder(recipe)
    recipe.dataset.check(path, download=recipe.data.download)
    data = recipe.dataset.load(path, download=recipe.data.download, seed=recipe.common.random_seed)
    data = normalised(data, recipe.data.mean, recipe.data.std)
    check_form(recipe, data)
    return data


def check_form(recipe: Recipe, data: Data) -> None:
    """Raise LabelSkewError unless the data have the recipe's shape and number of classes."""
    form = {"input_shape": list(data.test.x.shape[1:]), "classes": len(data.class_names)}
    for key, actual in form.items():
        expected = getattr(recipe.data, key)
        if expected is not None and expected != actual:
            raise mistake(f"data_args.{key}", f"{expected} in the recipe, but {actual} in the data", f"{key}: {actual}")


def data_folder(recipe: Recipe) -> Path | None:
    """The recipe's data folder, if any."""
    folder = recipe.data.data_cache_dir
    return None if folder is None else Path(folder).expanduser()


def made_up(recipe: Recipe) -> bool:
    """Whether ``labelskew data fake`` wrote the data."""
    return fakes.made_up(data_folder(recipe))


def divided(recipe: Recipe) -> tuple[Data, Clients]:
    """Load the recipe's data and partition them."""
    data = loaded(recipe)
    clients = divide(data, recipe.partitioner, clients=recipe.train.client_num_in_total, seed=recipe.common.random_seed)
    return data, clients


def build(recipe: Recipe) -> Session:
    """Set up a simulation from its recipe."""
    data, clients = divided(recipe)
    centralised = recipe.train.reference == "centralised"
    total = steps(recipe, clients.train.sizes.tolist()) if centralised else None
    clients = pooled(clients) if centralised else clients
    sizes = clients.train.sizes.tolist()
    session = assemble(recipe, data, clients.train, clients.test, sizes, names=clients.groups, steps=total)
    counts = torch.from_numpy(clients.counts).to(session.trainer.device)
    session = replace(session, clients=clients, counts=counts, data=fingerprint(data))
    watch(session, Path())  # raises errors before anything is written
    _ = session.sums  # likewise
    return session


def pooled(clients: Clients) -> Clients:
    """One client with the samples of all clients."""

    def together(parts: Parts) -> Parts:
        owners = np.full(int(parts.indices.max(initial=-1)) + 1, -1)
        owners[parts.indices] = 0
        return Parts(owners, 1)

    train, test = together(clients.train), together(clients.test)
    counts, test_counts = (table.sum(0, keepdims=True) for table in (clients.counts, clients.test_counts))
    return Clients(train, test, counts, test_counts, digest(train, test), ["0"])


def steps(recipe: Recipe, sizes: Sequence[int]) -> int:
    """Expected total training steps of the clients in a round; ``sizes``: training samples of each client."""
    train = recipe.train
    every = sum(train.epochs * math.ceil(size / train.batch_size) for size in sizes)
    return max(1, round(every * train.clients_per_round / train.client_num_in_total))


def watch(session: Session, folder: Path) -> Watch | None:
    """The recipe's diagnostics; raises LabelSkewError if they do not fit the run."""
    recipe = session.recipe
    if not recipe.tracking.diagnostics:
        return None
    from fl_labelskew_plugins.diagnostics.base import RunInfo
    from fl_labelskew_plugins.diagnostics.watch import Watch

    assert session.counts is not None  # recipes for silos have no diagnostics
    title = f"{recipe.method_name} on {recipe.data.dataset}"
    run = RunInfo(title, session.trainer, session.counts, session.class_names)
    return Watch(recipe.tracking.diagnostics, recipe.tracking.diagnostics_every, run, folder)


def assemble(
    recipe: Recipe,
    data: Data,
    train: Mapping[int, NDArray[np.int64]] | Parts,
    test: Mapping[int, NDArray[np.int64]] | Parts,
    sizes: Sequence[int],
    *,
    federation: Federation | None = None,
    secret: int | None = None,
    names: Mapping[int, str] | None = None,
    steps: int | None = None,
    device: torch.device | None = None,
) -> Session:
    """Build network and trainer for some or all clients.

    ``train``, ``test``: indices of these clients' samples in ``data``. ``sizes``: training samples of all clients, 0 if
    unknown. ``federation``: default: from the data. ``secret``: seed of a silo's privacy noise. ``steps``: a client's
    training steps per round, instead of epochs. ``device``: instead of the recipe's.
    """
    device = devices.device(recipe) if device is None else device
    fixed = recipe.device.threads or threads.chosen_by_user()
    torch.set_num_threads(fixed or 1)
    seed, num_classes = recipe.common.random_seed, len(data.class_names)
    shape = tuple(data.train.x.shape[1:])

    def network(purpose: str) -> torch.nn.Module:
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seeds.torch_seed(seed, purpose))  # needs no GPU, which may have failed
            return checked(recipe.network.build(shape, num_classes), of=recipe.network)

    def moved(parts: Mapping[int, NDArray[np.int64]] | Parts) -> Mapping[int, Tensor]:
        if isinstance(parts, Parts):
            return ClientIndices(parts, device)
        return {k: torch.from_numpy(indices).to(device) for k, indices in parts.items()}

    model = network("model")
    if fixed is None:
        torch.set_num_threads(threads.suitable(model, shape, recipe.train.batch_size))
    features: int = model.classifier.in_features  # type: ignore[union-attr, assignment]
    if federation is None:
        federation = Federation(
            num_clients=len(sizes),
            clients_per_round=min(recipe.train.clients_per_round, len(sizes)),
            rounds=recipe.train.comm_round,
            epochs=recipe.train.epochs,
            num_classes=num_classes,
            num_features=features,
            num_samples=sum(sizes),
            min_samples=min((n for n in sizes if n), default=0),
            seed=seed,
        )
    elif federation.num_features != features:  # before shared modules of this size are built
        what = f"the server's federation: num_features is {federation.num_features} at the server"
        raise shareable(
            LabelSkewError(f"{what}; expected here: {features}"), f"{what}, which this silo does not accept"
        )
    other = "another model"
    workers = loader_workers(recipe, device)
    train_samples, test_samples = samples(data, device, workers=workers, augment=recipe.train.augment)
    trainer = LocalTrainer(
        model=with_shared(model, recipe.method, federation, "model").to(device),
        method=recipe.method,
        settings=replace(local_settings(recipe.train, recipe.device), steps=steps),
        federation=federation,
        train=train_samples,
        indices=moved(train),
        test=test_samples,
        test_indices=moved(test),
        secret=secret,
        optimizer=recipe.optimizer,
        fresh=lambda: snapshot(with_shared(network(other), recipe.method, federation, other)),
        names=names or {},
        sends=recipe.comm.send_contributions,
    )
    return Session(
        recipe,
        data.class_names,
        federation,
        trainer,
        snapshot(trainer.model) if train else trainer.take_weights(),
        list(sizes),
        data.notes,
        input_shape=shape,
        dtype="uint8" if isinstance(data.train.x, Images) or data.train.x.dtype == np.uint8 else "float32",
        mean=data.mean,
        std=data.std,
    )


def local_settings(train: TrainArgs, device: DeviceArgs) -> LocalSettings:
    """Settings of local training."""
    both = train.model_dump() | device.model_dump()
    return LocalSettings(**{k: v for k, v in both.items() if k in LocalSettings.__dataclass_fields__})


def loader_workers(recipe: Recipe, device: torch.device) -> int:
    """Processes that decode pictures; default: half of the cores; with a GPU all except one; at most 16."""
    if recipe.device.loader_workers is not None:
        return recipe.device.loader_workers
    place = place_on_node() or mpi_rank()
    cores = available_cores() // (max(1, place[1] - 1) if place else 1)
    return min(16, max(1, cores - 1 if device.type == "cuda" else cores // 2))
