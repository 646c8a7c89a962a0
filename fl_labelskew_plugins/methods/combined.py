"""Several methods as one: the calibrations of logits in a row, inside the loss of the one that does more than that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fl_labelskew_registry import Contribution, Federation, LabelSkewError, Method
from pydantic import WrapSerializer, create_model
from torch import Tensor

from fl_labelskew_plugins import params

SIGN = "+"
"""Between the names of methods in the name of their combination."""

CARRIED = (
    "logits_only",
    "protects",
    "personalises",
    "contribution_shapes",
    "stages",
    "before_round",
    "private_parameters",
    "loss",
    "contribute",
    "protect",
    "combine",
    "after_aggregation",
    "after_round",
    "personalised",
    "private_logits",
)
"""Hooks of the one method that may do more than calibrate logits."""


class Combined(Method):
    """Methods in a row; ``params`` has those of each under its name.

    Args:
        parts: by name, in order.
        carrier: the one that does more than calibrate, if any.
    """

    def __init__(self, parts: Mapping[str, Method], carrier: Method | None) -> None:
        super().__init__(type(self).Params())
        self.parts, self.carrier = dict(parts), carrier
        self.aggregation = list(parts.values())[-1].aggregation
        self._calibrations = [part.calibrate for part in parts.values()]
        self._carriers = carrier.calibrate if carrier is not None else None
        if carrier is not None:
            carrier.calibrate = self.calibrate  # type: ignore[method-assign]  # inside its own loss

    def calibrate(self, logits: Tensor, client: Any) -> Tensor:
        """One after the other; once the upload is there, the carrier's own alone: what follows is the client's."""
        if self._carriers is not None and self._uploaded(client):
            return self._carriers(logits, client)
        for calibrate in self._calibrations:
            logits = calibrate(logits, client)
        return logits

    def _uploaded(self, client: Any) -> bool:
        if self.carrier is None or not _overrides(self.carrier, "stages"):
            return False
        stages = self.carrier.stages(client.federation.epochs)
        last = [stage.upload for stage in stages].index(True)
        return client.stage in [stage.name for stage in stages[last + 1 :]]

    def deviations(self) -> list[str]:
        """Everybody's, and whose weights of the uploads are not in force."""
        lines = [line for part in self.parts.values() for line in part.deviations()]
        *others, last = self.parts
        return lines + [
            f"uploads are weighed as {last} has it ({self.aggregation}), not as {name} has it ({weights})"
            for name in others
            if (weights := self.parts[name].aggregation) != self.aggregation
        ]

    def warnings(self, federation: Federation) -> list[str]:
        """Everybody's."""
        return [line for part in self.parts.values() for line in part.warnings(federation)]

    def report(self, federation: Federation) -> dict[str, Any]:
        """Everybody's."""
        return {key: value for part in self.parts.values() for key, value in part.report(federation).items()}


def combine(parts: Mapping[str, Method]) -> Method:
    """One method that is all of ``parts``, with the last one's weights of the uploads.

    Raises:
        LabelSkewError: they do not go together; the line says why, and what to use.
    """
    carriers = [name for name, part in parts.items() if not part.logits_only()]
    if len(carriers) > 1:
        raise LabelSkewError(
            f"{carriers[0]} and {carriers[1]} both change more than logits; use one of them, with methods that "
            "change logits alone"
        )
    for name in carriers:
        if not parts[name].combines:
            raise LabelSkewError(f"{name} has a loss of its own that takes no calibrated logits; use it alone")
    seen: dict[str, str] = {}
    for name, part in parts.items():
        if part.corrects and part.corrects in seen:
            raise LabelSkewError(
                f"{seen[part.corrects]} and {name} both correct logits for {part.corrects}; use one of them"
            )
        seen[part.corrects] = name
    *others, last = parts
    for name in others:
        key = parts[name].aggregation_key
        if key in parts[name].params.model_fields_set:
            raise LabelSkewError(
                f"{name}.{key} chooses the weights of the uploads, which are those of the last method, {last}; "
                f"remove it, or put {name} last"
            )
    carrier = parts[carriers[0]] if carriers else None
    fields: dict[str, Any] = {name: (_shown(part, name == last), part.params) for name, part in parts.items()}
    body: dict[str, Any] = {
        "Params": create_model("Params", __base__=params.Params, **fields),
        "paper": "; ".join(part.paper for part in parts.values() if part.paper),
        "runtimes": tuple(name for name in Method.runtimes if all(name in part.runtimes for part in parts.values())),
    }
    body["sends"] = {name: what for part in parts.values() for name, what in part.sends.items()}
    if carrier is not None:
        body |= {hook: _carried(hook) for hook in CARRIED if _overrides(carrier, hook)}
    if opening := [part for part in parts.values() if _overrides(part, "opening")]:
        body |= _openings(opening)
    combined: Method = type("Combined", (Combined,), body)(parts, carrier)
    return combined


def _shown(part: Method, last: bool) -> Any:
    """The type of a part's parameters; those in a record are what is in force."""
    model, key = type(part.params), part.aggregation_key

    def without(params: Any, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in dump(params).items() if name != key}

    return model if last or not key else Annotated[model, WrapSerializer(without)]


def _overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


def _carried(hook: str) -> Callable[..., Any]:
    # only what the carrier has: whether a hook is overridden is a question that runtimes ask
    return lambda self, *args: getattr(self.carrier, hook)(*args)


def _openings(parts: Sequence[Method]) -> dict[str, Callable[..., Any]]:
    """The opening exchange of several methods; each gets its own tensors back by their names."""

    def shapes(self: Method, federation: Federation) -> dict[str, tuple[int, ...]]:
        return {key: shape for part in parts for key, shape in part.opening_shapes(federation).items()}

    def opening(self: Method, client: Any) -> dict[str, Tensor]:
        return {key: tensor for part in parts for key, tensor in part.opening(client).items()}

    def opened(self: Method, openings: Sequence[Contribution]) -> dict[str, Tensor]:
        return {key: tensor for part in parts for key, tensor in part.open(openings).items()}

    return {"opening_shapes": shapes, "opening": opening, "open": opened}
