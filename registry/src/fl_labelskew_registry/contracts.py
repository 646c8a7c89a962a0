"""What a method and an optimiser implement, and what they are given.

Nothing here imports torch, numpy or fedml when it runs; the types below are for readers and type checkers.
Notation: ``C`` classes, ``B`` samples of a batch, ``d`` features, ``K`` clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fl_labelskew_registry.plugin import Plugin, hooks

if TYPE_CHECKING:
    import numpy as np
    from torch import Generator, Tensor, nn

    Tensors = Mapping[str, Tensor]

SHARED_MODULES = "shared_modules"
"""Attribute of the network under which it has the method's :meth:`Method.shared_modules`."""
Aggregation = Literal["samples", "uniform", "population"]
"""Weights of the uploads: samples of the round, ``1/|S|``, or samples of the whole federation."""


@dataclass(frozen=True)
class Federation:
    """What every client may know of the whole run.

    Args:
        num_clients: ``K``.
        clients_per_round: clients that join one round; ``clients_per_round / num_clients`` is ``Q``.
        rounds: ``T``.
        epochs: local epochs ``E``.
        num_classes: ``C``.
        num_features: ``d`` of the network in use.
        num_samples: training samples of all clients together.
        min_samples: training samples of the smallest client.
        seed: the recipe's seed.
    """

    num_clients: int
    clients_per_round: int
    rounds: int
    epochs: int
    num_classes: int
    num_features: int
    num_samples: int
    min_samples: int
    seed: int


@dataclass(frozen=True)
class Stage:
    """One part of a client's local training.

    Args:
        name: what :meth:`Method.loss` finds in ``client.stage``.
        epochs: local epochs of this stage; fractions count in batches, rounded up.
        upload: whether the weights at the end of this stage are what the client uploads.
    """

    name: str
    epochs: float
    upload: bool = True


@dataclass
class ClientView:
    """One client in one round, as a method sees it.

    Args:
        id: the client's number, ``0 .. K-1``.
        round: the round's number, from 0.
        counts: ``(C,)`` int64, training samples of each class, ``n_c``.
        shared: tensors that the server sent with the model (see :meth:`Method.combine`).
        state: private tensors that stay with this client from round to round; a method may replace entries.
        generator: CPU generator of this (seed, round, client), for the method's own draws.
        noise: numpy generator for privacy noise only (ChaCha20). Across silos its key comes from a secret of the silo:
            the server knows the recipe's seed, and could otherwise subtract the noise.
        times_selected: how often this client was selected, this round included.
        federation: the run as a whole.
        stage: name of the stage in training.
        model: the local network, with ``features(x)`` and ``classifier``; what a hook changes of it, except its weights
            at the upload, is undone after the client's turn.
        frozen: makes a frozen copy of the network, in eval mode, from a state dict; another one at each call, good for
            the rest of the round.
        fresh: state dict of another network, freshly initialised: the same one at each call, round and client.
        features: all training features and labels of this client under the current weights, in eval mode;
            ``features() -> (N_k, d), (N_k,)``, one pass over the client's data.
        scratch: anything the method wants to keep for the rest of this round.
        sends: whether what :meth:`Method.contribute` returns leaves this client; where not, it is not called.
    """

    id: int
    round: int
    counts: Tensor
    shared: Tensors
    state: dict[str, Tensor]
    generator: Generator
    times_selected: int
    federation: Federation
    stage: str = "train"
    model: nn.Module | None = None
    noise: np.random.Generator | None = None
    frozen: Callable[[Tensors], nn.Module] | None = None
    fresh: Callable[[], Tensors] | None = None
    features: Callable[[], tuple[Tensor, Tensor]] | None = None
    scratch: dict[str, Any] = field(default_factory=dict)
    sends: bool = True

    @property
    def num_samples(self) -> int:
        """Training samples of this client, ``N_k``."""
        return int(self.counts.sum())

    def modules(self, model: nn.Module | None = None) -> Mapping[str, nn.Module]:
        """The method's :meth:`Method.shared_modules`, as ``model`` (default: the local network) has them.

        In a network that :attr:`frozen` made they are those of the state dict that it was made from.
        """
        shared: Any = getattr(self.model if model is None else model, SHARED_MODULES, {})
        return dict(shared.items())


@dataclass
class Batch:
    """One batch in training.

    Args:
        inputs: ``(B, ...)`` normalised inputs.
        features: ``(B, d)``.
        logits: ``(B, C)``.
        labels: ``(B,)`` int64.
        last_epoch: whether this batch belongs to the client's last local epoch of the round.
    """

    inputs: Tensor
    features: Tensor
    logits: Tensor
    labels: Tensor
    last_epoch: bool = False


@dataclass(frozen=True)
class Contribution:
    """What the client ``id`` sent beside its weights: what its ``opening`` or ``contribute`` returned, no more."""

    id: int
    tensors: Tensors


@dataclass(frozen=True)
class Total:
    """What clients sent beside their weights, added up.

    Args:
        tensors: the sum over the clients, by name; a name that nobody sent is missing. With secure aggregation they are
            float32, in steps of 1e-6.
        clients: how many there were: uploads of a round, or openings.
        round: the round's number, from 0; 0 for the opening, too.
        contributions: each client's own, ascending, for a method that is ``individual``; empty for all others.
    """

    tensors: Tensors
    clients: int
    round: int = 0
    contributions: Sequence[Contribution] = ()


class Method(Plugin):
    """A label-skew method. Every hook has a neutral default: as it stands, this class is FedAvg.

    Subclasses name their ``Params`` (a frozen pydantic model with ranges, defaults and help texts), their ``paper``
    and, where it is not sample-weighted, their ``aggregation``, with ``aggregation_key`` the parameter that chooses it,
    if one does. ``silo_choices`` are parameters that a silo may set for itself, such as the noise on what it reveals.
    ``sends`` says of each tensor of an opening or a contribution, by name, whether it is ``prototypes`` (features or
    outputs of a class) or ``counts`` (samples of a class); silos' policies go by it, and what it does not name is
    ``other`` to them. The server adds these tensors up, and no more; ``individual`` says that a method needs those of
    each client, so that it does not run with secure aggregation.
    A method that only changes logits overrides only :meth:`calibrate`, one that adds to the loss :meth:`terms`. One
    object serves all clients, so whatever belongs to a client lives in its view; a hook that changes an attribute
    of the object ends the run.

    ``uses_rounds`` declares that a round depends on ``federation.rounds``, the number of all rounds; such a run cannot
    be resumed for more rounds.

    For combinations: ``combines`` says whether other methods' calibrated logits may stand in its loss, ``corrects``
    what its calibration corrects for; two that correct for the same are not combined.
    """

    paper: ClassVar[str] = ""
    runtimes: ClassVar[tuple[str, ...]] = ("sp", "MPI", "GRPC")
    silo_choices: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[Mapping[str, str]] = {}
    individual: bool = False
    uses_rounds: ClassVar[bool] = False
    combines: bool = True
    corrects: ClassVar[str] = ""
    aggregation: Aggregation = "samples"
    aggregation_key: ClassVar[str] = ""

    def deviations(self) -> list[str]:
        """Sentences on where the chosen options differ from the printed paper; they go into the run's record."""
        return []

    def warnings(self, federation: Federation) -> list[str]:
        """Sentences that a user should read before this run, such as a value known to fail."""
        return []

    def report(self, federation: Federation) -> dict[str, Any]:
        """Facts for the run's record, such as a privacy bound."""
        return {}

    def logits_only(self) -> bool:
        """Whether this method is nothing but :meth:`calibrate`, so that it can run inside another training loop.

        An opening exchange may come before. Override it where options decide.
        """
        return not self.uses(*(hook for hook in hooks(Method) if hook not in BESIDE_TRAINING))

    def additive(self) -> bool:
        """Whether this method only adds :meth:`terms` to the cross-entropy of calibrated logits, and what they need.

        Additive methods can be combined with each other. Override it where options decide.
        """
        return self.logits_only() or not self.uses(*(hook for hook in hooks(Method) if hook not in ADDITIVE))

    def protects(self) -> bool:
        """Whether :meth:`protect` is in force; override it where options decide."""
        return self.uses("protect")

    def personalises(self) -> bool:
        """Whether a client has a model of its own beside the one that it uploads; override it where options decide."""
        return self.uses("personalised", "private_logits")

    def opening_shapes(self, federation: Federation) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of what :meth:`opening` may send; a server refuses anything else.

        They are float32, float64 or int64.
        """
        return {}

    def contribution_shapes(self, federation: Federation) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of what :meth:`contribute` may send; a server refuses anything else.

        They are float32, float64 or int64.
        """
        return {}

    def opening(self, client: ClientView) -> Tensors:
        """Client, once before round 0 (every client is asked): tensors to be added up for :meth:`open`; default: none.

        A method that sends some names them in :meth:`opening_shapes`.
        """
        return {}

    def open(self, total: Total) -> Tensors:
        """Server, once before round 0: the first shared tensors, from the sum of all clients' openings."""
        return {}

    def shared_modules(self, federation: Federation) -> Mapping[str, nn.Module]:
        """Modules that are trained, uploaded and averaged like the network's own, such as a projection head.

        Called where a process builds the network, with torch's generator seeded alike in all of them; it may use
        ``num_features`` and ``num_classes``. A client finds them with :meth:`ClientView.modules`. They stay in
        checkpoints, but not in the model of a finished run, whose logits do not depend on them.
        """
        return {}

    def stages(self, epochs: int) -> list[Stage]:
        """The parts of local training, in order; exactly one has ``upload=True``."""
        return [Stage("train", epochs)]

    def before_round(self, client: ClientView) -> None:
        """Client, before its local training; ``client.model`` holds the server's weights."""

    def private_parameters(self, client: ClientView) -> Sequence[nn.Parameter]:
        """Parameters beside the network's that are trained with it, such as a private head; they are not uploaded."""
        return []

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """Training logits ``(B, C)`` to those the loss sees, ``(B, C)``."""
        return logits

    def terms(self, batch: Batch, client: ClientView) -> Tensors:
        """Terms that are added to the cross-entropy, by name, already weighted; default: none."""
        return {}

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """All terms of the loss, already weighted; their sum is minimised.

        The default is the mean cross-entropy of the calibrated logits, and :meth:`terms`. Override it only if the
        cross-entropy itself is another: the method can then not be combined with methods that add terms.
        """
        from torch.nn.functional import cross_entropy

        calibrated = self.calibrate(batch.logits, client)
        return {"cross_entropy": cross_entropy(calibrated, batch.labels), **self.terms(batch, client)}

    def contribute(self, client: ClientView) -> Tensors:
        """Client, after local training: tensors to be added up. Override only if something is sent.

        Sums over samples, such as a class's features and its samples, not means: the server cannot weigh them. A method
        that sends some names them in :meth:`contribution_shapes`.
        """
        return {}

    def protect(self, update: dict[str, Tensor], client: ClientView) -> dict[str, Tensor]:
        """Client: last word on the floating-point update (upload minus the round's start), before it leaves.

        Noise is drawn from ``client.noise``.
        """
        return update

    def combine(self, total: Total, shared: Tensors) -> Tensors:
        """Server: the tensors that ride with the next model, from the sum of this round's and from the last ones."""
        return shared

    def after_aggregation(self, weights: dict[str, Tensor], shared: Tensors) -> dict[str, Tensor]:
        """Server, after a round: the next state dict, from the aggregated one and the new shared tensors."""
        return weights

    def after_round(self, client: ClientView) -> None:
        """Client, after its local training: update ``client.state`` from ``client.model`` (the final weights)."""

    def private_logits(self, inputs: Tensor, client: ClientView) -> Tensor:
        """``(B, C)`` by which a client's own model is measured after its training; the network's, unless overridden."""
        assert client.model is not None
        logits: Tensor = client.model(inputs)
        return logits

    def personalised(self, state: Tensors) -> dict[str, Tensor] | None:
        """State dict of a client's personalised model, from its private state; None where the method keeps none."""
        return None


@dataclass
class LocalWork:
    """A client's local training of one round up to its upload, as an :class:`Optimizer` sees it.

    Args:
        client: the client; ``shared``, ``state`` and ``scratch`` are the optimiser's own here, without the method's.
        start: the server's parameters, by name.
        learning_rate: of this round.
        momentum: of local SGD.
        weight_decay: of the local optimiser, which adds ``weight_decay`` times the weights to each gradient itself.
        loss: the method's loss of the batch in training in a copy of the network that ``client.frozen`` made, with
            its gradient; dropout, batch norm's mode and the method's draws are those of the step.
        gradient: gradient of the objective, which is the method's loss and weight decay, under the current weights, by
            name: the mean over the batches of the round's first epoch, each weighed by its samples; one pass over the
            client's data, in eval mode.
        steps: steps of local SGD made so far.
    """

    client: ClientView
    start: Tensors
    learning_rate: float
    momentum: float
    weight_decay: float
    loss: Callable[[nn.Module], Tensor]
    gradient: Callable[[], dict[str, Tensor]]
    steps: int = 0

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The network's trained parameters, by name, in the order of ``start``."""
        assert self.client.model is not None
        by_name = dict(self.client.model.named_parameters())
        return {name: by_name[name] for name in self.start}

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of this step, by name; what is changed in place is what the step follows."""
        return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}


@dataclass
class Aggregated:
    """A round's outcome, as an :class:`Optimizer` sees it on the server.

    Args:
        old: the state dict that the round started from.
        mean: weighted mean of the uploads, a state dict; with ``Optimizer.sends_change``, changes where there are
            parameters.
        contributions: mean of what came with the uploads, by name, with the uploads' weights scaled to sum to 1.
        clients: how many uploads came.
        parameters: names of the trained parameters; all others are buffers.
        shared: what goes to the clients with the next model; entries may be replaced.
        memory: what stays on the server; entries may be replaced.
        federation: the run as a whole.
        whole: where ``mean`` weighs the classifier's rows by class, its tensors with the weights of whole uploads.
    """

    old: Tensors
    mean: dict[str, Tensor]
    contributions: Tensors
    clients: int
    parameters: Sequence[str]
    shared: dict[str, Tensor]
    memory: dict[str, Tensor]
    federation: Federation
    whole: Tensors = field(default_factory=dict)

    def change(self, name: str) -> Tensor:
        """Mean of the clients' changes of a parameter, with the weights of whole uploads, where these hold weights.

        What an optimiser adds up over the rounds is made of it: there, weights by class would not belong.
        """
        return self.whole.get(name, self.mean[name]) - self.old[name]


class Optimizer(Plugin):
    """How a federation optimises, whatever its method: what is added to local gradients, and the server's step.

    Every hook has a neutral default: as it stands, this class is FedAvg. Tensors that it sends, shares or keeps are
    its own; the method never sees them. ``aggregation`` is the weights of the uploads, None: the method's.
    ``client_optimizers`` are the local optimisers that it goes with, ``local_momentum`` says whether these may have
    momentum, ``changes_upload`` that what is uploaded is no trained model, and ``sends_change`` that an upload holds
    changes since the round's start in place of the trained parameters, where float32 weights would round them.
    ``uses_rounds`` is as in :class:`Method`.
    """

    paper: ClassVar[str] = ""
    runtimes: ClassVar[tuple[str, ...]] = ("sp", "MPI", "GRPC")
    aggregation: Aggregation | None = None
    client_optimizers: ClassVar[tuple[str, ...]] = ("sgd", "adam")
    local_momentum: ClassVar[bool] = True
    changes_upload: ClassVar[bool] = False
    sends_change: ClassVar[bool] = False
    uses_rounds: ClassVar[bool] = False

    def deviations(self) -> list[str]:
        """Sentences on where the chosen options differ from the printed paper; they go into the run's record."""
        return []

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of all that :meth:`finish` may return, from the shapes of the trained parameters.

        What is named as a parameter is has that one's dtype, all else is float32 or float64.
        """
        return {}

    def before_round(self, work: LocalWork) -> None:
        """Client, before its local training; the network holds the server's weights."""

    def correct(self, work: LocalWork) -> None:
        """Client, at each step that counts for the upload: change the parameters' ``.grad`` in place."""

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> Tensors:
        """Client, when its upload is there: what rides with it; may replace entries of ``upload`` and of the state."""
        return {}

    def step(self, round: Aggregated) -> Tensors:
        """Server: the next state dict."""
        return round.mean


BESIDE_TRAINING = {"deviations", "warnings", "report", "logits_only", "additive", "protects", "personalises"}
BESIDE_TRAINING |= {"calibrate", "opening", "opening_shapes", "open", "contribution_shapes"}
"""What a method may override whose training is nothing but calibrated logits."""
ADDITIVE = BESIDE_TRAINING | {"shared_modules", "before_round", "terms", "contribute", "combine", "after_round"}
"""What a method may override that only adds terms to the loss."""
