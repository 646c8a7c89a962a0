"""Contracts of methods and optimisers, and the objects that their hooks receive.

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
"""Attribute of the network that contains the modules of :meth:`Method.shared_modules`."""
Aggregation = Literal["samples", "uniform", "population", "declared"]
"""Weights of the uploads: samples of the round, ``1/|S|``, samples of the whole federation, or the clients' numbers."""


@dataclass(frozen=True)
class Federation:
    """Facts about the run that every client may know.

    Args:
        num_clients: ``K``.
        clients_per_round: ``clients_per_round / num_clients`` is ``Q``.
        rounds: ``T``.
        epochs: local epochs ``E``.
        num_classes: ``C``.
        num_features: ``d`` of the network.
        num_samples: training samples of all clients.
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
        name: value of ``client.stage`` during this stage.
        epochs: local epochs; a fraction is converted to batches and rounded up.
        upload: whether the client uploads the weights at the end of this stage.
    """

    name: str
    epochs: float
    upload: bool = True


@dataclass
class ClientView:
    """One client in one round, as a method sees it.

    Args:
        id: ``0 .. K-1``.
        round: from 0.
        counts: ``(C,)`` int64, training samples per class, ``n_c``.
        shared: tensors that the server sent with the model (see :meth:`Method.combine`).
        state: private tensors that stay with this client between rounds; a method may replace entries.
        generator: CPU generator for the method's draws, seeded by (seed, round, client).
        noise: numpy generator for privacy noise only (ChaCha20); across silos, its key is a secret of the silo.
        times_selected: number of rounds that selected this client, including this one.
        model: the local network, with ``features(x)`` and a linear ``classifier``: ``classifier.weight`` ``(C, d)`` and
            possibly ``classifier.bias`` ``(C,)``. After the round, hooks' changes are undone, except those of the
            uploaded weights.
        frozen: returns a new frozen network in eval mode with the given state dict, valid for the rest of the round.
        fresh: state dict of a second, freshly initialised network, identical in every round and client.
        features: returns training features ``(N_k, d)`` and labels ``(N_k,)`` under the current weights, in eval mode;
            each call passes over the client's data.
        scratch: the method's own values for the rest of this round.
        sends: whether :meth:`Method.contribute` is called and its tensors leave this client.
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
        """The method's :meth:`Method.shared_modules` in ``model``, by default the local network."""
        shared: Any = getattr(self.model if model is None else model, SHARED_MODULES, {})
        return dict(shared.items())


@dataclass
class Batch:
    """One batch of training.

    Args:
        inputs: ``(B, ...)``, normalised.
        features: ``(B, d)``.
        logits: ``(B, C)``.
        labels: ``(B,)`` int64.
        last_epoch: whether this is the client's last local epoch of the round.
    """

    inputs: Tensor
    features: Tensor
    logits: Tensor
    labels: Tensor
    last_epoch: bool = False


@dataclass(frozen=True)
class Contribution:
    """The tensors that client ``id`` sent in addition to its weights."""

    id: int
    tensors: Tensors


@dataclass(frozen=True)
class Total:
    """Sum of the tensors that clients sent in addition to their weights.

    Args:
        tensors: sums by name, if any client sent the name. With secure aggregation, float32 in steps of 1e-6.
        clients: number of uploads of the round, or of openings.
        round: from 0; also 0 for the opening.
        contributions: the tensors of each client, by ascending id, if the method is ``individual``.
        closing: whether the round is the closing exchange.
        federation: facts about the run; None only in tests.
        samples: training samples of the clients in the sum, at most; 0 if unknown.
    """

    tensors: Tensors
    clients: int
    round: int = 0
    contributions: Sequence[Contribution] = ()
    closing: bool = False
    federation: Federation | None = None
    samples: int = 0


@dataclass(frozen=True)
class ServerView:
    """The server after the aggregation of a round, as a method sees it.

    Args:
        round: from 0.
        shared: the tensors of the next model, from :meth:`Method.combine`.
        generator: CPU generator for the method's draws, seeded by (seed, round).
        frozen: returns a new frozen network in eval mode with the given state dict, with ``features(x)`` and
            ``classifier``.
        closing: whether the round is the closing exchange.
    """

    round: int
    shared: Tensors
    federation: Federation
    generator: Generator
    frozen: Callable[[Tensors], nn.Module]
    closing: bool = False


class Method(Plugin):
    """A label-skew method. Every hook has a neutral default: without overrides, this class is FedAvg.

    - ``Params``: a frozen pydantic model with ranges, defaults and help texts; ``paper``: its reference.
    - ``aggregation``: weights of the uploads; ``aggregation_key``: the parameter that chooses them, if any. With
      ``declared``, each client contributes its own weight, of shape ``()`` and from 0 to 1, under the name
      ``weight_name``; the server divides by the round's sum. This excludes secure aggregation.
    - ``silo_choices``: parameters that a silo may set for itself, such as the noise on its counts.
    - ``sends``: the kind of each tensor of an opening or a contribution, by name, for the policies of silos:
      ``prototypes`` (features or outputs of a class) or ``counts`` (samples of a class); otherwise ``other``.
    - ``individual``: needs the tensors of each client, not only their sum; excludes secure aggregation.
    - ``uses_rounds``: rounds depend on ``federation.rounds``; the run cannot be resumed for more rounds.
    - ``closing``: the last round is a closing exchange. All clients take part, but do not train: :meth:`contribute` is
      called with the server's model, and only its tensors count.
    - ``combines``: the loss accepts logits that other methods have calibrated.
    - ``corrects``: purpose of the calibration; methods with the same purpose cannot be combined.

    A method that only changes logits overrides only :meth:`calibrate`; one that adds to the loss overrides
    :meth:`terms`. Hooks with the answer "whether ..." need an override only if the answer depends on options. A hook
    that sets an attribute of the object, which serves all clients, stops the run.
    """

    paper: ClassVar[str] = ""
    runtimes: ClassVar[tuple[str, ...]] = ("sp", "MPI", "GRPC")
    silo_choices: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[Mapping[str, str]] = {}
    individual: bool = False
    uses_rounds: ClassVar[bool] = False
    closing: bool = False
    combines: bool = True
    corrects: ClassVar[str] = ""
    aggregation: Aggregation = "samples"
    aggregation_key: ClassVar[str] = ""
    weight_name: str = "weight"

    def deviations(self) -> list[str]:
        """Sentences on differences between the chosen options and the printed paper, for the run's record."""
        return []

    def warnings(self, federation: Federation) -> list[str]:
        """Warnings to print before this run."""
        return []

    def report(self, federation: Federation) -> dict[str, Any]:
        """Facts for the run's record, such as a privacy bound."""
        return {}

    def logits_only(self) -> bool:
        """Whether this method only calibrates logits, so that it can run inside another training loop."""
        return not self.uses(*(hook for hook in hooks(Method) if hook not in CALIBRATION_ONLY))

    def additive(self) -> bool:
        """Whether this method only adds :meth:`terms`, so that it can be combined with other such methods."""
        return self.logits_only() or not self.uses(*(hook for hook in hooks(Method) if hook not in ADDITIVE))

    def protects(self) -> bool:
        """Whether :meth:`protect` changes updates."""
        return self.uses("protect")

    def personalises(self) -> bool:
        """Whether clients have a model other than the uploaded one."""
        return self.uses("personalised", "private_logits")

    def opening_shapes(self, federation: Federation) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the tensors of :meth:`opening`: float32, float64 or int64."""
        return {}

    def contribution_shapes(self, federation: Federation) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the tensors of :meth:`contribute`: float32, float64 or int64."""
        return {}

    def opening(self, client: ClientView) -> Tensors:
        """Client, once before round 0, for every client: tensors to be summed for :meth:`open`."""
        return {}

    def open(self, total: Total) -> Tensors:
        """Server, once before round 0: the first shared tensors, from the sum of all openings."""
        return {}

    def shared_modules(self, federation: Federation) -> Mapping[str, nn.Module]:
        """Modules that are trained, uploaded and averaged like the network, such as a projection head.

        Every process that builds the network calls this hook, with the same seed of torch's generator and with valid
        ``num_features`` and ``num_classes``. Clients use :meth:`ClientView.modules`. The model of a finished run does
        not contain the modules, because its logits do not depend on them; checkpoints do.
        """
        return {}

    def stages(self, epochs: int) -> list[Stage]:
        """The stages of local training, in order; exactly one has ``upload=True``."""
        return [Stage("train", epochs)]

    def before_round(self, client: ClientView) -> None:
        """Client, before local training; ``client.model`` has the server's weights."""

    def private_parameters(self, client: ClientView) -> Sequence[nn.Parameter]:
        """Parameters that are trained with the network but not uploaded, such as a private head."""
        return []

    def calibrate(self, logits: Tensor, client: ClientView) -> Tensor:
        """Logits for the training loss, ``(B, C)``, from the network's logits ``(B, C)``."""
        return logits

    def terms(self, batch: Batch, client: ClientView) -> Tensors:
        """Weighted terms to add to the cross-entropy, by name."""
        return {}

    def loss(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """All terms of the loss, weighted; training minimises their sum.

        The default is the mean cross-entropy of the calibrated logits, and :meth:`terms`. A method that overrides it
        cannot be combined with methods that add terms.
        """
        from torch.nn.functional import cross_entropy

        calibrated = self.calibrate(batch.logits, client)
        return {"cross_entropy": cross_entropy(calibrated, batch.labels), **self.terms(batch, client)}

    def contribute(self, client: ClientView) -> Tensors:
        """Client, after local training: tensors to be summed, announced by :meth:`contribution_shapes`.

        Return sums over samples, such as feature sums and sample counts per class: means would be added up unweighted.
        """
        return {}

    def protect(self, update: dict[str, Tensor], client: ClientView) -> dict[str, Tensor]:
        """Client: last change of the floating-point update (upload minus start), with noise from ``client.noise``."""
        return update

    def combine(self, total: Total, shared: Tensors) -> Tensors:
        """Server: the tensors to send with the next model, from this round's sums and the last shared tensors."""
        return shared

    def after_aggregation(self, weights: dict[str, Tensor], server: ServerView) -> dict[str, Tensor]:
        """Server, after a round: the next state dict, from the aggregated one."""
        return weights

    def after_round(self, client: ClientView) -> None:
        """Client, after local training: update ``client.state``; ``client.model`` has the final weights."""

    def private_logits(self, inputs: Tensor, client: ClientView) -> Tensor:
        """``(B, C)`` logits to evaluate a client's own model after training; default: the network's."""
        assert client.model is not None
        logits: Tensor = client.model(inputs)
        return logits

    def personalised(self, state: Tensors) -> dict[str, Tensor] | None:
        """State dict of a client's personalised model, from its private state; None if the method keeps none."""
        return None


@dataclass
class LocalWork:
    """A client's local training of one round up to its upload, as an :class:`Optimizer` sees it.

    Args:
        client: ``shared``, ``state`` and ``scratch`` are the optimiser's, separate from the method's.
        start: the server's parameters, by name.
        momentum: of local SGD.
        weight_decay: factor of the weights that the local optimiser adds to each gradient.
        loss: the method's loss of the current batch in a network from ``client.frozen``, with its gradient. Dropout,
            the mode of batch norm and the method's draws equal those of the step.
        gradient: gradient of the method's loss plus weight decay under the current weights, by name: the
            sample-weighted mean over the batches of the round's first epoch, in eval mode, with one pass per call.
        steps: steps of local SGD so far.
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
        """The trained parameters of the network, by name, in the order of ``start``."""
        assert self.client.model is not None
        by_name = dict(self.client.model.named_parameters())
        return {name: by_name[name] for name in self.start}

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of this step, by name; changes in place affect the step."""
        return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}


@dataclass
class Aggregated:
    """Result of a round, as an :class:`Optimizer` sees it on the server.

    Args:
        old: state dict at the start of the round.
        mean: weighted mean of the uploads, a state dict; with ``Optimizer.sends_change``, its parameters are changes.
        contributions: mean of the tensors sent with the uploads, by name; the uploads' weights are scaled to sum 1.
        clients: number of uploads.
        parameters: names of the trained parameters; all others are buffers.
        shared: tensors to send with the next model; entries may be replaced.
        memory: tensors that stay on the server; entries may be replaced.
        whole: if ``mean`` weights rows of the classifier by class: these tensors, averaged with the uploads' weights.
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
        """Mean change of a parameter, with the uploads' weights, for values that accumulate over rounds."""
        return self.whole.get(name, self.mean[name]) - self.old[name]


class Optimizer(Plugin):
    """Optimisation of the federation, independent of its method: corrections of local gradients, and the server's step.

    Without overrides, this class is FedAvg. The method never sees the tensors that an optimiser sends, shares or keeps.

    - ``aggregation``: weights of the uploads; None: those of the method.
    - ``client_optimizers``: supported local optimisers; ``local_momentum``: whether these may have momentum.
    - ``changes_upload``: the upload is not a trained model.
    - ``sends_change``: uploads contain changes since the start of the round instead of parameters, if float32 weights
      would round them too coarsely. Single numbers that are sent with them must be above 0.
    - ``uses_rounds``: as in :class:`Method`.
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
        """Sentences on differences between the chosen options and the printed paper, for the run's record."""
        return []

    def contribution_shapes(self, parameters: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of all tensors of :meth:`finish`, from the shapes of the trained parameters.

        A tensor named like a parameter must have its dtype; all others are float32 or float64.
        """
        return {}

    def before_round(self, work: LocalWork) -> None:
        """Client, before local training; the network has the server's weights."""

    def correct(self, work: LocalWork) -> None:
        """Client, at each step before the upload: change the parameters' ``.grad`` in place."""

    def finish(self, work: LocalWork, upload: dict[str, Tensor]) -> Tensors:
        """Client, when its upload is ready: tensors to send with it; may change ``upload`` and the state."""
        return {}

    def step(self, round: Aggregated) -> Tensors:
        """Server: the next state dict."""
        return round.mean


CALIBRATION_ONLY = {"deviations", "warnings", "report", "logits_only", "additive", "protects", "personalises"}
CALIBRATION_ONLY |= {"calibrate", "opening", "opening_shapes", "open", "contribution_shapes"}
"""Hooks that a method may override if it only calibrates logits in training."""
ADDITIVE = CALIBRATION_ONLY | {"shared_modules", "before_round", "terms", "contribute", "combine", "after_round"}
"""Hooks that a method may override if it only adds terms to the loss."""
