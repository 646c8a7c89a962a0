"""Registry of methods, optimisers, partitioners, data sets and networks; its import needs neither torch nor fedml."""

from fl_labelskew_registry.catalog import Entry, Kind, entries, load, namespace, nearest
from fl_labelskew_registry.contracts import (
    Aggregated,
    Aggregation,
    Arrays,
    Batch,
    ClientView,
    Contribution,
    Data,
    Dataset,
    Federation,
    Images,
    LocalWork,
    Method,
    Network,
    Optimizer,
    Partitioner,
    Stage,
)
from fl_labelskew_registry.errors import LabelSkewError, MistakesError, PluginError, RunError

__version__ = "0.1.0"

__all__ = [
    "Aggregated",
    "Aggregation",
    "Arrays",
    "Batch",
    "ClientView",
    "Contribution",
    "Data",
    "Dataset",
    "Entry",
    "Federation",
    "Images",
    "Kind",
    "LabelSkewError",
    "LocalWork",
    "Method",
    "MistakesError",
    "Network",
    "Optimizer",
    "Partitioner",
    "PluginError",
    "RunError",
    "Stage",
    "entries",
    "load",
    "namespace",
    "nearest",
]
