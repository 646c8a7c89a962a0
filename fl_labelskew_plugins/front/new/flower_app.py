"""Generate a Flower app that runs a recipe."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fl_labelskew_plugins.data.fakes import all_or_nothing
from fl_labelskew_plugins.recipe import compatibility, parse, yaml
from fl_labelskew_plugins.recipe.conflicts import OF_SUPERLINK

PACKAGE = "labelskew_app"
PYPROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "1.0.0"
description = "The recipe NAME on Flower"
license = "Apache-2.0"
dependencies = ["flwr[simulation]>=1.42,<1.43"]  # and fl-labelskew-plugins, see README.md

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]

[tool.flwr.app]
publisher = "local"
fab-include = ["{PACKAGE}/*.py", "{PACKAGE}/*.yaml"]

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

[tool.flwr.app.config]
run-dir = ""
resume = ""
set = ""
"""
MODULE = '''\
"""The KIND of the recipe, see README.md."""

from pathlib import Path

from fl_labelskew_plugins.flower import KIND

app = KIND(Path(__file__).with_name("recipe.yaml"))
'''


def flower_app(recipe: Path, out: Path) -> list[str]:
    """Write an app to ``out``, new or empty; return the next commands. Raise LabelSkewError for an invalid recipe."""
    name, content = parse.load(recipe).name, _for_flower(parse.read_text(recipe))
    loaded = compatibility.without_host(parse.parse(yaml.write(content), source=recipe), "another backend")
    silos, own = loaded.train.client_num_in_total, loaded.common.across_silos
    with all_or_nothing(out) as part:
        package = part / PACKAGE
        package.mkdir()
        (package / "__init__.py").write_text(f'"""{name} on Flower."""\n', encoding="utf-8")
        for kind in ("server_app", "client_app"):
            (package / f"{kind}.py").write_text(MODULE.replace("KIND", kind), encoding="utf-8")
        if loaded.code is not None:
            file, _, function = loaded.code.rpartition(":")
            copy = f"network_{Path(file).name}"
            shutil.copy(file, package / copy)
            content["model_args"]["model"] = f"{copy}:{function}"
        text = f"# flwr run . --stream, in the folder above\n{yaml.write(content)}"
        (package / "recipe.yaml").write_text(text, encoding="utf-8")
        (part / "pyproject.toml").write_text(PYPROJECT.replace("NAME", _name(name)), encoding="utf-8")
        page = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        readme = page.from_string(Path(__file__).with_name("flower_app.md.j2").read_text("utf-8"))
        facts = {"name": name, "silos": silos, "own": own, "files": loaded.own_data, "package": PACKAGE}
        (part / "README.md").write_text(readme.render(facts), encoding="utf-8")
        (part / ".gitignore").write_text("certs/\nruns/\n*.pyc\n__pycache__/\n", encoding="utf-8")
    return ["export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1", *_commands(silos, own)]


def _commands(silos: int, own: bool) -> list[str]:
    if own:
        return [f"labelskew certs new --silos {silos} --server localhost --server 127.0.0.1 --out certs"]
    return [f"flwr run . --stream --federation-config num-supernodes={silos}"]


def _for_flower(text: str) -> dict[str, Any]:
    """The recipe's content with ``backend: Flower``, without keys that Flower replaces, and with absolute paths."""
    content: dict[str, Any] = yaml.read(text)[0]
    comm = {
        key: value for key, value in (content.get("comm_args") or {}).items() if key not in (*OF_SUPERLINK, "workers")
    }
    content["comm_args"] = {**comm, "backend": "Flower"}
    if folder := content["data_args"].get("data_cache_dir"):
        content["data_args"]["data_cache_dir"] = os.path.abspath(os.path.expanduser(folder))
    return content


def _name(recipe: str) -> str:
    return re.sub("[^a-z0-9]+", "-", recipe.lower())[:32].strip("-") or "recipe"
