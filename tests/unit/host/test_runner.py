import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from error_messages import message
from fl_labelskew_registry import Method, RunError
from recipe_texts import DIGITS

import fl_labelskew_plugins as fl
from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.params import Params

pytestmark = pytest.mark.host
CLIENTS, CLASSES, ROUNDS = 3, 4, 3


def federation():
    """Samples of four classes, and which of them each client has; class 3 is rare, and no client has all classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(CLASSES), [40, 30, 26, 12]))
    x = (rng.standard_normal((len(y), 6)) + 2 * np.eye(CLASSES, 6)[y]).astype(np.float32)
    lists = [[], [], []]
    for i, label in enumerate(y):
        lists[(label + i % 2) % CLIENTS].append(i)
    return x, y, lists


def batches(x, y, size):
    parts = np.split(np.arange(len(y)), range(size, len(y), size))
    return [(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in parts]


def stock(args):
    """FedML's list of eight; of client 0 a DataLoader, of the others lists of batches."""
    x, y, lists = federation()
    train = {k: batches(x[rows], y[rows], args.batch_size) for k, rows in enumerate(lists)}
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x[lists[0]]), torch.from_numpy(y[lists[0]]))
    train[0] = torch.utils.data.DataLoader(pairs, batch_size=7)
    everything, own = batches(x, y, 32), {k: batches(x[rows], y[rows], 8) for k, rows in enumerate(lists)}
    return [len(y), len(y), everything, everything, {k: len(v) for k, v in enumerate(lists)}, train, own, CLASSES]


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def arguments(**changed):
    """What ``fedml.init`` leaves of a configuration."""
    keys = {
        "training_type": "simulation",
        "backend": "MPI",
        "federated_optimizer": "FedAvg",
        "client_num_in_total": CLIENTS,
        "client_num_per_round": CLIENTS,
        "comm_round": ROUNDS,
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 0.1,
        "momentum": 0.5,
        "client_optimizer": "sgd",
        "frequency_of_the_test": 1,
        "random_seed": 5,
        "dataset": "own",
        "enable_wandb": False,
        "rank": 0,
        "comm": None,
        "round_idx": 0,
    } | changed
    return SimpleNamespace(**{"worker_num": keys["client_num_per_round"] + 1} | keys)


def trained(args, method, **options):
    """The aggregator after all rounds of FedML's own trainers and aggregator over MPI, without the processes."""
    from fedml.simulation.mpi.fedavg.FedAVGAggregator import FedAVGAggregator
    from fedml.simulation.mpi.fedavg.FedAVGTrainer import FedAVGTrainer

    def sent(message):
        return pickle.loads(pickle.dumps(message))

    fl.fedml.offline()
    data, joining = stock(args), args.client_num_per_round
    aggregator = fl.fedml.aggregator(network(), args, dataset=data, method=method, **options)
    trainers = [fl.fedml.trainer(network(), args, dataset=data, method=method, **options) for _ in range(joining)]
    numbers, _, all_train, all_test, sizes, train, test, _ = data
    cpu = torch.device("cpu")
    server = FedAVGAggregator(all_train, all_test, numbers, train, test, sizes, joining, cpu, args, aggregator)
    workers = [FedAVGTrainer(k, train, sizes, test, numbers, cpu, args, one) for k, one in enumerate(trainers)]
    message = server.get_global_model_params()
    for round in range(args.comm_round):
        rng = seeds.numpy_generator(args.random_seed, "sampling", round)  # the clients of our own runtime
        chosen = sorted(rng.choice(CLIENTS, joining, replace=False)) if joining < CLIENTS else range(CLIENTS)
        for place, client in enumerate(chosen):
            workers[place].update_model(sent(message))
            workers[place].update_dataset(int(client))
            server.add_local_trained_result(place, *sent(workers[place].train(round)))
        assert server.check_whether_all_receive()
        message = server.aggregate()
        server.test_on_server_for_all_clients(round)
    return aggregator, trainers


def own(args, method, folder, **parameters):
    x, y, lists = federation()
    keys = "client_num_in_total client_num_per_round comm_round epochs batch_size learning_rate momentum"
    recipe = DIGITS | {
        "common_args": {"random_seed": args.random_seed},
        "train_args": {key: getattr(args, key) for key in keys.split()},
        "method_args": {"method": method, **parameters},
    }
    return fl.run(recipe, folder, model=network(), dataset=((x, y), (x, y)), partition=lists, host="none", quiet=True)


def close(ours, theirs):
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], atol=1e-4, rtol=1e-3)


METHODS = [("fedlc", {"tau": 0.5}), ("fedrs", {}), ("fedshift", {}), ("fedmr", {"mu2": 0.1}), ("map", {"lam": 0.3})]


@pytest.mark.parametrize(("joining", "method", "parameters"), [(3, *METHODS[3]), *[(2, *case) for case in METHODS]])
def test_trainer_and_aggregator_equal_our_own_runtime(joining, method, parameters, tmp_path):
    args = arguments(client_num_per_round=joining)
    options = {"state_dir": tmp_path / "states"} if method == "map" else {}
    aggregator, trainers = trained(args, method, **options, **parameters)
    run = own(args, method, tmp_path / "own", **parameters)
    accuracy = [line["accuracy"] for line in aggregator.history]
    assert accuracy == pytest.approx(run.metrics.accuracy.tolist(), abs=1e-6)
    close(aggregator.model, run.model)
    if method == "map":
        close(trainers[0].personalised(1), run.personalised(1))
        assert 0 < aggregator.history[-1]["personalised_accuracy"] <= 1


def test_prior_from_given_counts_equals_the_prior_of_the_data():
    counts = [np.bincount(federation()[1][rows], minlength=CLASSES).tolist() for rows in federation()[2]]
    made = [
        fl.fedml.aggregator(network(), args, dataset=stock(args), method="fedshift", counts=given)
        for args, given in ((arguments(), None), (arguments(training_type="cross_silo", worker_num=3), counts))
    ]
    priors = [aggregator.get_model_params()["fl_labelskew/shared/prior"] for aggregator in made]
    assert torch.equal(*priors)
    assert priors[0].argmin() == 3


def test_messages_of_a_plain_method_are_the_state_dict():
    args = arguments()
    aggregator = fl.fedml.aggregator(network(), args, dataset=stock(args), method="fedlc")
    assert aggregator.get_model_params().keys() == network().state_dict().keys()


@pytest.mark.parametrize(
    ("changed", "options", "line"),
    [
        ({"backend": "sp"}, {}, "args.training_type: FedML's simulation with backend sp ignores custom trainers"),
        ({"federated_optimizer": "FedOpt"}, {}, "args.federated_optimizer: FedML's FedOpt does not"),
        ({"epochs": "two"}, {}, "args: train_args.epochs: 'two' is of the wrong type"),
        ({}, {"tauu": 1}, "args: method_args.tauu: unknown key; allowed: method, tau"),
        ({}, {"method": "fedcl"}, "args: method_args.method: 'fedcl' is unknown; allowed: "),
        ({"enable_dp": True}, {"method": "fedmr"}, "args.enable_dp: true, but method fedmr sends more"),
        ({"client_num_in_total": 9}, {}, "args.client_num_in_total: 9, but dataset[5] has no client 3; use 3"),
        ({"client_num_per_round": 2}, {"method": "map"}, "method map: it keeps tensors for each client, and another"),
        ({"training_type": "cross_silo", "worker_num": 3}, {"method": "fedshift"}, "counts: missing; the method needs"),
        ({}, {"method": "fedshift", "counts": [[1, 2]]}, "counts: (1, 2) int64; use integers of shape (3, 4)"),
        ({}, {"method": "fedshift", "counts": [[1], [1, 2]]}, "counts: is not an array of numbers; use integers"),
        ({}, {"method": "moon", "projection": "mlp"}, "method moon: adds modules to the network, which FedML's model "),
        ({"worker_num": 5}, {}, "args.client_num_per_round: 3, but there are 4 processes for clients"),
        ({}, {"dataset": [1]}, "dataset: has 1 entries; use FedML's list of eight"),
        ({}, {"state_dir": "."}, "state_dir .: is not empty; use a new folder for each run"),
    ],
)
def test_mistakes_are_one_line(changed, options, line):
    args = arguments(**changed)
    given = {"dataset": stock(arguments()), "method": "fedlc"} | options
    assert message(lambda: fl.fedml.aggregator(network(), args, **given)).startswith(line)


def test_trainer_refuses_messages_of_another_aggregator():
    args = arguments()
    trainer, other = (
        make(network(), args, dataset=stock(args), method="fedshift", smoothing=smoothing)
        for make, smoothing in ((fl.fedml.trainer, 1.0), (fl.fedml.aggregator, 2.0))
    )
    for sent in (other.get_model_params(), network().state_dict()):
        trainer.set_model_params(sent)
        line = message(lambda: trainer.train(trainer.task.dataset[5][0], "cpu", args))
        assert "use fl.fedml.aggregator with the same method and parameters" in line


class Counted(Method):
    Params = Params

    def contribution_shapes(self, federation):
        return {"rounds": (1,)}

    def contribute(self, client):
        return {"rounds": torch.tensor([float(client.times_selected)])}

    def after_round(self, client):
        client.state["times"] = client.state.get("times", torch.zeros(2)) - 1


def test_a_method_s_own_tensors_may_have_any_names():
    _, trainers = trained(arguments(), Counted())
    state = trainers[0]._state(0)
    assert state.pop("times").tolist() == [-ROUNDS, -ROUNDS]
    assert [int(value) for value in state.values()] == [ROUNDS]


def test_aggregator_checks_the_sums():
    args = arguments()
    data = stock(args)
    aggregator = fl.fedml.aggregator(network(), args, dataset=data, method=Counted())
    trainer = fl.fedml.trainer(network(), args, dataset=data, method=Counted())
    trainer.set_model_params(aggregator.get_model_params())
    trainer.train(data[5][0], "cpu", args)
    upload = trainer.get_model_params()
    upload["fl_labelskew/sum/rounds"] = upload["fl_labelskew/sum/rounds"] * math.nan
    with pytest.raises(RunError, match=r"^round 1: the sum of the clients' tensors: rounds is not finite$"):
        aggregator.set_model_params(upload)


def test_trainer_names_wrong_labels_and_unknown_data():
    args = arguments(client_num_per_round=2)
    data = stock(args)
    data[5][1] = [(torch.zeros(2, 6), torch.tensor([0, 4]))]
    trainer = fl.fedml.trainer(network(), args, dataset=data, method="fedlc")
    trainer.set_model_params(network().state_dict())
    line = "dataset[5][1]: labels are not integers from 0 to 3"
    assert line in message(lambda: trainer.train(data[5][1], "cpu", args))
    assert "no entry contains the object train_data" in message(lambda: trainer.train(list(data[5][1]), "cpu", args))
