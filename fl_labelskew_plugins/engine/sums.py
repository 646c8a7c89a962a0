"""Secure aggregation without its cryptography: encoding of clients' updates, and decoding of their sum.

See docs/sums.md. Numbers of samples do not change, so two sums over different clients would reveal the number of one
client. Therefore only the opening sum contains them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from fl_labelskew_registry import RunError, Total, mistake
from torch import Tensor

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.engine.aggregate import VARIANCES, announced, check_result
from fl_labelskew_plugins.engine.local import LocalResult, LocalTrainer
from fl_labelskew_plugins.engine.noise import MULTIPLIER, SumNoise
from fl_labelskew_plugins.engine.ring import Narrow, Ring, Vector, Wide, parts, trim
from fl_labelskew_plugins.machine.text import few
from fl_labelskew_plugins.tensors import Weights, group

SUM_FRACTION_BITS = 20  # of unweighted sums: the method's tensors and counts
MEAN_FRACTION_BITS = 30  # of buffers, which are weighted by shares
VECTOR = "sum"  # the only tensor in an upload or opening
LARGER = "use a larger comm_args.secure_clip"


class Sums:
    """Encoder and decoder of sums for one recipe.

    ``forms``: a state dict; ``clip``: maximum change of a parameter in a round; ``noise``: multiplier, norm and minimum
    number of clients of :class:`.SumNoise`.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        forms: Weights,
        *,
        bits: int,
        clip: float,
        noise: tuple[float, float, int] | None = None,
    ) -> None:
        self.trainer, self.clip = trainer, clip
        self.method, self.optimizer = trainer.method, trainer.optimizer
        self.aggregation = self.optimizer.aggregation or self.method.aggregation
        parameters = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
        federation, clients = trainer.federation, trainer.federation.clients_per_round
        self.clients = federation.num_clients  # in the opening sum
        self.shapes = announced(self.method, self.optimizer, federation, forms, parameters)
        entries: dict[str, Narrow | Wide] = {}
        narrow = dict(trainer.model.named_parameters())
        for name, form in _averaged(forms).items():
            shape = tuple(form.shape)
            entries[f"model/{name}"] = Narrow(shape, clip) if name in narrow else Wide(shape, MEAN_FRACTION_BITS)
        entries |= _sent_entries(self.shapes, self.method.sends)
        self.noise: SumNoise | None = None
        if noise is None:
            entries["measured"] = Wide((4,), SUM_FRACTION_BITS)
        else:
            if uncovered := [name for name in forms if not isinstance(entries.get(f"model/{name}"), Narrow)]:
                what = f"adds noise only to trained parameters, not to the network's {few(uncovered, 2)}"
                raise mistake(MULTIPLIER, what, "a network without batch normalisation or other buffers")
            multiplier, norm, least = noise
            size = sum(form.numel() for form in forms.values())
            self.noise = SumNoise(multiplier, norm, clip, bits, clients, least, size)
        self._head_room = self.noise.head_room if self.noise else 0.0
        self.round = Ring(entries, bits, clients, head_room=self._head_room)
        self._clipped = {n.removeprefix("model/") for n, entry in entries.items() if isinstance(entry, Narrow)}
        opening = self.method.opening_shapes(federation) if self.method.uses("opening") else {}
        tests = {} if self.noise else {"tests": Wide((), SUM_FRACTION_BITS)}
        parts = {"samples": Wide((), SUM_FRACTION_BITS), **tests, **_sent_entries(opening, self.method.sends)}
        self.opening = Ring(parts, bits, federation.num_clients)
        self.right = None if self.noise else Ring({"right": Wide((), SUM_FRACTION_BITS)}, bits, federation.num_clients)
        """Encoding of numbers of correct answers; None with noise, which would not protect these numbers."""

    def share(self, samples: int) -> float:
        """Weight of a client; at most 1, because another client may report a negative number of samples."""
        federation = self.trainer.federation
        if self.aggregation == "uniform":
            return 1 / federation.clients_per_round
        return min(samples / federation.num_samples, 1.0)

    def shares(self, clients: int) -> float:
        """Expected sum of the weights of ``clients`` random clients (Li et al., ICLR 2020, scheme II)."""
        every = self.trainer.federation.clients_per_round if self.aggregation == "uniform" else self.clients
        return clients / every

    def encode_update(
        self, client: int, round: int, start: Weights, result: LocalResult, *, measures: bool = True
    ) -> Vector:
        """A client's vector for a round, before noise; ``measures``: with loss and accuracy. Raises RunError."""
        trainer, extra = self.trainer, result.contributions
        where = f"round {round + 1}: {trainer.name(client)}"
        check_result(result.upload, extra, start, self.shapes, self.method, self.optimizer, where=where)
        share = self.share(int(trainer.counts(client).sum()))
        tensors: dict[str, Tensor] = {}
        clip_messages = {}
        for name, value in _averaged(result.upload).items():
            key, change = f"model/{name}", value.double() - start[name].double()
            if isinstance(self.round.entries[key], Narrow):
                tensors[key], clip_messages[key] = change, (f"the change of {name}", LARGER)
            else:
                tensors[key] = share * change
        tensors |= _sent_values(extra, self.round)
        measured = [0.0] * 4
        if measures and result.loss_terms:
            measured[:2] = math.fsum(result.loss_terms.values()), 1
        if measures and result.personalised is not None:
            measured[2:] = result.personalised  # counts, because a sum of accuracies could reveal each accuracy
        tensors["measured"] = torch.tensor(measured, dtype=torch.float64)
        if self.noise is not None:
            tensors |= self.noise.clipped({name: tensors[name] for name in clip_messages}, share)
        return self.round.encode(tensors, share=share, where=where, words=clip_messages)

    def noisy(self, vector: Vector, generator: np.random.Generator) -> Vector:
        """A copy of a vector, with a client's part of the noise."""
        assert self.noise is not None
        vector = vector.copy()
        _, narrow = parts(vector, self.round.wide)
        narrow += self.noise.draw(generator).astype(narrow.dtype)  # modulo the range of the type
        trim(vector, self.round.bits, self.round.wide)
        return vector

    def encode_opening(self, client: int, tensors: Mapping[str, Tensor], tests: int) -> Vector:
        """A client's vector before round 0: numbers of its samples and ``tests``, and its opening."""
        samples = self.trainer.counts(client).sum()
        added = {"samples": samples, "tests": torch.tensor(tests), **_sent_values(tensors, self.opening)}
        return self.opening.encode(added, share=1, where=f"opening of {self.trainer.name(client)}", words={})

    def encode_test(self, client: int, right: int) -> Vector:
        """A client's number of correct answers, as a vector."""
        assert self.right is not None
        added = {"right": torch.tensor(right)}
        return self.right.encode(added, share=1, where=f"test of {self.trainer.name(client)}", words={})

    def encode_result(self, client: int, round: int, start: Weights, result: LocalResult) -> LocalResult:
        """A copy of the result with only its vector and the private state."""
        vector = self.encode_update(client, round, start, result)
        if self.noise is not None:
            assert result.noise_seed is not None  # set by a turn in this process
            vector = self.noisy(vector, seeds.noise_generator(result.noise_seed, "noise of a sum", round, client))
        upload = {VECTOR: as_tensor(vector)}
        return replace(result, upload=upload, contributions={}, loss_terms={}, personalised=None, noise_seed=None)

    def check(self, upload: Mapping[str, Tensor], ring: Ring, *, where: str) -> None:
        """Raise RunError unless an upload is a vector of this ring."""
        value = upload.get(VECTOR)
        dtype = torch.int16 if ring.bits == 16 else torch.int32
        if len(upload) != 1 or value is None or value.shape != (ring.size,) or value.dtype != dtype:
            raise RunError(f"{where} is not a vector of {ring.size} integers of {ring.bits} bits")

    def read_opening(self, vector: Vector, clients: int) -> tuple[int, int, Total]:
        """Numbers of training and test samples, and the sum of openings. Raises RunError."""
        sums = self.opening.decode(vector)
        _check_sent(sums, 1, clients, "opening exchange")
        tests = 0 if self.noise else round(float(sums["tests"]))
        return round(float(sums["samples"])), tests, Total(_sent_sums(sums), clients)

    def read_tested(self, vector: Vector) -> int:
        """Number of correct answers of all clients."""
        assert self.right is not None
        return round(float(self.right.decode(vector)["right"]))

    def read(self, vector: Vector, old: Weights, clients: int, round: int) -> tuple[Weights, Total, dict[str, float]]:
        """Decode a round's sum: the new weights, the sum of the method's tensors, and the measures.

        Raises RunError for an impossible number of senders.
        """
        sums, share = self.round.decode(vector), self.shares(clients)
        _check_sent(sums, 0, clients, f"round {round + 1}")
        divisor = 1.0 if self.aggregation == "population" else share
        # without some clients, the divisor is below 1, which enlarges an invalid vector beyond the clip
        most = self.clip * (1 + self._head_room / divisor)
        changes = {n: sums[f"model/{n}"] / divisor for n in _averaged(old)}
        changes |= {n: change.clamp(-most, most) for n, change in changes.items() if n in self._clipped}
        mean = dict(old)
        for n, change in changes.items():
            mean[n] = (old[n].double() + change.to(old[n].device)).to(old[n].dtype)
        mean |= {n: value.clamp(min=0) for n, value in mean.items() if n.endswith(VARIANCES)}
        measured = _means(sums["measured"].tolist(), clients) if "measured" in sums else {}
        device = next(iter(old.values())).device
        method_total = Total({n: v.to(device) for n, v in _sent_sums(sums).items()}, clients, round)
        return mean, method_total, measured


def as_tensor(vector: Vector) -> Tensor:
    """A vector as signed integers, as on the wire."""
    return torch.from_numpy(vector.view(f"i{vector.itemsize}"))


def as_vector(tensor: Tensor) -> Vector:
    """The inverse of :func:`as_tensor`."""
    return tensor.cpu().numpy().view(f"u{tensor.element_size()}")


def _means(measured: list[float], clients: int) -> dict[str, float]:
    """Mean ``loss``, and ``accuracy`` of personalised models, without impossible values of wrong reports."""
    loss, losses, right, samples = measured
    means = {"loss": loss / losses} if round(losses) in range(1, clients + 1) else {}
    return means | ({"accuracy": right / samples} if samples >= 1 and 0 <= right <= samples else {})


def _check_sent(sums: Mapping[str, Tensor], least: int, most: int, where: str) -> None:
    for name, number in group(sums, "sent").items():
        if not least <= (count := round(float(number))) <= most:
            what = f"{name} is the sum of {count} clients; allowed: {least} to {most}"
            raise RunError(f"{where}: {what}; start a new run without the faulty client")


def _sent_entries(shapes: Mapping[str, tuple[int, ...]], sends: Mapping[str, str]) -> dict[str, Narrow | Wide]:
    """Entries for a method's tensors and their numbers of senders.

    Counts are rounded: the digits of smoothed counts would reveal each client's own counts.
    """
    steps = {name: 0 if sends.get(name) == "counts" else SUM_FRACTION_BITS for name in shapes}
    entries: dict[str, Narrow | Wide] = {f"method/{n}": Wide(tuple(shape), steps[n]) for n, shape in shapes.items()}
    return entries | {f"sent/{name}": Wide((), SUM_FRACTION_BITS) for name in shapes}


def _sent_values(tensors: Mapping[str, Tensor], ring: Ring) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for key, entry in ring.entries.items():
        kind, _, name = key.partition("/")
        if kind == "method":
            values[key] = tensors.get(name, torch.zeros(entry.shape))
        elif kind == "sent":
            values[key] = torch.tensor(float(name in tensors))
    return values


def _sent_sums(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums of the tensors that at least one client sent, as float32."""
    return {name: value.float() for name, value in group(sums, "method").items() if sums[f"sent/{name}"] >= 0.5}


def _averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Floating-point tensors, without the counts of batch norm, which would reveal numbers of samples."""
    return {name: value for name, value in tensors.items() if value.is_floating_point()}
