"""Samples as local training sees them: on the device, or decoded from files in time for it."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.utils.data
from fl_labelskew_registry import Arrays, Data, Images, LabelSkewError, RunError, mistake
from torch import Tensor

from fl_labelskew_plugins.engine.augment import Augment
from fl_labelskew_plugins.machine.signals import blocked, end_with_parent

Part = TypeVar("Part", Tensor, slice, Tensor | slice)
"""Indices of a batch."""
Key = tuple[int, int, int | None]
"""A part, a sample of it, and the seed of its augmentation."""


class Samples:
    """Samples and labels on the device; inputs stay in their stored type and are normalised batch by batch.

    Args:
        x: ``(N, ...)`` uint8 or float32.
        y: ``(N,)`` int64.
        mean: per channel, see :class:`fl_labelskew_registry.Data`; empty: inputs are the samples as they are stored.
        std: per channel.
        augment: changes of samples in training.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: Augment | None = None,
    ) -> None:
        self.x, self.y, self._augment = x, y, augment
        self._normalise = Normalise(mean, std, dims=x.dim(), dtype=x.dtype, device=x.device)

    def inputs(self, index: Tensor | slice) -> Tensor:
        """Normalised float32 inputs ``(B, ...)``, not augmented."""
        return self._normalise(self._stored(index))

    def _stored(self, index: Tensor | slice) -> Tensor:
        # index_select copies whole samples; indexing would walk their elements
        return self.x[index] if isinstance(index, slice) else self.x.index_select(0, index)

    def stream(self, batches: Iterable[Part], seed: int | None = None) -> Iterator[tuple[Part, Tensor]]:
        """Every part of ``batches`` with its inputs; ``seed``: of the augmentation; None: none."""
        generator = torch.Generator().manual_seed(seed or 0)
        for index in batches:
            stored = self._stored(index)
            if seed is not None and self._augment is not None:
                stored = self._augment(stored, generator)
            yield index, self._normalise(stored)


class Normalise:
    """Stored samples as a network's float32 inputs; ``mean`` and ``std`` per channel, without a mean as they are.

    ``dims``: of a batch; ``dtype`` and ``device``: of the samples.
    """

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], *, dims: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._plain = not mean or (dtype.is_floating_point and mean == (0.0,) and std == (1.0,))
        if self._plain:
            return
        shape = (-1, *[1] * (dims - 2))
        unit = 255.0 if dtype == torch.uint8 else 1.0
        self._scale = (1 / (unit * torch.tensor(std, device=device))).reshape(shape)
        self._shift = (-torch.tensor(mean, device=device) / torch.tensor(std, device=device)).reshape(shape)
        if len(mean) == 1:  # plain numbers spare a broadcast
            self._scale, self._shift = self._scale.reshape(()), self._shift.reshape(())

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` ``(B, ...)``, normalised."""
        return x if self._plain else torch.addcmul(self._shift, x.float(), self._scale)


class Streamed:
    """One part of a data set whose pictures are decoded by other processes, in time for the device.

    ``part``: which of the reader's; ``y``: ``(N,)`` int64 on the device; ``mean`` and ``std`` per channel.
    """

    def __init__(self, reader: Reader, part: int, y: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.y = y
        self._reader, self._part = reader, part
        self._normalise = Normalise(mean, std, dims=4, dtype=torch.uint8, device=y.device)

    def inputs(self, index: Tensor | slice) -> Tensor:
        """Normalised float32 inputs ``(B, C, H, W)``, not augmented; nothing is decoded ahead."""
        return next(self.stream([index]))[1]

    def stream(self, batches: Iterable[Part], seed: int | None = None) -> Iterator[tuple[Part, Tensor]]:
        """Every part of ``batches`` with its inputs, the next ones being decoded meanwhile.

        Of one data set a single stream is read at a time: another one ends it. ``seed``: of the augmentation, by the
        samples' places in the stream; None: none.

        Raises:
            LabelSkewError: a file is no sound picture.
        """
        waiting: deque[Part] = deque()
        every, part = range(len(self.y)), self._part

        def plan() -> Iterator[list[Key]]:
            place = 0
            for index in batches:
                waiting.append(index)
                rows = every[index] if isinstance(index, slice) else index.tolist()
                yield [(part, row, None if seed is None else seed + place + i) for i, row in enumerate(rows)]
                place += len(rows)

        for pixels in self._reader.read(plan()):
            yield waiting.popleft(), self._normalise(pixels.to(self.y.device, non_blocking=True))


class Decoder(torch.utils.data.Dataset[Tensor | LabelSkewError]):
    """Decodes one picture; lives in the processes that do so."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = list(parts)

    def __getitem__(self, key: Key) -> Tensor | LabelSkewError:
        part, row, seed = key
        images = self.parts[part]
        try:
            if seed is None:
                return images.read(images.files[row], False)
            with torch.random.fork_rng([]):
                torch.manual_seed(seed % 2**63)
                return images.read(images.files[row], True)
        except LabelSkewError as error:
            return error  # raised where it can be told in a line


class Plan:
    """What has to be decoded now, as the loader asks for it."""

    def __init__(self) -> None:
        self.batches: Iterator[list[Key]] = iter(())

    def __iter__(self) -> Iterator[list[Key]]:
        return self.batches


class Reader:
    """Has pictures of several parts of a data set decoded, in processes that stay.

    Args:
        parts: the pictures.
        workers: processes; 0: this one decodes, between the steps of training.
        pin: whether batches are for a GPU.
    """

    def __init__(self, parts: Sequence[Images], *, workers: int, pin: bool) -> None:
        self.waited = 0.0
        """Seconds for which somebody waited for pictures so far."""
        self._decoder, self._workers, self._pin = Decoder(parts), workers, pin
        # Nothing in here may lead back to the reader: where a loader is freed with a cycle, its processes get no word
        # that they are to end, and torch waits five seconds for each.
        self._plan = Plan()
        self._loader: torch.utils.data.DataLoader[Any] | None = None

    def read(self, batches: Iterator[list[Key]]) -> Iterator[Tensor]:
        """Batches ``(B, C, H, W)`` uint8 in this order.

        Raises:
            LabelSkewError: a file is no sound picture.
            RunError: one of the processes has ended.
        """
        self._plan.batches = batches
        if self._loader is None:
            self._loader = self._start()
        with blocked(signal.SIGTERM):  # in the processes that begin here, too, until _begin
            arriving = iter(self._loader)
        while (batch := self._next(arriving)) is not None:
            yield batch

    def _next(self, arriving: Iterator[Tensor | LabelSkewError]) -> Tensor | None:
        begun = time.perf_counter()
        try:
            batch = next(arriving, None)
        except (RuntimeError, EOFError, OSError) as error:  # torch's, or its pipes', for a process that was killed
            raise RunError(
                f"a process that decodes pictures has ended ({' '.join(str(error).split())}); where memory was short, "
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
            # gRPC's threads do not survive a fork, and what a user typed may take seconds to import a second time
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
            generator=torch.Generator(),  # else it would draw from the global one
        )


GRACE_S = 30
"""How long a process that decodes outlives a termination signal of anybody but its reader."""


def _begin(_: int) -> None:
    """A process that decodes ends with its reader, and lets that one save a checkpoint where both are to end.

    A batch system or a service manager sends its signal to all processes, and torch raises an error in the middle of
    whatever the reader does as soon as one of these is gone. Torch itself looks at the process that forked this one,
    which under a fork server is another one, and would stay.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    waits = hasattr(signal, "sigtimedwait")  # macOS has none: there it ends at once
    signal.pthread_sigmask(signal.SIG_BLOCK if waits else signal.SIG_UNBLOCK, {signal.SIGTERM})
    if waits:
        threading.Thread(target=_end_at_last, daemon=True).start()
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.sentinel, signal.SIGKILL)  # there is nothing to save


def _end_at_last() -> None:
    reader = getattr(multiprocessing.parent_process(), "pid", 0)
    signalled: signal.struct_siginfo | None = signal.sigwaitinfo({signal.SIGTERM})
    while signalled is not None and signalled.si_pid != reader:
        signalled = signal.sigtimedwait({signal.SIGTERM}, GRACE_S)
    os._exit(0)  # any other code is an error to torch


def collate(batch: list[Tensor | LabelSkewError]) -> Tensor | LabelSkewError:
    """One tensor, or the first mistake."""
    for sample in batch:
        if isinstance(sample, LabelSkewError):
            return sample
    return torch.stack([sample for sample in batch if not isinstance(sample, LabelSkewError)])


class ClientBatches:
    """A client's samples ``(N_k,)`` as the host wants them: ``(inputs, labels)`` of each batch, in order."""

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
    """Training and test samples of a data set, on a device.

    Args:
        data: the data set.
        device: where samples lie.
        workers: processes that decode pictures.
        augment: changes of training samples, see :class:`.augment.Augment`.

    Raises:
        LabelSkewError: samples cannot be changed so.
    """
    pin = device.type == "cuda"  # from pinned memory a copy goes on while the rest of the session is built
    parts = (data.train, data.test)
    pictures = [part.x for part in parts if isinstance(part.x, Images)]
    reader = Reader(pictures, workers=workers, pin=pin)

    def moved(array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        return (tensor.pin_memory() if pin else tensor).to(device, non_blocking=True)

    def made(part: Arrays, augment: Sequence[str] = ()) -> Samples | Streamed:
        if isinstance(part.x, Images):
            if augment:
                raise mistake("train_args.augment", "this data set has an augmentation of its own", "augment: []")
            return Streamed(reader, pictures.index(part.x), moved(part.y), data.mean, data.std)
        x = moved(part.x)
        changes = Augment(augment, x.shape[1:], x.dtype) if augment else None
        return Samples(x, moved(part.y), data.mean, data.std, changes)

    return made(data.train, augment), made(data.test)
