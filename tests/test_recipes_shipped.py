"""Every recipe that comes with the package can be run."""

from pathlib import Path

import pytest

from fl_labelskew_plugins import recipe

ROOT = Path(__file__).parent.parent
SHIPPED = sorted((ROOT / "recipes").rglob("*.yaml"))
METHODS = ("fedavg", "fedrs", "map", "fedphp", "fedlc", "fedshift", "fedmr")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def test_all_seven_in_both_sizes_and_a_quick_start():
    wanted = [f"recipes/{size}{method}_fmnist.yaml" for size in ("", "small/") for method in METHODS]
    assert {name_of(path) for path in SHIPPED} >= {"recipes/quickstart.yaml", *wanted}


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_it_is_valid_and_survives_its_own_dump(path):
    loaded = recipe.load(path)
    assert recipe.parse(loaded.dump(), source=path).resolved() == loaded.resolved()
    # What the recipe asks for is what is resolved: nothing is lost on the way.
    from fl_labelskew_plugins import plain_yaml

    for section, keys in plain_yaml.read(path.read_text("utf-8"))[0].items():
        assert {key: loaded.resolved()[section][key] for key in keys} == keys


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_it_opens_with_its_command_and_the_source_of_its_numbers(path):
    first, *rest = path.read_text("utf-8").splitlines()
    assert first == f"# fedml run {name_of(path)}"
    comments = [line for line in rest if line.startswith("# ")]
    assert comments
    assert loaded_method(path) in "".join(comments).lower()


def loaded_method(path):
    return recipe.load(path).method_name


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_it_runs_up_to_training(path, capsys):
    from fl_labelskew_registry import LabelSkewError

    from fl_labelskew_plugins.run import start

    loaded = recipe.load(path)
    try:
        loaded.dataset.check(None, download=False)
    except LabelSkewError as error:
        pytest.skip(f"data are not at hand: {error}")
    start(path, dry_run=True)
    assert "nothing was trained" in capsys.readouterr().out


def test_pure_missing_classes_need_a_wide_smoothing():
    for path in (path for path in SHIPPED if loaded_method(path) == "fedshift"):
        assert recipe.load(path).method.params.smoothing_fraction == 0.1
