"""Samples for local training: on the device, or decoded from files just in time."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.utils.data
from fl_labelskew_registry import Arrays, Data, Images, LabelSkewError, RunError, mistake
from torch import Tensor

from fl_labelskew_plugins.engine.augment import Augment
from fl_labelskew_plugins.machine.signals import blocked, end_with_parent

Part = TypeVar("Part", Tensor, slice, Tensor | slice)
SampleKey = tuple[int, int, int | None]  # number of a part, index of a sample, and the seed of its augmentation


class Samples:
    """Samples ``(N, ...)``, uint8 or float32, and labels ``(N,)`` int64; ``mean``, ``std``: per channel, or empty."""

    def __init__(
        self, x: Tensor, y: Tensor, mean: tuple[float, ...], std: tuple[float, ...], augment: Augment | None = None
    ) -> None:
        self.x, self.y, self._augment = x, y, augment
        self._normalise = normaliser(mean, std, dims=x.dim(), dtype=x.dtype, device=x.device)

    def inputs(self, index: Tensor | slice) -> Tensor:
        """Normalised float32 inputs ``(B, ...)``, without augmentation."""
        return next(self.stream([index]))[1]

    def stream(self, batches: Iterable[Part], seed: int | None = None) -> Iterator[tuple[Part, Tensor]]:
        """Yield each batch of indices with its inputs. ``seed``: of the augmentation; None: no augmentation."""
        generator = torch.Generator().manual_seed(seed or 0)
        for index in batches:
            # index_select is faster than indexing with a tensor, which would process single elements
            stored = self.x[index] if isinstance(index, slice) else self.x.index_select(0, index)
            if seed is not None and self._augment is not None:
                stored = self._augment(stored, generator)
            yield index, self._normalise(stored)


def normaliser(
    mean: tuple[float, ...], std: tuple[float, ...], *, dims: int, dtype: torch.dtype, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """A function that normalises stored samples ``(B, ...)`` to float32, per channel; ``dims``: of a batch."""
    if not mean or (dtype.is_floating_point and mean == (0.0,) and std == (1.0,)):
        return lambda x: x
    shape = (-1, *[1] * (dims - 2)) if len(mean) > 1 else ()  # scalars are faster than broadcasting
    unit = 255.0 if dtype == torch.uint8 else 1.0
    scale = (1 / (unit * torch.tensor(std, device=device))).reshape(shape)
    shift = (-torch.tensor(mean, device=device) / torch.tensor(std, device=device)).reshape(shape)
    return lambda x: torch.addcmul(shift, x.float(), scale)


class Streamed:
    """Part number ``part`` of the reader's data set; ``y``: ``(N,)`` int64 on the device."""

    def __init__(self, reader: Reader, part: int, y: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.y = y
        self._reader, self._part = reader, part
        self._normalise = normaliser(mean, std, dims=4, dtype=torch.uint8, device=y.device)

    def inputs(self, index: Tensor | slice) -> Tensor:
        """As :meth:`Samples.inputs`."""
        return next(self.stream([index]))[1]

    def stream(self, batches: Iterable[Part], seed: int | None = None) -> Iterator[tuple[Part, Tensor]]:
        """As :meth:`Samples.stream`; a new stream ends the previous one. Raises as :meth:`Reader.read`."""
        waiting: deque[Part] = deque()
        every, part = range(len(self.y)), self._part

        def plan() -> Iterator[list[SampleKey]]:
            place = 0
            for index in batches:
                waiting.append(index)
                rows = every[index] if isinstance(index, slice) else index.tolist()
                yield [(part, row, None if seed is None else seed + place + i) for i, row in enumerate(rows)]
                place += len(rows)

        for pixels in self._reader.read(plan()):
            yield waiting.popleft(), self._normalise(pixels.to(self.y.device, non_blocking=True))


class Decoder(torch.utils.data.Dataset[Tensor | LabelSkewError]):
    """Decoder of single images, in the worker processes."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = list(parts)

    def __getitem__(self, key: SampleKey) -> Tensor | LabelSkewError:
        part, row, seed = key
        images = self.parts[part]
        try:
            if seed is None:
                return images.read(images.files[row], False)
            with torch.random.fork_rng([]):
                torch.manual_seed(seed % 2**63)
                return images.read(images.files[row], True)
        except LabelSkewError as error:
            return error  # raised in the main process


class Plan:
    """The loader's current batches."""

    def __init__(self) -> None:
        self.batches: Iterator[list[SampleKey]] = iter(())

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self.batches


class Reader:
    """Decode images of ``parts`` in persistent processes; 0 ``workers``: in this process, between training steps."""

    def __init__(self, parts: Sequence[Images], *, workers: int, pin: bool) -> None:
        self.waited = 0.0
        """Total seconds that training waited for images."""
        self._decoder, self._workers, self._pin = Decoder(parts), workers, pin
        # No reference back to the reader: if a loader is freed in a reference cycle, its workers are not stopped,
        # and torch waits five seconds for each.
        self._plan = Plan()
        self._loader: torch.utils.data.DataLoader[Any] | None = None

    def read(self, batches: Iterator[list[SampleKey]]) -> Iterator[Tensor]:
        """Batches ``(B, C, H, W)`` uint8; raise RunError if a worker has ended, LabelSkewError for an invalid image."""
        self._plan.batches = batches
        if self._loader is None:
            self._loader = self._start()
        with blocked(signal.SIGTERM):  # also in the new processes, until _begin
            arriving = iter(self._loader)
        while (batch := self._next(arriving)) is not None:
            yield batch

    def _next(self, arriving: Iterator[Tensor | LabelSkewError]) -> Tensor | None:
        begun = time.perf_counter()
        try:
            batch = next(arriving, None)
        except (RuntimeError, EOFError, OSError) as error:  # from torch or its pipes, after a worker was killed
            raise RunError(
                f"a process that decodes images has ended ({' '.join(str(error).split())}); if memory was short, "
                "use a smaller device_args.loader_workers"
            ) from error
        finally:
            self.waited += time.perf_counter() - begun
        if isinstance(batch, LabelSkewError):
            raise batch
        return batch

    def _start(self) -> torch.utils.data.DataLoader[Any]:
        context = None
        if self._workers:
            # gRPC's threads do not survive a fork; `spawn` would import the user's script again, which may take seconds
            method = "forkserver" if "grpc" in sys.modules or not hasattr(os, "fork") else "fork"
            context = multiprocessing.get_context(method)
            if method == "forkserver":
                context.set_forkserver_preload([__name__, "torchvision.transforms.v2"])
        return torch.utils.data.DataLoader(
            self._decoder,
            batch_sampler=self._plan,
            num_workers=self._workers,
            collate_fn=collate,
            pin_memory=self._pin,
            persistent_workers=self._workers > 0,
            worker_init_fn=_begin,
            multiprocessing_context=context,
            generator=torch.Generator(),  # the default would draw from the global one
        )


GRACE_S = 30  # time in seconds that a worker survives a termination signal from a process other than its reader


def _begin(_: int) -> None:
    """Set up a worker so that it ends with its reader, but lets the reader save a checkpoint first.

    Batch systems signal all processes. Torch raises an error in the reader as soon as a worker ends. Its watchdog
    observes the process that forked the worker, which may be a fork server instead of the reader.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    waits = hasattr(signal, "sigtimedwait")  # not on macOS, where the worker ends at once
    signal.pthread_sigmask(signal.SIG_BLOCK if waits else signal.SIG_UNBLOCK, {signal.SIGTERM})
    if waits:
        threading.Thread(target=_end_after_grace, daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.sentinel, signal.SIGKILL)  # a worker has nothing to save


def _end_after_grace() -> None:
    reader = getattr(multiprocessing.parent_process(), "pid", 0)
    signalled: signal.struct_siginfo | None = signal.sigwaitinfo({signal.SIGTERM})
    while signalled is not None and signalled.si_pid != reader:
        signalled = signal.sigtimedwait({signal.SIGTERM}, GRACE_S)
    os._exit(0)  # torch treats any other code as an error


def collate(batch: list[Tensor | LabelSkewError]) -> Tensor | LabelSkewError:
    """Stack samples, or return the first error."""
    errors = [sample for sample in batch if isinstance(sample, LabelSkewError)]
    return errors[0] if errors else torch.stack(batch)  # type: ignore[arg-type]


class ClientBatches:
    """Batches of a client's samples ``(N_k,)`` in FedML's form: ``(inputs, labels)``."""

    def __init__(self, samples: Samples | Streamed, index: Tensor, batch_size: int) -> None:
        self.samples, self.index, self.batch_size = samples, index, batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.index) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part in self.index.split(self.batch_size):  # type: ignore[no-untyped-call]
            yield self.samples.inputs(part), self.samples.y[part]


def samples(
    data: Data, device: torch.device, *, workers: int = 0, augment: Sequence[str] = ()
) -> tuple[Samples | Streamed, Samples | Streamed]:
    """Training and test samples on a device. Raise LabelSkewError if they do not support the augmentation."""
    pin = device.type == "cuda"  # copies from pinned memory are asynchronous
    parts = (data.train, data.test)
    pictures = [part.x for part in parts if isinstance(part.x, Images)]
    reader = Reader(pictures, workers=workers, pin=pin)

    def moved(array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        return (tensor.pin_memory() if pin else tensor).to(device, non_blocking=True)

    def made(part: Arrays, augment: Sequence[str] = ()) -> Samples | Streamed:
        if isinstance(part.x, Images):
            if augment:
                raise mistake("train_args.augment", "this data set has its own augmentation", "augment: []")
            return Streamed(reader, pictures.index(part.x), moved(part.y), data.mean, data.std)
        x = moved(part.x)
        changes = Augment(augment, x.shape[1:], x.dtype) if augment else None
        return Samples(x, moved(part.y), data.mean, data.std, changes)

    return made(data.train, augment), made(data.test)
