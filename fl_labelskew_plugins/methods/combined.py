"""Several methods as one: the calibrations of logits in a row, inside the loss of the one that does more than that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fl_labelskew_registry import HOOKS, Federation, LabelSkewError, Method, Total
from pydantic import WrapSerializer, create_model
from torch import Tensor

from fl_labelskew_plugins import params

SIGN = "+"
"""Between the names of methods in the name of their combination."""


class Combined(Method):
    """Methods in a row; ``params`` has those of each under its name.

    Args:
        parts: by name, in order; one of them at most does more than calibrate logits, and has all hooks but those here.
    """

    def __init__(self, parts: Mapping[str, Method]) -> None:
        *_, last = parts
        fields: dict[str, Any] = {name: (_shown(part, name == last), part.params) for name, part in parts.items()}
        super().__init__(create_model("Params", __base__=params.Params, **fields)())
        self.parts = dict(parts)
        self.carrier = next((part for part in parts.values() if not part.logits_only()), None)
        self.aggregation = parts[last].aggregation
        self.individual = any(part.individual for part in parts.values())
        vars(self).update(
            paper="; ".join(part.paper for part in parts.values() if part.paper),
            runtimes=tuple(kind for kind in Method.runtimes if all(kind in p.runtimes for p in parts.values())),
            sends={name: kind for part in parts.values() for name, kind in part.sends.items()},
        )
        self._calibrations = [part.calibrate for part in parts.values()]
        self._calibrate_of_carrier = None
        if self.carrier is not None:
            carried = [hook for hook in HOOKS[Method] if hook not in vars(Combined) and self.carrier.uses(hook)]
            vars(self).update({hook: getattr(self.carrier, hook) for hook in carried})
            self._calibrate_of_carrier = self.carrier.calibrate
            self.carrier.calibrate = self.calibrate  # type: ignore[method-assign]  # inside its own loss

    def uses(self, *hooks: str) -> bool:
        """Whether a part has any of these hooks, as far as it is called."""
        carried = [hook for hook in hooks if hook not in vars(Combined)]
        ours = [hook for hook in hooks if hook in vars(Combined)]
        of_carrier = self.carrier is not None and self.carrier.uses(*carried)
        return of_carrier or any(part.uses(*ours) for part in self.parts.values())

    def calibrate(self, logits: Tensor, client: Any) -> Tensor:
        """One after the other; once the upload is there, the carrier's own alone: what follows is the client's."""
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

    def opening_shapes(self, federation: Federation) -> dict[str, tuple[int, ...]]:
        """Everybody's."""
        return {key: shape for part in self._openings() for key, shape in part.opening_shapes(federation).items()}

    def opening(self, client: Any) -> dict[str, Tensor]:
        """Everybody's."""
        return {key: tensor for part in self._openings() for key, tensor in part.opening(client).items()}

    def open(self, total: Total) -> dict[str, Tensor]:
        """Everybody's, of which each finds its own tensors by their names."""
        return {key: tensor for part in self._openings() for key, tensor in part.open(total).items()}

    def _openings(self) -> list[Method]:
        return [part for part in self.parts.values() if part.uses("opening")]


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
    return Combined(parts)


def _shown(part: Method, last: bool) -> Any:
    """The type of a part's parameters; those in a record are what is in force."""
    model, key = type(part.params), part.aggregation_key

    def without(params: Any, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in dump(params).items() if name != key}

    return model if last or not key else Annotated[model, WrapSerializer(without)]
