"""Every recipe of the package can be run, and the recipes of a paper match its table."""

import json
from functools import cache

import numpy as np
import pytest
from fl_labelskew_registry import catalog
from jsonschema import Draft202012Validator

from fl_labelskew_plugins.front.start import start
from fl_labelskew_plugins.recipe import parse, shipped, yaml
from fl_labelskew_plugins.runs.session import loaded
from fl_labelskew_plugins.runtimes.options import RunOptions

FILES = shipped.files()
ROWS = [f"{paper}/{row}" for paper in shipped.papers() for row in shipped.table(paper).cells]
SAMPLES = {"cifar10": 1000, "cifar100": 3000, "svhn": 1000, "fashion_mnist": 1000, "cinic10": 900, "tiny_imagenet": 600}
"""Samples of a small copy, where 100 clients or 1,600 shards need more than it has by default."""


@cache
def text_of(name):
    return shipped.named(name)


@cache
def load(name):
    return parse.parse(text_of(name), source=FILES.get(name, name))


@cache
def content_of(name):
    if name in FILES:
        return yaml.read(text_of(name))[0]
    paper, _, row = name.partition("/")
    return shipped.table(paper).content(row)


def kinds(*of):
    """The first of the papers' recipes of each kind, by these sections."""
    names = {}
    for name in sorted(ROWS):
        content = content_of(name)
        names.setdefault(json.dumps([content[section] for section in of], sort_keys=True), name)
    return sorted(names.values())


def test_all_seven_in_both_sizes_and_a_quick_start():
    wanted = [f"{method}_fmnist" for method in ("fedavg", "fedrs", "map", "fedphp", "fedlc", "fedshift", "fedmr")]
    wanted += [f"small/{entry.name}_fmnist" for entry in catalog.entries("methods")]
    assert FILES.keys() >= {*wanted, "quickstart", "fedmr_isic2019", "fedmr/simulation"}
    rows = {paper: len(shipped.table(paper).cells) for paper in shipped.papers()}
    assert rows == {"fedlc": 100, "fedmr": 294, "fedrs": 76, "fedshift": 35, "map": 8}


def test_every_recipe_is_valid_and_resolves_to_its_values():
    for name in [*FILES, *ROWS]:
        content, recipe = content_of(name), load(name)
        asked = {section: keys for section, keys in content.items() if section != "expected"}
        resolved = recipe.resolved()
        assert asked == {section: {key: resolved[section][key] for key in asked[section]} for section in asked}, name
        assert len(content.get("expected", [])) == len(recipe.expected), name


def test_each_opens_with_its_command_and_the_source_of_its_numbers():
    for name in [*FILES, *ROWS]:
        modeline, first, *rest = text_of(name).splitlines() if name in FILES else ["", *text_of(name).splitlines()]
        assert modeline == (f"{shipped.MODELINE}{'../' * name.count('/')}{shipped.SCHEMA}" if name in FILES else "")
        assert first == (f"# fedml run recipes/{name}.yaml" if name in FILES else f"# fedml run {name}")
        comments = [line for line in rest if line.startswith("# ")]
        assert comments, name
        assert load(name).method_name in "".join(comments).lower(), name


def test_the_schema_accepts_every_recipe():
    schema = Draft202012Validator(json.loads((shipped.folder() / shipped.SCHEMA).read_text("utf-8")))
    assert [name for name in FILES if not schema.is_valid(content_of(name))] == []
    assert content_of("fedmr_isic2019") == content_of("fedmr/isic2019")  # the short name


def test_pure_missing_classes_need_a_wide_smoothing():
    shifted = [load(name) for name in [*FILES, *ROWS] if load(name).method_name == "fedshift"]
    pure = [recipe for recipe in shifted if recipe.partition.partition_method == "pcdd"]
    assert len(pure) >= 2
    assert {recipe.method.params.smoothing_fraction for recipe in pure} == {0.1}


def test_numbers_equal_those_of_the_paper():
    def expected(name):
        return [(n.value, n.measure, n.target, n.tolerance, n.table) for n in load(name).expected]

    assert expected("fedmr/table1_fmnist_p10c2") == [(74.97, "accuracy", None, 2.0, "Table 1")]
    assert expected("fedmr/table1_fmnist_p5c2") == [(75.51, "accuracy", None, 2.0, "Table 1")]
    assert expected("fedrs/table1_c10_100_2_fedavg") == [(55.9, "accuracy", None, 6.75, "Table 1")]
    assert expected("fedrs/table1_c10_100_2") == [(70.8, "accuracy", None, 1.0, "Table 1")]
    assert expected("fedshift/table1_cifar10") == [
        (83.52, "best_accuracy", None, 2.0, "Table 1"),
        (23, "rounds_to", 78.94, 2, "Table 2"),
    ]
    numbers = {name: load(name).expected for name in ROWS}
    assert {name.partition("/")[0] for name in ROWS if numbers[name]} == shipped.papers().keys() - {"map"}
    for name in ROWS:
        for number in numbers[name]:
            assert 10 < number.value < (400 if number.measure == "rounds_to" else 100), name


def test_means_of_the_ablation_equal_table_6():
    """FedMR's table 6 has the means of table 12's columns; FMNIST's differ in its last digits."""
    for data, inter, intra in (("svhn", 87.46, 87.15), ("cifar10", 78.86, 80.89), ("cifar100", 66.62, 67.11)):
        for variant, mean in (("inter", inter), ("intra", intra)):
            names = [name for name in ROWS if name.startswith(f"fedmr/table12_{data}_") and name.endswith(variant)]
            assert len(names) == 5
            rows = [load(name).expected[0].value for name in names]
            assert np.mean(rows) == pytest.approx(mean, abs=0.011), (data, variant)
    inter, intra = (load(f"fedmr/table12_fmnist_p10c2_{part}").method.params for part in ("inter", "intra"))
    assert (inter.mu1, inter.mu2, intra.mu1, intra.mu2) == (0, 1e-4, 0.01, 0)


def first_of(dataset):
    """The first recipe of a paper with this data set."""
    return next(name for name in ROWS if content_of(name)["data_args"]["dataset"] == dataset)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Folder of a data set's small copy, written when it is first asked for."""
    folder = tmp_path_factory.mktemp("small")

    @cache
    def write(dataset):
        load(first_of(dataset)).dataset.fake(folder / dataset, samples=SAMPLES.get(dataset), seed=0)
        return folder / dataset

    return write


@pytest.fixture(scope="session")
def fitted(small):
    """Overrides that make a recipe one for the small copy of its data."""

    @cache
    def groups(dataset):
        recipe = parse.load(first_of(dataset), [f"data_args.data_cache_dir={small(dataset)}", "data_args.users=null"])
        return len(np.unique(loaded(recipe).train.groups))

    def overrides(name):
        recipe = load(name)
        dataset, train = recipe.data.dataset, recipe.train
        if dataset in ("synthetic", "digits", "circles"):
            return []
        settings = [f"data_args.data_cache_dir={small(dataset)}"]
        if recipe.partition.partition_method == "natural" and dataset != "isic2019":
            joining = min(train.client_num_per_round, groups(dataset))
            settings += [
                "data_args.users=null",
                f"train_args.client_num_in_total={groups(dataset)}",
                f"train_args.client_num_per_round={joining}",
            ]
        return settings

    return overrides


@pytest.mark.parametrize("name", [*FILES, *kinds("data_args", "model_args")])
def test_a_recipe_equals_its_dump_and_runs_up_to_training(name, fitted, capsys):
    recipe = load(name)
    again = parse.parse(recipe.dump(), source=recipe.path)
    assert (again.resolved(), again.expected) == (recipe.resolved(), recipe.expected)
    start(RunOptions(FILES.get(name, name), fitted(name), dry_run=True))
    assert "nothing was trained" in capsys.readouterr().out


def test_every_partition_is_created(fitted):
    from fl_labelskew_plugins.partition.clients import divide

    @cache
    def data(overrides, name):
        return loaded(parse.load(name, overrides))

    first, scenes = {}, {}
    for name in ROWS:
        content = content_of(name)
        clients = content["train_args"]["client_num_in_total"]
        scenes.setdefault(json.dumps([content["data_args"], content["partition_args"], clients]), name)
    assert len(scenes) > 70
    for name in scenes.values():
        overrides = tuple(fitted(name))
        recipe = parse.load(name, overrides)
        key = json.dumps(recipe.resolved()["data_args"])
        clients, samples = recipe.train.client_num_in_total, data(overrides, first.setdefault(key, name))
        split = divide(samples, recipe.partitioner, clients=clients, seed=0)
        assert len(split.train) == clients
        if recipe.partition.partition_method == "pcdd":
            assert (split.counts > 0).sum(1).max() <= recipe.partitioner.params.classes_per_client
