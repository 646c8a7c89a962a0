"""Everything a run needs, built from a recipe: data, clients, network, method, local trainer. Knows no host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from fl_labelskew_registry import Data, Federation, LabelSkewError, Method

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.aggregate import Weights
from fl_labelskew_plugins.data.clients import Clients, divide
from fl_labelskew_plugins.local import LocalSettings, LocalTrainer, samples, snapshot
from fl_labelskew_plugins.recipe import Recipe


@dataclass
class Session:
    """A recipe brought to life.

    Args:
        recipe: what was asked for.
        clients: who holds which samples.
        class_names: one for each of the ``C`` classes.
        federation: the run as every client may know it.
        trainer: trains any client in this process.
        start: the state dict of round 0.
    """

    recipe: Recipe
    clients: Clients
    class_names: list[str]
    federation: Federation
    trainer: LocalTrainer
    start: Weights

    @property
    def method(self) -> Method:
        """The label-skew method in use."""
        return self.recipe.method


def divided(recipe: Recipe) -> tuple[Data, Clients]:
    """The recipe's data and who holds what."""
    folder = recipe.data.data_cache_dir
    path = None if folder is None else Path(folder).expanduser()
    recipe.dataset.check(path, download=recipe.data.download)
    data = recipe.dataset.load(path, download=recipe.data.download, seed=recipe.common.random_seed)
    clients = divide(data, recipe.partitioner, clients=recipe.train.client_num_in_total, seed=recipe.common.random_seed)
    return data, clients


def build(recipe: Recipe) -> Session:
    """Load the data, deal it to clients, and build network and trainer.

    Raises:
        LabelSkewError: whatever of the recipe cannot be had here.
    """
    refuse_host_switches(recipe)
    device = torch_device(recipe)
    # torch's own default honours OMP_NUM_THREADS, but not the cores that a batch system has given to this process
    torch.set_num_threads(recipe.device.threads or min(torch.get_num_threads(), available_cores()))
    data, clients = divided(recipe)
    num_classes = len(data.class_names)
    seed = recipe.common.random_seed
    with torch.random.fork_rng([]):
        torch.manual_seed(seeds.torch_seed(seed, "model"))
        model = recipe.network.build(tuple(data.train.x.shape[1:]), num_classes)
    sizes = clients.counts.sum(1)
    train = recipe.train
    federation = Federation(
        num_clients=train.client_num_in_total,
        clients_per_round=train.client_num_per_round or train.client_num_in_total,
        rounds=train.comm_round,
        epochs=train.epochs,
        num_classes=num_classes,
        num_features=model.classifier.in_features,  # type: ignore[union-attr, arg-type]
        num_samples=int(sizes.sum()),
        min_samples=int(sizes.min()),
        seed=seed,
    )
    train_samples, test_samples = samples(data, device)
    trainer = LocalTrainer(
        model=model.to(device),
        method=recipe.method,
        settings=local_settings(recipe),
        federation=federation,
        train=train_samples,
        indices=[torch.from_numpy(i).to(device) for i in clients.train],
        test=test_samples,
        test_indices=[torch.from_numpy(i).to(device) for i in clients.test],
    )
    return Session(recipe, clients, data.class_names, federation, trainer, snapshot(trainer.model))


def local_settings(recipe: Recipe) -> LocalSettings:
    """The recipe's keys that local training reads."""
    known = LocalSettings.__dataclass_fields__
    both = recipe.train.model_dump() | recipe.device.model_dump()
    return LocalSettings(**{k: v for k, v in both.items() if k in known})


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def torch_device(recipe: Recipe) -> torch.device:
    """Where to compute: the CPU, or the first of the recipe's GPUs.

    Raises:
        LabelSkewError: a GPU is asked for that is not there.
    """
    if not recipe.device.using_gpu:
        return torch.device("cpu")
    have = torch.cuda.device_count()
    for gpu in recipe.device.gpu_ids:
        if gpu >= have:
            raise LabelSkewError(
                f"device_args.gpu_ids: no GPU {gpu} on this machine, which has {have}; "
                "using_gpu: false would be right without one"
            )
    return torch.device("cuda", recipe.device.gpu_ids[0])


def refuse_host_switches(recipe: Recipe) -> None:
    """The host's attacks, defences and differential privacy touch weights alone; refuse what they would corrupt.

    Raises:
        LabelSkewError: they are on and the method sends tensors beside its weights, or rows are weighed per class.
    """
    on = host_switches(recipe)
    if not on:
        return
    if type(recipe.method).contribute is not Method.contribute:
        raise LabelSkewError(
            f"{on[0]}: the host's switch sees weights alone, while method {recipe.method_name} also sends other "
            "tensors that it would neither check nor protect; a method without them (labelskew methods) would be right"
        )
    if recipe.train.proxy_aggregation == "class":
        raise LabelSkewError(f"{on[0]}: needs train_args.proxy_aggregation: model, since it may drop clients")


def host_switches(recipe: Recipe) -> list[str]:
    """The host's switches that are on, by their key."""
    switches = {
        "security_args.enable_attack": recipe.security.enable_attack,
        "security_args.enable_defense": recipe.security.enable_defense,
        "dp_args.enable_dp": recipe.dp.enable_dp,
    }
    return [name for name, value in switches.items() if value]
