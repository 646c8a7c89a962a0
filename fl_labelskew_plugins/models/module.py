"""A module from Python as a network."""

from __future__ import annotations

import copy
import hashlib

import torch
from fl_labelskew_registry import LabelSkewError, Network, mistake
from torch import nn
from torch.nn.parameter import is_lazy

from fl_labelskew_plugins.machine.text import clean, failure


class ModuleNetwork(Network):
    """A user's module, from ``(B, ...)`` to logits ``(B, C)``, as a network: each build is a copy with its weights.

    A module with ``features(x)`` and a Linear ``classifier`` is used unchanged. Otherwise the last Linear layer with
    one output per class is the classifier, and must give the module's outputs. Raise LabelSkewError for a lazy layer
    without a shape.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.name = type(module).__name__
        if lazy := next((name for name, value in module.state_dict().items() if is_lazy(value)), None):
            use = "a module that was called once, for example with torch.zeros(1, *shape)"
            raise mistake(f"model: {self.name}", f"{clean(lazy)} belongs to a lazy layer and has no shape yet", use)
        shapes = [(name, tuple(value.shape)) for name, value in module.state_dict().items()]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
        self.description = f"{self.name}, {sum(p.numel() for p in module.parameters())} parameters, shapes {digest}"

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A copy; raise LabelSkewError if no layer is the classifier, or the module does not accept such samples."""
        module = copy.deepcopy(self.module)
        head = getattr(module, "classifier", None)
        if isinstance(head, nn.Linear) and callable(getattr(module, "features", None)):
            if head.out_features != num_classes:
                raise LabelSkewError(self._outputs("classifier", head, num_classes))
            return module
        linear = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise LabelSkewError(f"model: {self.name} has no nn.Linear layer; end it with nn.Linear(d, {num_classes})")
        fitting = [path for path, layer in linear if layer.out_features == num_classes]
        if not fitting:
            raise LabelSkewError(self._outputs(*linear[-1], num_classes))
        whole = Headed(module, fitting[-1])
        self._check(whole, input_shape)
        return whole

    def _outputs(self, path: str, layer: nn.Linear, num_classes: int) -> str:
        problem = f"{path or 'the layer'} of {self.name} has {layer.out_features} outputs"
        use = f"nn.Linear({layer.in_features}, {num_classes})"
        return f"model: {problem}, but the data have {num_classes} classes; use {use}"

    def _check(self, whole: Headed, shape: tuple[int, ...]) -> None:
        """Require that the classifier's logits equal the module's outputs."""
        samples = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
        split, original = copy.deepcopy(whole).eval(), copy.deepcopy(self.module).eval()
        for head in (split.classifier, original.get_submodule(whole.path)):
            head.register_forward_hook(_any_logits)
        try:
            with torch.no_grad():
                actual, expected = split(samples), original(samples)
        except Exception as error:  # a user's module may raise anything
            problem = f"does not accept samples of shape {tuple(shape)}: {clean(failure(error))}"
            raise LabelSkewError(f"model: {self.name} {problem}") from error
        if actual.shape != expected.shape or not torch.allclose(actual, expected, equal_nan=True):
            problem = f"does not return the output of {whole.path}, its last Linear layer with an output per class"
            use = "end forward with that layer (no softmax after it), or add features(x) and classifier"
            raise LabelSkewError(f"model: {self.name} {problem}; {use}")


class Headed(nn.Module):
    """A module split at its last layer, the Linear at ``path``; ``module`` is changed."""

    def __init__(self, module: nn.Module, path: str) -> None:
        super().__init__()
        self.path = path
        self.classifier = module.get_submodule(path)
        self.body = module if path else nn.Identity()
        if path:
            _put(module, path, nn.Identity())

    def features(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(x)
        return features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits

    def whole(self) -> nn.Module:
        if not self.path:
            return self.classifier
        _put(self.body, self.path, self.classifier)
        return self.body


def _any_logits(_: nn.Module, __: object, logits: torch.Tensor) -> torch.Tensor:
    """Random logits: a layer's own may all be positive, which would hide a ReLU after it."""
    return torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))


def _put(module: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)
