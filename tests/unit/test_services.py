"""Commands and restart settings of the units and container files in ``examples/services``."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from commands import parsed
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.machine.extras import install

SERVICES = Path(__file__).parents[2] / "examples" / "services"
UNITS = sorted(SERVICES.glob("*.service"))
COMPOSE = yaml.safe_load((SERVICES / "compose.yaml").read_text(encoding="utf-8"))
PROGRAM = "/opt/labelskew/bin/labelskew"


def unit(path):
    """Sections of a unit, with a list of values for each name."""
    sections, section = {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            section = sections.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            name, sign, value = line.partition("=")
            assert re.fullmatch("[A-Z][A-Za-z]+=", name + sign), line
            section.setdefault(name, []).append(value)
    return sections


@pytest.fixture
def started(tmp_path):
    """Execute a command; returns the arguments of our program. No other program is on its path."""
    program = tmp_path / "labelskew"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)

    def start(command):
        command = [word.replace(PROGRAM, str(program)).replace("/var/lib/labelskew", str(tmp_path)) for word in command]
        done = subprocess.run(
            command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.splitlines()

    return start


def exec_start(service):
    """The command that systemd would execute for rank 2."""
    (line,), variables = service["ExecStart"], {}
    for value in service["Environment"]:
        variables |= dict(word.partition("=")[::2] for word in shlex.split(value))
    words = [re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word) for word in shlex.split(line)]
    assert not any(re.search(r"(?<!\$)\$(?!\$)|%(?!i)", word) for word in words)
    return [word.replace("$$", "$").replace("%i", "2") for word in words]


def test_units():
    assert [path.name for path in UNITS] == ["labelskew-server.service", "labelskew-silo@.service"]
    for path in UNITS:
        sections = unit(path)
        assert list(sections) == ["Unit", "Service", "Install"]
        service = {name: value for name, (*_, value) in sections["Service"].items()}
        assert service["Restart"] == "on-failure"
        assert service["RestartPreventExitStatus"] == str(LabelSkewError.exit_code)
        assert service["SuccessExitStatus"].split() == ["130", "143"]
        assert sections["Unit"]["StartLimitBurst"] == ["5"]
        assert service["WorkingDirectory"] == "/etc/labelskew"
        assert service["NoNewPrivileges"] == "yes"
        assert service["StateDirectory"] == "labelskew"  # /var/lib/labelskew, the only place that can be written
        assert service["ProtectSystem"] == "strict"
    server, silo = (unit(path)["Service"] for path in UNITS)
    apart = ("ExecStart", "Environment", "LimitNOFILE")
    assert {k: v for k, v in server.items() if k not in apart} == {k: v for k, v in silo.items() if k not in apart}


def test_a_service_of_a_server_resumes_its_run(started, tmp_path):
    command = exec_start(unit(UNITS[0])["Service"])
    run = tmp_path / "run"
    first = started(command)
    assert first == ["run", "/etc/labelskew/federation.yaml", "--role", "server", "--run-dir", str(run)]
    run.mkdir()
    (run / "audit.jsonl").touch()  # no silo connected
    assert started(command) == first
    (run / "recipe.yaml").touch()
    again = started(command)
    assert again == [*first[:-2], "--resume", str(run)]
    assert (parsed(first)["run_dir"], parsed(again)["resume"]) == (run, run)


def test_a_service_of_a_silo_is_the_same_command_each_time(started, tmp_path):
    command = exec_start(unit(UNITS[1])["Service"])
    assert command[0] == PROGRAM
    given = parsed(started(command))
    assert (given["role"], given["rank"], given["run_dir"]) == ("client", 2, tmp_path / "silo-2")


def test_containers(started, tmp_path):
    for service in COMPOSE["services"].values():
        assert service["restart"] == "on-failure:5"
        assert service["init"] is True  # a first process that has no handler for SIGTERM is deaf to it
        assert {volume.partition(":")[0] for volume in service["volumes"]} & COMPOSE["volumes"].keys()
    server, silo = COMPOSE["services"]["server"], COMPOSE["services"]["silo"]
    command = [*server["entrypoint"], *(word.replace("$$", "$") for word in server["command"])]
    assert parsed(started(command))["run_dir"] == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    given = parsed(started(command))
    assert (given["resume"], given["server"], given["role"]) == (tmp_path / "run", "0.0.0.0:8890", "server")
    assert server["ports"] == ["8890:8890"]
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in silo["command"]]
    given = parsed(words)
    assert (given["role"], given["rank"], given["server"]) == ("client", 1, "server:8890")


def test_the_image():
    text = re.sub(r"\\\n\s*|^#.*\n", "", (SERVICES / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    steps = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    assert {name for name, _ in steps} <= {
        "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    last = dict(steps)
    assert (last["ENTRYPOINT"], last["USER"], last["WORKDIR"]) == ('["labelskew"]', "10001", "/etc/labelskew")
    assert re.search(r"python:([\d.]+)-", last["FROM"])[1] in ("3.10", "3.11")
    (names,) = re.findall(r"/wheels/fl_labelskew_plugins-\*\.whl\)\[([a-z,]+)\]", text)
    packages = set(re.findall(r"'([a-z-]+)", " ".join(map(install, names.split(",")))))
    assert packages == {"cryptography", "dp-accounting", "grpcio", "pycryptodome"}  # secure aggregation, and a budget


def test_comments_contain_valid_commands():
    for path in SERVICES.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#") and (found := re.search(r"labelskew (status .+)", line)):
                assert parsed(found[1].split())["folder"] == Path("/var/lib/labelskew/run")
