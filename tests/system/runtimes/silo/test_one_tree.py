"""One tree of hospitals: a simulation of it, and a federation of its folders, give the same model."""

import shutil

import torch
from federations import finished
from fl_labelskew_registry import catalog
from safetensors.torch import load_file

import fl_labelskew_plugins as fl

PLACES = ("coast", "north", "south")
DATA = "dataset: image_folder, image_size: 8, mean: imagenet, class_names: [circle, cross, square, star]"
COMMON = """\
common_args: {{training_type: {kind}}}
data_args: {{{data}, data_cache_dir: {tree}}}
partition_args: {{partition_method: natural}}
model_args: {{model: mlp, hidden: [16]}}
train_args: {{client_num_in_total: 3, comm_round: 2, batch_size: 8, learning_rate: 0.05}}
method_args: {{method: fedlc}}
device_args: {{threads: 1, loader_workers: 0}}
"""
SILOS = "comm_args: {backend: GRPC}\nclient_specific_args: {data_silo_config: [coast.yaml, north.yaml, south.yaml]}\n"


def test_a_simulation_and_a_federation_read_one_folder_tree(make_federation, tmp_path):
    tree, kind = tmp_path / "tree", catalog.load("datasets", "image_folder")
    kind(kind.Params(groups=PLACES)).fake(tree, samples=120, seed=0)
    shutil.rmtree(tree / "south" / "test")  # one hospital has set nothing aside
    (tmp_path / "one.yaml").write_text(COMMON.format(kind="simulation", data=DATA, tree=tree))
    simulated = fl.run(tmp_path / "one.yaml", tmp_path / "one", quiet=True)
    assert simulated.partition.index.tolist() == list(PLACES)

    federation = make_federation("federation", COMMON.format(kind="cross_silo", data=DATA, tree=tree) + SILOS)
    for place in PLACES:
        (federation.folder / f"{place}.yaml").write_text(f"data_args: {{{DATA}, data_cache_dir: {tree / place}}}\n")
    finished(federation.server(), *federation.silos())
    alone, together = load_file(tmp_path / "one" / "model.safetensors"), federation.weights()
    assert all(torch.equal(alone[name], together[name]) for name in alone)
