"""Registry of label-skew methods, partitioners, data sets and networks; its import needs neither torch nor fedml."""

from fl_labelskew_registry.catalog import Entry, Kind, entries, load, namespace, nearest
from fl_labelskew_registry.contracts import (
    Aggregation,
    Arrays,
    Batch,
    ClientView,
    Contribution,
    Data,
    Dataset,
    Federation,
    Images,
    Method,
    Network,
    Partitioner,
    Stage,
)
from fl_labelskew_registry.errors import LabelSkewError, MistakesError, PluginError, RunError

__all__ = [
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
    "Method",
    "MistakesError",
    "Network",
    "Partitioner",
    "PluginError",
    "RunError",
    "Stage",
    "entries",
    "load",
    "namespace",
    "nearest",
]
