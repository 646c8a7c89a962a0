"""Two finished runs to use models of: one on pictures, one on arrays of groups."""

import numpy as np
import pytest

import fl_labelskew_plugins as fl
from fl_labelskew_plugins.data.image_folder import ImageFolder

TRAIN = {"comm_round": 4, "batch_size": 16, "learning_rate": 0.1, "momentum": 0.9}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of pictures, and a run on them with clients' own models."""
    folder = tmp_path_factory.mktemp("pictures")
    ImageFolder().fake(folder / "data", samples=120, seed=0)
    recipe = {
        "data_args": {"dataset": "image_folder", "data_cache_dir": str(folder / "data"), "image_size": 16},
        "partition_args": {"partition_method": "pcdd", "classes_per_client": 2},
        "model_args": {"model": "lenet"},
        "train_args": TRAIN | {"client_num_in_total": 4, "momentum": 0.0, "learning_rate": 0.2},
        "method_args": {"method": "map"},
    }
    return folder / "data", fl.run(recipe, folder / "run", quiet=True, host="none")


@pytest.fixture(scope="session")
def arrays(tmp_path_factory):
    """An archive of rows of floats around 100, of two groups, and a run on it."""
    folder = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (100 + 10 * np.eye(3)[y].repeat(2, axis=1) + 3 * rng.standard_normal((240, 6))).astype(np.float32)
    groups = np.array(["north", "south"])[np.arange(240) // 3 % 2]
    parts = {"x_train": x[:180], "y_train": y[:180], "groups_train": groups[:180]}
    np.savez(folder / "data.npz", **parts, x_test=x[180:], y_test=y[180:], groups_test=groups[180:])
    recipe = {
        "data_args": {"dataset": "npz", "data_cache_dir": str(folder / "data.npz")},
        "partition_args": {"partition_method": "natural"},
        "model_args": {"model": "mlp", "hidden": [16]},
        "train_args": TRAIN | {"client_num_in_total": 2},
        "method_args": {"method": "fedavg"},
    }
    return folder / "data.npz", fl.run(recipe, folder / "run", quiet=True, host="none")
