"""Combinations of methods: a sequence of calibrations of the logits, and the sum of additive methods' terms."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fl_labelskew_registry import HOOKS, Batch, ClientView, Contribution, Federation, LabelSkewError, Method, Total
from fl_labelskew_registry.contracts import ADDITIVE
from pydantic import WrapSerializer, create_model
from torch import Tensor, nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.tensors import group, joined, rest

Calibration = Callable[[Tensor, ClientView], Tensor]
SIGN = "+"  # separator of the methods' names in the name of their combination


@dataclass
class PartView(ClientView):
    """A client as the part ``name`` of :class:`Added` sees it; ``whole``: the view of the combination."""

    whole: ClientView | None = None
    name: str = ""

    def modules(self, model: nn.Module | None = None) -> dict[str, nn.Module]:
        return group(super().modules(model), self.name)


class Added(Method):
    """The sum of additive methods' terms as one method; parts are called in the order of their names.

    Each part has its own scratch, and its name as the prefix of its terms and tensors (shared, kept and sent).
    """

    def __init__(self, parts: Mapping[str, Method]) -> None:
        super().__init__()
        self.parts = dict(sorted(parts.items()))
        vars(self).update(sends=joined(**{name: part.sends for name, part in self.parts.items()}))

    def uses(self, *hooks: str) -> bool:
        """Whether a part has any of these hooks, among those of additive methods."""
        return any(part.uses(*ADDITIVE.intersection(hooks)) for part in self.parts.values())

    def _views(self, client: ClientView) -> Iterator[tuple[str, Method, ClientView]]:
        for name, part in self.parts.items():
            view = PartView(
                **vars(client)
                | {
                    "shared": group(client.shared, name),
                    "state": group(client.state, name),
                    "scratch": client.scratch.setdefault(name, {}),
                    "whole": client,
                    "name": name,
                }
            )
            yield name, part, view
            client.state = {**rest(client.state, name), **joined(**{name: view.state})}

    def shared_modules(self, federation: Federation) -> dict[str, nn.Module]:
        return joined(**{name: part.shared_modules(federation) for name, part in self.parts.items()})

    def calibration(self, name: str) -> Calibration:
        """The calibration of a part, called with the part's view of the client."""
        calibrate = self.parts[name].calibrate
        return lambda logits, client: next(calibrate(logits, view) for n, _, view in self._views(client) if n == name)

    def before_round(self, client: ClientView) -> None:
        for _, part, view in self._views(client):
            part.before_round(view)

    def terms(self, batch: Batch, client: ClientView) -> dict[str, Tensor]:
        """The terms of every part, under names such as ``moon.contrast``."""
        terms = ((name, part.terms(batch, view)) for name, part, view in self._views(client))
        return {f"{name}.{term}": value for name, made in terms for term, value in made.items()}

    def contribute(self, client: ClientView) -> dict[str, Tensor]:
        return joined(**{name: part.contribute(view) for name, part, view in self._views(client)})

    def after_round(self, client: ClientView) -> None:
        for _, part, view in self._views(client):
            part.after_round(view)

    def combine(self, total: Total, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        new = dict(shared)
        for name, part in self.parts.items():
            part_shared = part.combine(_of(name, total), group(shared, name))
            new = {**rest(new, name), **joined(**{name: part_shared})}
        return new

    def contribution_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return joined(**{name: part.contribution_shapes(federation) for name, part in self.parts.items()})

    def opening_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return joined(**{name: part.opening_shapes(federation) for name, part in self.parts.items()})

    def opening(self, client: ClientView) -> dict[str, Tensor]:
        return joined(**{name: part.opening(view) for name, part, view in self._views(client)})

    def open(self, total: Total) -> dict[str, Tensor]:
        return joined(**{name: part.open(_of(name, total)) for name, part in self.parts.items()})


def _of(name: str, total: Total) -> Total:
    contributions = [Contribution(one.id, group(one.tensors, name)) for one in total.contributions]
    return replace(total, tensors=group(total.tensors, name), contributions=contributions)


class Combined(Method):
    """Methods in sequence; ``params`` contains the parameters of each under its name.

    ``parts``: methods by name, in order. If several do more than calibrate logits, all of these are additive.
    """

    def __init__(self, parts: Mapping[str, Method]) -> None:
        *_, last = parts
        fields: dict[str, Any] = {name: (_shown(part, name == last), part.params) for name, part in parts.items()}
        super().__init__(create_model("Params", __base__=params.Params, **fields)())
        self.parts = dict(parts)
        carriers = {name: part for name, part in parts.items() if not part.logits_only()}
        added = Added(carriers) if len(carriers) > 1 else None
        self.carrier: Method | None = added or next(iter(carriers.values()), None)
        self._units = [part for name, part in parts.items() if name not in carriers]
        self._units += [self.carrier] if self.carrier else []
        self.aggregation = parts[last].aggregation
        self.weight_name = f"{last}/{parts[last].weight_name}" if added else parts[last].weight_name
        self.individual = any(part.individual for part in parts.values())
        self.closing = any(part.closing for part in parts.values())
        vars(self).update(
            paper="; ".join(part.paper for part in parts.values() if part.paper),
            runtimes=tuple(kind for kind in Method.runtimes if all(kind in p.runtimes for p in parts.values())),
            sends={name: kind for unit in self._units for name, kind in unit.sends.items()},
        )
        self._calibrations = [
            added.calibration(name) if added and name in carriers else part.calibrate for name, part in parts.items()
        ]
        self._calibrate_of_carrier = None if added or not self.carrier else self.carrier.calibrate
        if self.carrier is not None:
            carried = [hook for hook in HOOKS[Method] if hook not in vars(Combined) and self.carrier.uses(hook)]
            vars(self).update({hook: getattr(self.carrier, hook) for hook in carried})
        for part in carriers.values():
            part.calibrate = self.calibrate  # type: ignore[method-assign]  # inside its own loss and terms

    def uses(self, *hooks: str) -> bool:
        """Whether the combination calls any of these hooks of a part."""
        carried = [hook for hook in hooks if hook not in vars(Combined)]
        own = [hook for hook in hooks if hook in vars(Combined)]
        carrier_uses = self.carrier is not None and self.carrier.uses(*carried)
        return carrier_uses or any(part.uses(*own) for part in self.parts.values())

    def calibrate(self, logits: Tensor, client: Any) -> Tensor:
        """All calibrations in sequence; after the upload only the carrier's, for the client's own model."""
        client = getattr(client, "whole", client)
        if self._calibrate_of_carrier is not None and self._uploaded(client):
            return self._calibrate_of_carrier(logits, client)
        for calibrate in self._calibrations:
            logits = calibrate(logits, client)
        return logits

    def _uploaded(self, client: Any) -> bool:
        if not self.uses("stages"):
            return False
        stages = self.stages(client.federation.epochs)
        last = [stage.upload for stage in stages].index(True)
        return client.stage in [stage.name for stage in stages[last + 1 :]]

    def deviations(self) -> list[str]:
        lines = [line for part in self.parts.values() for line in part.deviations()]
        *others, last = self.parts
        return lines + [
            f"uploads are weighted as in {last} ({self.aggregation}), not as in {name} ({weights})"
            for name in others
            if (weights := self.parts[name].aggregation) != self.aggregation
        ]

    def warnings(self, federation: Federation) -> list[str]:
        return [line for part in self.parts.values() for line in part.warnings(federation)]

    def report(self, federation: Federation) -> dict[str, Any]:
        return {key: value for part in self.parts.values() for key, value in part.report(federation).items()}

    def opening_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        return {key: shape for part in self._openings() for key, shape in part.opening_shapes(federation).items()}

    def opening(self, client: Any) -> dict[str, Tensor]:
        return {key: tensor for part in self._openings() for key, tensor in part.opening(client).items()}

    def open(self, total: Total) -> dict[str, Tensor]:
        return {key: tensor for part in self._openings() for key, tensor in part.open(total).items()}

    def _openings(self) -> list[Method]:
        return [unit for unit in self._units if unit.uses("opening")]


def combine(parts: Mapping[str, Method]) -> Method:
    """One method made of ``parts``, with the last part's weights of uploads; raise LabelSkewError if impossible."""
    carriers = [name for name, part in parts.items() if not part.logits_only()]
    special = next((name for name in carriers if not parts[name].additive()), None)
    if special is not None and len(carriers) > 1:
        others = ", ".join(name for name in carriers if name != special)
        raise LabelSkewError(
            f"{special} cannot be combined with {others}: {special} changes more than logits and terms of the loss; "
            f"use {special} with methods that only change logits"
        )
    for name in carriers:
        if not parts[name].combines:
            raise LabelSkewError(f"{name} cannot be combined: its loss does not use calibrated logits; use only {name}")
    seen: dict[str, str] = {}
    for name, part in parts.items():
        if part.corrects and part.corrects in seen:
            raise LabelSkewError(
                f"{seen[part.corrects]} and {name} both correct logits for {part.corrects}; use one of them"
            )
        seen[part.corrects] = name
    *earlier, last = parts
    for name in earlier:
        key = parts[name].aggregation_key
        if key in parts[name].params.model_fields_set:
            raise LabelSkewError(
                f"{name}.{key} chooses the weights of the uploads, but the last method, {last}, decides them; "
                f"remove {name}.{key}, or put {name} last"
            )
    return Combined(parts)


def _shown(part: Method, last: bool) -> Any:
    """The type of a part's parameters; dumps omit the key for weights of uploads if it has no effect."""
    model, key = type(part.params), part.aggregation_key

    def without_key(params: Any, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in dump(params).items() if name != key}

    return model if last or not key else Annotated[model, WrapSerializer(without_key)]
