"""A federation round by round, where the host cannot be imported."""

import math
from itertools import islice

import torch
from recipe_texts import SKEWED
from safetensors.torch import load_file

from fl_labelskew_plugins.checked import checked
from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.methods.fedproc import FedProc
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs import session
from fl_labelskew_plugins.runs.folder import RunFolder
from fl_labelskew_plugins.runs.progress import Pause, Progress
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.simulation import Simulation

FEDMR = ["train_args.client_num_per_round=3", "train_args.comm_round=2", "method_args.method=fedmr"]
SHORT = ["train_args.batch_size=4096", "train_args.epochs=3"]
"""Three batches in a client's turn; then the time may be up."""


def test_a_round_handles_only_its_participants(tmp_path, monkeypatch):
    looked_at, cut = set(), session.ClientIndices.__getitem__
    monkeypatch.setattr(session.ClientIndices, "__getitem__", lambda self, k: looked_at.add(k) or cut(self, k))
    written = []
    for clients in (20, 200):
        changes = [f"train_args.client_num_in_total={clients}", "method_args.method=map", "partition_args.beta=100"]
        folder = RunFolder(tmp_path / str(clients))
        folder.create()
        looked_at.clear()
        made = session.build(parse.parse(SKEWED, overrides=[*FEDMR, *changes]))
        lines = list(Simulation(Record(made, folder, Progress(), resume=False)))
        assert looked_at == {client for line in lines for client in line["clients"]}
        tensors = {name: tuple(value.shape) for name, value in load_file(folder.checkpoint).items()}
        assert tensors.pop("clients/sizes") == (clients,)
        lists = [{key: len(value) if isinstance(value, list) else 1 for key, value in line.items()} for line in lines]
        tensors["clients/states"] = tensors["clients/selections"] = len(looked_at) - tensors["clients/states"][0]
        written.append((tensors, lists))
    assert written[0] == written[1]


class Centres(FedProc):
    """A method of another package, which computes features after training."""

    def contribute(self, client):
        return super().contribute(client)


def test_a_round_interrupted_within_a_hook_is_repeated(tmp_path):
    method = checked(Centres())

    def rounds(name, *, pause=None, resume=False):
        made = session.build(parse.parse(SKEWED, overrides=[*FEDMR, *SHORT], objects={"method_args": method}))
        folder = RunFolder(tmp_path / name)
        if not folder.path.exists():
            folder.create()
        record = Record(made, folder, Progress(), pause=pause, resume=resume)
        return list(Simulation(record)), record.cut, record.next_round

    whole, *_ = rounds("whole")
    assert rounds("parts", pause=Pause(2, math.inf, 0.0)) == ([], True, 0)
    assert rounds("parts", pause=Pause(1, math.inf))[0] == whole[:1]
    assert rounds("parts", pause=Pause(2, math.inf, 0.0), resume=True) == ([], True, 1)
    assert rounds("parts", resume=True)[0] == whole[1:]


def test_an_early_stop_with_sums_can_be_resumed(tmp_path):
    """In the same process, or from the checkpoint."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    sums = ["comm_args.secure_aggregation=true", "train_args.client_num_per_round=4", "train_args.comm_round=3"]

    def record(*, resume):
        made = session.build(parse.parse(SKEWED, overrides=[*FEDMR, *sums]))
        return Record(made, folder, Progress(), resume=resume)

    first = record(resume=False)
    simulation = Simulation(first)
    assert [line["round"] for line in islice(simulation, 1)] == [0]
    assert [line["round"] for line in islice(simulation, 1)] == [1]
    again = record(resume=True)
    assert again.next_round == 2
    assert all(torch.equal(value, first.weights[key]) for key, value in again.weights.items())
    for each in (simulation, Simulation(again)):
        assert [line["round"] for line in each] == [2]
    assert all(torch.equal(value, first.weights[key]) for key, value in again.weights.items())
    assert [line["round"] for line in read_lines(first.folder.metrics)] == [0, 1, 2, 2]  # both have gone on
    again.finish()
    assert load_file(again.folder.path / "model.safetensors").keys() == first.weights.keys()
