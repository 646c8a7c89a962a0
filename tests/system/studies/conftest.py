"""A recipe to start from, and a sweep's file on top of it."""

import pytest

BASE = """
common_args: {random_seed: 5}
data_args: {dataset: digits}
partition_args: {partition_method: pcdd, classes_per_client: 2}
model_args: {model: logistic}
train_args: {client_num_in_total: 5, comm_round: 40, epochs: 1, batch_size: 64, learning_rate: 0.1}
method_args: {method: fedrs, alpha: 0.3}
validation_args: {personalised: false}
tracking_args: {checkpoint_every: 1000}
"""
GRID = """
base: base.yaml
grid:
- {fedavg: {method_args.method: fedavg}, fedlc: {method_args: {method: fedlc, tau: 2.0}}}
- common_args.random_seed: [0, 1]
skip: [[fedlc, seed1]]
"""


@pytest.fixture
def write(tmp_path):
    """Write a sweep's file next to its recipe, by default three runs of a few seconds."""
    (tmp_path / "base.yaml").write_text(BASE)

    def write(text=GRID, name="grid.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
