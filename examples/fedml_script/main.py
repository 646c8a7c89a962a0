"""A script of FedML's own with a label-skew method: three clients with different digits; README.md has the commands."""

import logging

import fedml
import torch
from sklearn.datasets import load_digits

import fl_labelskew_plugins as fl


def digits(args):
    """FedML's list of eight: client k has the digits whose remainder by the number of clients is k."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
    tests, clients = torch.arange(len(y)) % 5 == 0, range(args.client_num_in_total)

    def batches(rows):
        return [(x[part], y[part]) for part in rows.nonzero()[:, 0].split(args.batch_size)]

    train, test = ({k: part & (y % len(clients) == k) for k in clients} for part in (~tests, tests))
    sizes = {k: int(rows.sum()) for k, rows in train.items()}
    local = [{k: batches(rows) for k, rows in parts.items()} for parts in (train, test)]
    return [int((~tests).sum()), int(tests.sum()), batches(~tests), batches(tests), sizes, *local, 10]


def network():
    """Any module that ends with a Linear layer."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def main():
    """Train, with FedML's runner and its own managers and messages."""
    fl.fedml.offline()
    args = fedml.init(check_env=False, should_init_logs=False)
    device, dataset, model = fedml.device.get_device(args), digits(args), network()
    counts = [sum(torch.bincount(y, minlength=10) for _, y in batches).tolist() for batches in dataset[5].values()]
    options = {"dataset": dataset, "method": args.method, "counts": counts}
    trainer = fl.fedml.trainer(model, args, **options)
    aggregator = fl.fedml.aggregator(model, args, **options)
    fedml.FedMLRunner(args, device, dataset, model, trainer, aggregator).run()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("fl_labelskew_plugins").setLevel(logging.INFO)
    main()
