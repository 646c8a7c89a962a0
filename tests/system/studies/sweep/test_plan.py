"""The runs of a sweep's file, and mistakes in it."""

import json
from pathlib import Path

import pytest
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.studies.sweep import plan

SWEEPS = Path(__file__).parents[4] / "sweeps"
MANY = [*range(1, 102)]


def mistakes(path, *overrides):
    with pytest.raises(LabelSkewError) as error:
        plan.plan(path, overrides, path.parent / "out")
    lines = error.value.mistakes if isinstance(error.value, MistakesError) else [str(error.value)]
    return [line.replace(f"{path.parent}/", "") for line in lines]


def test_the_product_of_the_axes_without_skipped_combinations(write, tmp_path):
    planned = plan.plan(write(), ["train_args.epochs=3"], tmp_path / "out")
    assert [each.name for each in planned] == ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]
    assert [each.folder.path for each in planned] == [tmp_path / "out" / each.name for each in planned]
    assert {each.recipe.train.epochs for each in planned} == {3}
    last = planned[2].recipe
    assert (last.method_name, last.method.params.tau, last.common.random_seed) == ("fedlc", 2.0, 0)
    # another method drops the base's alpha; a run without a number of threads has one
    base = (tmp_path / "base.yaml").read_text()
    assert last.resolved() == parse.parse(
        base.replace("method: fedrs, alpha: 0.3", "method: fedlc, tau: 2.0").replace("seed: 5", "seed: 0"),
        overrides=["device_args.threads=1", "train_args.epochs=3"],
    ).resolved()  # fmt: skip


def test_names_of_plain_axes_and_settings_of_all_runs(write, tmp_path):
    text = """
base: base.yaml
out: elsewhere
set: {train_args: {epochs: 2}, device_args.threads: 3}
grid:
- method_args.alpha: [0.1, 1.0e-3]
- partition_args.partition_method: [iid]
- {all: , few: {train_args.client_num_per_round: 2}}
"""
    planned = plan.plan(write(text))
    alphas = [f"elsewhere/alpha{alpha}-partition_methodiid" for alpha in ("0.1", "0.001")]
    assert [str(each.folder.path) for each in planned] == [
        f"{a}-{clients}" for a in alphas for clients in ("all", "few")
    ]
    assert [each.recipe.train.client_num_per_round for each in planned] == [5, 2, 5, 2]
    assert {(each.recipe.device.threads, each.recipe.train.epochs) for each in planned} == {(3, 2)}
    no_out = write("base: base.yaml\ngrid: [{one: {}}]", "named.yaml")
    assert str(plan.plan(no_out)[0].folder.path) == "runs/named/one"


def test_selected_values_of_an_axis(write, tmp_path):
    def names(*only):
        return [each.name for each in plan.plan(write(), out=tmp_path, only=only)]

    assert names("seed0") == ["fedavg-seed0", "fedlc-seed0"]
    assert names("seed0", "fedlc") == ["fedlc-seed0"]
    assert names("seed0", "seed1") == ["fedavg-seed0", "fedavg-seed1", "fedlc-seed0"]
    with pytest.raises(LabelSkewError, match="skip: leaves nothing to run"):
        names("fedlc", "seed1")
    with pytest.raises(LabelSkewError, match=r"--only 'fedl' is unknown; allowed: fedavg, .*; did you mean fedlc\?"):
        names("fedl")


@pytest.mark.parametrize("file", sorted(SWEEPS.glob("*.yaml")), ids=lambda file: file.stem)
def test_sweeps_that_come_with_the_source(file, fashion_mnist):
    planned = plan.plan(file, [fashion_mnist] if "fmnist" in file.stem else [])
    assert file.read_text().startswith(f"# labelskew sweep sweeps/{file.name}")
    assert len({json.dumps(each.recipe.resolved(), sort_keys=True) for each in planned}) == len(planned)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["grid.yaml: null is not a mapping; allowed keys: base, out, set, grid, skip"]),
        ("bas: x\ngrid: []", ["grid.yaml: bas: unknown", "grid.yaml: base: missing", "grid.yaml: grid: [] has the"]),
        ("base: nope.yaml\ngrid: [{a: {}, b: {}}]", ["nope.yaml: cannot be read: No such file or directory"]),
        (
            # each mistake once, not once a combination; where only some have it, which ones
            "base: base.yaml\nset: {train_args.epochs: 0}\n"
            "grid: [{a: {method_args.alpha: 2}, b: {method_args.alhpa: 1}}, {common_args.random_seed: [0, 1]}]",
            [
                "grid.yaml: train_args.epochs: 0 is out of range; allowed: an integer of at least 1",
                "grid.yaml: method_args.alpha: 2 is out of range; allowed: a number of at least 0 and at most 1"
                " (in a-seed0 and 1 more)",
                "grid.yaml: method_args.alhpa: unknown key; allowed: method, alpha",
            ],
        ),
        (
            "base: base.yaml\nset: {epochs: 1}\ngrid: [{a: {x: 1}, 'b/c': {}, d: 1}, {}, {epochs: [1]}, {a.b: []}]",
            [
                "grid.yaml: set: epochs: expected a mapping of keys to values, got 1; allowed: section.key: value",
                "grid.yaml: grid[1]: a: x: expected a mapping of keys to values, got 1",
                "grid.yaml: grid[1]: invalid name 'b/c'; allowed: letters, digits and ._+-",
                "grid.yaml: grid[1]: d: expected a mapping of settings, got 1",
                "grid.yaml: grid[2]: empty",
                "grid.yaml: grid[3]: epochs: allowed: section.key with at least one value",
                "grid.yaml: grid[4]: a.b: allowed: section.key with at least one value",
            ],
        ),
        (
            "base: base.yaml\ngrid: [{a: {train_args.epochs: 1}}, {train_args.epochs: [2]}]",
            ["grid.yaml: grid: train_args.epochs is set by axes 1 and 2; set it in one of them"],
        ),
        (
            "base: base.yaml\ngrid: [{fedavg: {}}]\nskip: [[fedavgg], []]",
            ["grid.yaml: skip[1]: 'fedavgg' is unknown; allowed: fedavg; did you mean", "grid.yaml: skip[2]: empty"],
        ),
        (
            "base: base.yaml\ngrid: [{a: {}, b: {}}, {common_args.random_seed: [0, 1]}]\n"
            "skip: [[seed0, a], [b, seed1, a], [b, b]]",
            ["grid.yaml: skip[2]: b and a are values of one axis, so no run has both; use an entry for each"],
        ),
        ("base: base.yaml\ngrid: [{a: {}}]\nskip: [[a]]", ["grid.yaml: skip: leaves nothing to run"]),
        ("base: base.yaml\ngrid: [{a-b: , a: }, {c: , b-c: }]", ["grid.yaml: grid: two combinations have the name a-"]),
        (
            f"base: base.yaml\ngrid: [{{train_args.epochs: {MANY}}}, {{train_args.batch_size: {MANY}}}]",
            ["grid.yaml: grid: 10201 combinations; use at most 10000"],
        ),
        (f"base: base.yaml\ngrid: [{{{'a' * 151}: }}]", [f"grid.yaml: grid: the name {'a' * 151} is longer than 150"]),
        (
            "base: base.yaml\nset: {data_args: {dataset: fashion_mnist, data_cache_dir: /nowhere}}\n"
            "grid: [{train_args.epochs: [1, 2]}]",
            ["base.yaml: data set FashionMNIST: no train-images"],
        ),
    ],
)
def test_all_mistakes_of_a_file_together(write, text, lines):
    found = mistakes(write(text))
    assert len(found) == len(lines), found
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start)


def test_runs_are_not_written_into_the_folder_of_a_run(write, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recipe.yaml").touch()
    assert mistakes(write()) == ["out: is the folder of a run; use another --out"]


def test_mistakes_of_the_command_line_name_the_option(write):
    malformed, wrong = mistakes(write(), "train_args.epochs=0", "nonsense")
    assert malformed.startswith("--set nonsense: malformed; allowed: section.key=value")
    assert wrong.startswith("--set train_args.epochs: 0 is out of range")
    assert mistakes(write(), "common_args.random_seed=3") == [
        "--set common_args.random_seed: the grid of grid.yaml sets it; use another key"
    ]


def test_a_report_uses_the_names_of_the_sweep_file(write, tmp_path):
    text = """
base: base.yaml
grid:
- {p5c2: , flat: {partition_args: {partition_method: iid}}}
- {plain: {method_args.method: fedavg}, strong: {method_args: {method: fedlc, tau: 5.0}}}
- train_args.learning_rate: [0.1, 0.01]
- common_args.random_seed: [0, 1]
"""
    planned = plan.plan(write(text), out=tmp_path / "out", only=["p5c2", "strong"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.json").write_text('{"other": {"label": "x"}}')  # of another sweep
    plan.write_names(planned)
    names = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert names == {"other": {"label": "x"}} | {
        f"p5c2-strong-learning_rate{rate}-seed{seed}": {"setting": "p5c2", "label": f"strong, learning_rate{rate}"}
        for rate in (0.1, 0.01)
        for seed in (0, 1)
    }
    plain = "base: base.yaml\ngrid: [{partition_args.classes_per_client: [2, 3]}, {method_args.alpha: [0.1, 0.9]}]"
    assert {str(run.names) for run in plan.plan(write(plain), out=tmp_path / "plain")} == {"{}"}  # keys say more
