"""Registry of plugins; its import needs neither torch nor numpy."""

from fl_labelskew_registry.catalog import HOOKS, Entry, Kind, entries, load, namespace, nearest
from fl_labelskew_registry.contracts import (
    Aggregated,
    Aggregation,
    Batch,
    ClientView,
    Contribution,
    Federation,
    LocalWork,
    Method,
    Optimizer,
    ServerView,
    Stage,
    Total,
)
from fl_labelskew_registry.data import Arrays, Data, Dataset, Images, Network, Partitioner
from fl_labelskew_registry.errors import LabelSkewError, MistakesError, PluginError, RunError, mistake, shareable
from fl_labelskew_registry.tracker import TrackedRun, Tracker

__version__ = "1.0.0"

__all__ = [
    "HOOKS",
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
    "ServerView",
    "Stage",
    "Total",
    "TrackedRun",
    "Tracker",
    "entries",
    "load",
    "mistake",
    "namespace",
    "nearest",
    "shareable",
]
