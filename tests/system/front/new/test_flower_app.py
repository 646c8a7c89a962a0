import pytest
from click.testing import CliRunner
from recipe_texts import NETWORK, SILOS, simulation

from fl_labelskew_plugins.cli.main import main
from fl_labelskew_plugins.recipe import parse


def new(*arguments):
    return CliRunner().invoke(main, ["new", "flower-app", *map(str, arguments)])


def test_flower_app_of_a_federation(here):
    (here / "net.py").write_text(NETWORK)
    text = SILOS.replace("model: mlp, hidden: [16]", "model: net.py:make_network")
    text = text.replace("backend: GRPC", "backend: GRPC, server_address: 'a.org:1', certs: certs")
    (here / "federation.yaml").write_text(text + "client_specific_args: {data_silo_config: [a.yaml, b.yaml, c.yaml]}\n")
    done = new("app", "--recipe", "federation.yaml")
    assert done.exit_code == 0, done.output
    assert "flwr" not in done.output.partition("next")[0]
    files = {str(file.relative_to(here / "app")) for file in (here / "app").rglob("*") if file.is_file()}
    package = {"__init__.py", "client_app.py", "network_net.py", "recipe.yaml", "server_app.py"}
    assert files == {".gitignore", "README.md", "pyproject.toml", *(f"labelskew_app/{name}" for name in package)}
    recipe = parse.load(here / "app" / "labelskew_app" / "recipe.yaml")
    assert (recipe.comm.backend, recipe.comm.certs, recipe.network_name) == (
        "Flower",
        None,
        "network_net.py:make_network",
    )
    readme = (here / "app" / "README.md").read_text()
    assert "--node-config \"silo=1 data='/data/north.yaml'\"" in readme
    assert "Simulation on this machine" not in readme


def test_flower_app_of_a_simulation(here):
    (here / "r.yaml").write_text(simulation(SILOS))
    assert new("app", "--recipe", "r.yaml").output.splitlines()[-1].endswith("--federation-config num-supernodes=3")
    assert "num-supernodes 3" in (here / "app" / "README.md").read_text()
    assert "fab-include" in (here / "app" / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("full", "--recipe", "quickstart"), "is not empty"),
        (("app", "--recipe", "quickstrat"), "quickstart"),
        (("app", "--recipe", "secure.yaml"), "secure_aggregation"),
    ],
)
def test_refused(here, arguments, line):
    (here / "full").mkdir()
    (here / "full" / "file").touch()
    (here / "secure.yaml").write_text(
        SILOS.replace("backend: GRPC", "backend: GRPC, certs: c, secure_aggregation: true")
    )
    done = new(*arguments)
    assert done.exit_code == 2
    (error,) = done.stderr.splitlines()
    assert line in error
    assert not (here / "app").exists()
