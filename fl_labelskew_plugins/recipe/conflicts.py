"""Values of a recipe that are valid separately but not together."""

from collections.abc import Iterator
from typing import Any

from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.recipe.mistakes import quoted
from fl_labelskew_plugins.recipe.model import Recipe
from fl_labelskew_plugins.recipe.sections import (
    IN_TRAINING,
    LEAST_SUMMED,
    OF_UPLOADS,
    OUTSIDE_TRAINING,
    CommArgs,
    DataArgs,
    to_the_end,
)

SECURE = "comm_args.secure_aggregation"
OF_SUPERLINK = ("server_address", "listen_address", "certs")  # keys that Flower's own settings replace


def conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Key and error message of each value to correct."""
    train, files = recipe.train, recipe.client_specific.data_silo_config
    clients, some = train.client_num_in_total, train.clients_per_round
    if some > clients:
        allowed = f"an integer from 1 to client_num_in_total, {clients}"
        yield "train_args.client_num_per_round", f"{some} is out of range; allowed: {allowed}"
    if files and not recipe.common.across_silos:
        message = "cannot be used with training_type simulation; allowed: files with cross_silo, or none"
        yield "client_specific_args.data_silo_config", message
    elif files and len(files) != clients:
        message = f"{len(files)} files for {clients} clients; allowed: one file per client, or none"
        yield "client_specific_args.data_silo_config", message
    if train.stop is not None and (closing := [m for m in (recipe.method, *recipe.methods.values()) if m.closing]):
        message = f"cannot be used with {type(closing[0]).__name__}: its last round is a closing exchange"
        yield "train_args.stop", f"{message}; allowed: null"
    if train.augment and recipe.security.attack_type == "label_flipping":
        message = "cannot be used with attack_type label_flipping, which does not augment samples; allowed: []"
        yield "train_args.augment", message
    yield from _comm_conflicts(recipe)
    yield from _diagnostics_conflicts(recipe)
    if recipe.comm.secure_aggregation:
        yield from _sum_conflicts(recipe)
    if recipe.only_sums and not recipe.comm.over_flower:
        yield from _secure_silo_conflicts(recipe)
    yield from _host_conflicts(recipe)


def _comm_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    common, some, comm = recipe.common, recipe.train.clients_per_round, recipe.comm
    if common.across_silos != (comm.backend == "GRPC") and not comm.over_flower:
        right = "GRPC or Flower" if common.across_silos else "another backend, or GRPC with training_type cross_silo"
        message = f"{comm.backend} cannot be used with training_type {common.training_type}; allowed: {right}"
        yield "comm_args.backend", message
    if comm.over_flower:
        yield from _flower_conflicts(comm)
    if comm.workers is not None and not comm.over_mpi:
        message = f"{comm.workers} cannot be used with backend {comm.backend}; allowed: null, or a number with MPI"
        yield "comm_args.workers", message
    if comm.min_clients is not None and comm.min_clients > some:
        allowed = f"an integer from 1 to client_num_per_round, {some}"
        yield "comm_args.min_clients", f"{comm.min_clients} is out of range; allowed: {allowed}"
    if not comm.send_contributions and not common.across_silos:
        message = "false cannot be used with training_type simulation; allowed: true, or false with cross_silo"
        yield "comm_args.send_contributions", message
    given = {"server_address": comm.server_address, "listen_address": comm.listen_address}
    reachable = [f"{key} {address}" for key, address in given.items() if address and not addresses.loopback(address)]
    if common.across_silos and comm.certs is None and reachable and not comm.over_flower:
        problem = f"missing; {reachable[0]} can be reached from other machines"
        use = "use a folder of `labelskew certs new`, or an address such as 127.0.0.1:8890"
        yield "comm_args.certs", f"{problem}; {use}"


def _flower_conflicts(comm: CommArgs) -> Iterator[tuple[str, str]]:
    if comm.secure_aggregation:
        reason = "Flower starts a process for each message, and a silo's keys must stay in one process"
        yield SECURE, f"true cannot be used with backend Flower: {reason}; allowed: false, or backend GRPC"
    for key in OF_SUPERLINK:
        if getattr(comm, key) != (usual := type(comm).model_fields[key].default):
            problem = "cannot be used with backend Flower: its SuperLink has the address and the certificates"
            yield f"comm_args.{key}", f"{getattr(comm, key)} {problem}; allowed: {usual or 'null'}, or omit it"


def _host_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Keys that FedML always needs; it checks the keys of single attacks and defences itself."""
    dp = recipe.dp
    for section, switch, args, keys in (
        ("security_args", "enable_attack", recipe.security, ("attack_type",)),
        ("security_args", "enable_defense", recipe.security, ("defense_type",)),
        ("dp_args", "enable_dp", dp, ("dp_solution_type", "mechanism_type", "epsilon", "delta", "sensitivity")),
    ):
        for key in keys if getattr(args, switch) else ():
            if getattr(args, key) is None:
                yield f"{section}.{key}", f"missing; {switch}: true needs it; set it, or {switch}: false"
    if dp.enable_dp and dp.mechanism_type == "gaussian":
        if dp.epsilon is not None and dp.epsilon > 1:
            yield "dp_args.epsilon", f"{dp.epsilon:g} is out of range; allowed: up to 1 with mechanism_type gaussian"
        if dp.delta == 0:
            yield "dp_args.delta", "0 is out of range; allowed: above 0 with mechanism_type gaussian"


def classes_of(data: DataArgs, params: Any) -> int | None:
    """Number of classes, if known."""
    names = getattr(params, "class_names", None)
    return data.classes or getattr(params, "classes", None) or (None if names is None else len(names))


def data_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Data settings that only the recipe needs, not the files of silos."""
    mean, dataset, params = recipe.data.mean, recipe.dataset, recipe.dataset.params
    if recipe.only_sums and recipe.own_data and (mean == "data" or (mean is None and dataset.measured)):
        problem = f"with {SECURE} silos do not send the sums for a common mean and std"
        numbers = "numbers for each channel or feature, or one for all, such as mean: [0.5] and std: [0.25]"
        use = f"write mean: imagenet (pictures in colour), or {numbers}" if dataset.picture_keys else f"write {numbers}"
        yield "data_args.mean", f"{'missing' if mean is None else quoted(mean)}: {problem}; {use}"
    if not recipe.common.across_silos or recipe.validation.server_test_data:
        return
    reason = "missing; with validation_args.server_test_data: false the server has no sample to read it from; set"
    if recipe.data.input_shape is None:
        yield "data_args.input_shape", f"{reason} it to the shape of one sample, such as [1, 28, 28]"
    if getattr(params, "class_names", ()) is None:
        yield "data_args.class_names", f"{reason} it to the names of all classes, in order"
    elif classes_of(recipe.data, params) is None:
        yield "data_args.classes", f"{reason} it to the number of classes, such as 10"


def column_conflicts(params: Any, whole: Any) -> Iterator[tuple[str, str]]:
    """Settings of a silo's table that must agree with other silos and the recipe's ``whole``."""
    features = getattr(params, "features", ())
    if features is None:
        yield "data_args.features", "missing; other silos may order columns differently: set the same list in all files"
    elif features != (getattr(whole, "features", None) or features):
        yield "data_args.features", "differ from the recipe's, or in their order; use the same list everywhere"
    if getattr(params, "categorical", None) == "one_hot":
        problem = "one_hot uses a silo's own categories, which others may lack; use a mapping of columns to lists"
        yield "data_args.categorical", problem


def _secure_silo_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    comm, clients = recipe.comm, recipe.train.clients_per_round
    if comm.certs is None:
        problem = f"missing; with {SECURE} silos must sign their keys, or the server could replace them"
        yield "comm_args.certs", f"{problem}; use a folder of `labelskew certs new`"
    if clients < LEAST_SUMMED:
        message = f"true needs at least {LEAST_SUMMED} silos per round: smaller sums protect no client; allowed: false"
        yield SECURE, message
    least, threshold = max(LEAST_SUMMED, clients // 2 + 1), comm.secure_threshold
    if threshold is not None and not least <= threshold <= clients:
        message = f"{threshold} is out of range; allowed: {least} to {clients}, more than half of client_num_per_round"
        yield "comm_args.secure_threshold", message


def _diagnostics_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    names, comm, key = recipe.tracking.diagnostics, recipe.comm, "tracking_args.diagnostics"
    if names and recipe.common.across_silos:
        yield key, "no process of a cross_silo run has the data for diagnostics; allowed: none, or simulation"
    elif not comm.in_process and (affected := [name for name in names if name in IN_TRAINING]):
        problem = f"{', '.join(affected)}: cannot observe training in other processes (backend {comm.backend})"
        yield key, f"{problem}; allowed: {', '.join(OUTSIDE_TRAINING)}, or backend sp"


# If two sets of clients differ by one client, the difference of their sums is that client's part. Sums of several
# rounds over different sets also reveal values that a client repeats, such as class counts. Therefore, without noise,
# each sum is over all clients.


def fewest_summed(recipe: Recipe) -> int:
    """Minimum number of clients in a round's sum.

    It is at least ``min_clients``: once silos have sent masked vectors, only this number limits the sum.
    """
    clients = recipe.train.clients_per_round
    default = clients if recipe.privacy.noise_multiplier is None else min(clients, to_the_end(clients))
    return max(recipe.comm.secure_threshold or default, recipe.comm.min_clients or 0)


def quorum(recipe: Recipe) -> int:
    """Minimum number of uploads per round across silos."""
    if recipe.comm.secure_aggregation:
        return fewest_summed(recipe)
    least = recipe.comm.min_clients
    return min(2, recipe.train.clients_per_round) if least is None else least


def _sum_conflicts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    train, comm, hidden = recipe.train, recipe.comm, f"need single uploads, which are hidden with {SECURE}"
    for switch in recipe.host_switches:
        message = f"true cannot be used with {SECURE}: FedML's code needs single uploads, which are hidden then"
        yield switch, f"{message}; allowed: false"
    ratio, usual = comm.max_update_ratio, type(comm).model_fields["max_update_ratio"].default
    if ratio not in (None, usual):
        message = f"{ratio:g} needs single uploads, which are hidden with {SECURE}; allowed: null, or omit it"
        yield "comm_args.max_update_ratio", message
    if affected := [name for name in recipe.tracking.diagnostics if name in OF_UPLOADS]:
        yield "tracking_args.diagnostics", f"{', '.join(affected)}: {hidden}; allowed: other diagnostics"
    every, most = train.client_num_in_total, 2 ** (comm.secure_bits - 4)
    if every > most:
        message = f"{comm.secure_bits} are too few for the sums of more than {most} clients; allowed: more, up to 32"
        yield "comm_args.secure_bits", message
    for part in recipe.methods.values():
        if (share := getattr(part.params, "share_prototypes", 1)) < 1:
            problem = f"{share:g}: the sum of prototypes would cover few clients; allowed: 1, or no secure aggregation"
            yield "method_args.share_prototypes", problem
    if train.proxy_aggregation == "class":
        problem = "class: sums with two weights per client reveal class counts of single clients"
        yield "train_args.proxy_aggregation", f"{problem}; allowed: model, or no secure aggregation"
    key, few = "train_args.client_num_per_round", train.clients_per_round
    if few == every:
        key, few = "comm_args.secure_threshold", fewest_summed(recipe)
    if few < every and recipe.privacy.noise_multiplier is None:
        problem = f"{few} of {every} clients: sums over different clients can be compared and reveal single uploads"
        yield key, f"{problem}; allowed: {every}, noise (privacy_args.noise_multiplier), or no secure aggregation"
