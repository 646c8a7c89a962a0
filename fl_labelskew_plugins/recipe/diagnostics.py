"""Which diagnostics a recipe can ask for: what the papers plot of a run beside its accuracy."""

from typing import Literal, get_args

Name = Literal[
    "class_accuracy",
    "client_drift",
    "deviation_bound",
    "effective_rank",
    "eigenvalue_variance",
    "feature_sphere",
    "features_2d",
    "intra_loss",
    "label_heatmap",
    "observed_probability",
    "proxy_gradients",
    "tsne",
]
"""Names for ``tracking_args.diagnostics``; :data:`fl_labelskew_plugins.diagnostics.watch.KINDS` has their classes."""

IN_TRAINING: tuple[Name, ...] = ("deviation_bound", "intra_loss", "observed_probability", "proxy_gradients")
"""Those that look into local training, which they can where it happens in the run's own process alone."""

BESIDE_TRAINING: tuple[Name, ...] = tuple(name for name in get_args(Name) if name not in IN_TRAINING)
"""Those that look at uploads and global models alone."""

OF_UPLOADS: tuple[Name, ...] = (
    *("class_accuracy", "client_drift", "effective_rank", "features_2d", "feature_sphere", "tsne"),
)
"""Those that take a client's upload for the model that it has trained."""
