"""A survey of clients' label distributions, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fl_labelskew_registry import mistake
from numpy.typing import NDArray

from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.text import clean, counted, csv_cell, few
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.runs.folder import finite
from fl_labelskew_plugins.runs.session import divided
from fl_labelskew_plugins.surveys.skew import Skew, skew
from fl_labelskew_plugins.surveys.suggestions import evidence, suggestions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Survey:
    """Clients' training samples by class, ``counts`` ``(K, C)``, and measures of them."""

    title: str
    clients: Sequence[str]
    class_names: Sequence[str]
    counts: NDArray[np.int64]
    noise: Sequence[float] = ()  # strength of the noise on each client's counts
    silent: Mapping[str, str] = field(default_factory=dict)  # clients without counts, with reasons

    @cached_property
    def skew(self) -> Skew:
        """Its measures."""
        return skew(self.counts)

    @property
    def notes(self) -> list[str]:
        """Remarks, one sentence each."""
        held = (self.counts > 0).sum(0)
        of_none, of_one = ([self.class_names[c] for c in np.flatnonzero(held == number).tolist()] for number in (0, 1))
        lines = []
        if of_none:
            lines.append(f"classes that no client holds ({len(of_none)}): {few(of_none)}")
        if of_one and len(self.clients) > 1:
            lines.append(f"classes that only one client holds ({len(of_one)}): {few(of_one)}")
        if noisy := sorted({strength for strength in self.noise if strength}):
            lines.append(
                f"class counts of {counted(sum(map(bool, self.noise)), 'client')} have noise (count_noise "
                f"{', '.join(f'{strength:g}' for strength in noisy)}); negative counts were set to 0, so nearly half "
                "of these clients' missing classes seem to have a few samples"
            )
        return lines + [f"{name} is not included: {reason}" for name, reason in self.silent.items()]

    @property
    def frame(self) -> pd.DataFrame:
        """A row per client: samples per class and in total, then measures."""
        import pandas as pd

        measures = {"samples": self.skew.samples, **self.skew.measures}
        measures |= {"count_noise": np.array(self.noise)} if self.noise else {}
        parts = [pd.DataFrame(self.counts, columns=list(self.class_names)), pd.DataFrame(measures)]
        return pd.concat(parts, axis=1).set_index(pd.Index(self.clients, name="client"))

    def content(self) -> dict[str, Any]:
        """All content in JSON's types, with null for NaN."""
        measured, noise = self.skew, self.noise or [0.0] * len(self.clients)
        situation = evidence(measured)
        columns = {"samples": measured.samples, **measured.measures}
        clients = [
            {"name": name, "counts": self.counts[k].tolist(), "missing": np.flatnonzero(measured.missing[k]).tolist()}
            | {key: values[k].item() for key, values in columns.items()}
            | {"count_noise": noise[k]}
            for k, name in enumerate(self.clients)
        ]
        federation = {
            "samples": int(measured.samples.sum()),
            "prior": measured.prior.tolist(),
            "missing_pairs": measured.missing_pairs,
            "beyond_chance": measured.beyond_chance,
            "size_ratio": measured.size_ratio,
            "mean": measured.mean,
            "weighted_mean": measured.weighted_mean,
            "worst": self.clients[measured.worst],
        }
        whole: dict[str, Any] = finite(
            {
                "title": self.title,
                "class_names": list(self.class_names),
                "federation": federation,
                "clients": clients,
                "silent": dict(self.silent),
                "notes": self.notes,
                "evidence": situation and situation.name,
                "suggestions": [asdict(suggestion) for suggestion in suggestions(situation)],
            }
        )
        return whole

    def write(self, folder: Path, name: str) -> None:
        """Write ``name.csv``, ``name.json`` and the heat map ``name.png``."""
        from fl_labelskew_plugins.plots import heat_map

        folder.mkdir(parents=True, exist_ok=True)
        frame = self.frame.rename(index=csv_cell, columns=csv_cell)
        write_text(folder / f"{name}.csv", frame.to_csv(lineterminator="\n"))
        write_text(folder / f"{name}.json", json.dumps(self.content(), indent=1, allow_nan=False) + "\n")
        classes, clients = ([clean(name, 40) for name in names] for names in (self.class_names, self.clients))
        heat_map(self.counts, classes, folder / f"{name}.png", title=self.title, clients=clients)


def of_partition(recipe: Recipe) -> Survey:
    """Survey a recipe's partition; raise LabelSkewError without one, or if it fails."""
    if recipe.own_data:
        problem = "each silo has its own data, which this command cannot read"
        use = "labelskew run RECIPE --survey on the server and on each silo"
        raise mistake("client_specific_args.data_silo_config", problem, use)
    data, clients = divided(recipe)
    title = clean(f"{recipe.data.dataset}, {recipe.partition.partition_method}")
    return Survey(title, clients.names, data.class_names, clients.counts)
