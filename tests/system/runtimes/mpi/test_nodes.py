"""Several nodes: facts that ranks send; and two nodes as connected network namespaces.

A namespace has addresses and a host name of its own, and its ranks reach those of the other over that cable alone. It
has the files of this machine, but the folder with the runs is seen by the first node alone.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from commands import call
from error_messages import message
from federations import wait_until
from fl_labelskew_registry import LabelSkewError
from recipe_texts import OVER_MPI

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.recipe import parse
from fl_labelskew_plugins.runs.session import build
from fl_labelskew_plugins.runtimes.mpi import nodes
from fl_labelskew_plugins.runtimes.transport import Kind, Message, Transport


@pytest.fixture(scope="module")
def session():
    return build(parse.parse(OVER_MPI))


class Line(Transport):
    """To the server, from workers that each say one thing."""

    size = 3

    def __init__(self, *words):
        super().__init__()
        for rank, word in enumerate(words, 1):
            self.arrived.put(Message(Kind.HELLO, rank, 0, meta=word))

    def send_message(self, msg):
        self.arrived.put(msg)


def greeting(has, node, **changed):
    """What a worker sends, from another node."""
    line = Line()
    line.rank = 1
    nodes.greet(line, has)
    return {**line.arrived.get_nowait().meta, "node": node, **changed}


def test_ranks_of_each_node(session, capsys):
    here = nodes.socket.gethostname()
    alone = nodes.Nodes(Line(greeting(session, here), greeting(session, here)), session)
    assert (str(alone), alone.name(2)) == ("", "worker 2")
    two = nodes.Nodes(Line(greeting(session, here), greeting(session, "far\x1b")), session)
    assert str(two) == f"nodes: {here} (server, 1 worker), far? (1 worker)"
    assert (two.name(1), two.name(2)) == (f"worker 1 on {here}", "worker 2 on far?")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"samples": "0f"}, r"the fingerprint of its samples is 0f, and on \S+ made from .*; use the same data .*"),
        ({"clients": "0f"}, r"the fingerprint of its clients is 0f, and on \S+ [0-9a-f]+; use the same data .*"),
        ({"of": {}}, r"it has fl-labelskew-plugins None, and the server \S+; use the same on all nodes"),
    ],
)
def test_a_worker_with_other_settings_is_a_one_line_error(session, changed, line):
    words = greeting(session, "far"), greeting(session, "far", **changed)
    assert re.fullmatch(f"worker 2 on far: {line}", message(lambda: nodes.Nodes(Line(*words), session)))


def test_another_recipe_is_an_error_but_another_data_path_is_not(session):
    said = greeting(session, "far")
    said["recipe"]["data_args"]["data_cache_dir"] = "/scratch"
    assert nodes.Nodes(Line(said, said), session)
    said["recipe"]["train_args"]["epochs"] = 5
    reason = LabelSkewError("data set npz: /data/a.npz does not exist")
    for word, line in (
        (said, r"it has another recipe, which differs in train_args\.epochs;"),
        (greeting(reason, "far"), r"data set npz: /data/a\.npz does not exist$"),  # at the start of this worker
    ):
        with pytest.raises(LabelSkewError, match=f"^worker 1 on far: {line}"):
            nodes.Nodes(Line(word), session)


def test_causes_of_rounding_differences_are_reported_once_per_node(session, capsys):
    said = greeting(session, "far")
    other = {**said, "of": {**said["of"], "torch": "1.0"}}
    nodes.Nodes(Line(other, other), session)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"warning: far: torch 1\.0, and \S+ on the server's node; the last digits may differ", line)


NAMES = f"lska{os.getpid()}", f"lskb{os.getpid()}"
AGENT = """\
#!/bin/sh
shift  # the name of the only other node
exec env -i PATH="$PATH" HOME="$HOME" ip netns exec {node} unshare --uts --mount \\
    sh -c "hostname {node}; mount -t tmpfs none {runs}; $*"
"""
"""In place of ssh: starts a node's daemon, with none of our variables."""


class Pair:
    """Two nodes; the first one has the run's folder."""

    def __init__(self, folder):
        self.folder, self.runs, self.recipe = folder, folder / "runs", folder / "recipe.yaml"
        self.recipe.write_text(OVER_MPI)
        self.runs.mkdir()
        (folder / "hosts").write_text("10.77.0.1 slots=2\n10.77.0.2 slots=1\n")
        agent = folder / "agent"
        agent.write_text(AGENT.format(node=NAMES[1], runs=self.runs))
        agent.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "SLURM_"))}
        self.environment = kept | {
            "OMPI_MCA_plm_rsh_agent": str(agent),
            "OMPI_MCA_oob_tcp_keepalive_time": "2",
            "OMPI_MCA_oob_tcp_keepalive_intvl": "1",
            "OMPI_MCA_oob_tcp_keepalive_probes": "3",
            "OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(prefix="lsk", dir="/tmp"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def type(self, *words, mpirun=()):
        """What a user types on the first node: the command, or an mpirun of it."""
        inside = ["ip", "netns", "exec", NAMES[0], "unshare", "--uts", "sh", "-c"]
        command = [*mpirun, sys.executable, "-m", "fl_labelskew_plugins.cli.main", *map(str, words)]
        return subprocess.Popen(
            [*inside, f"hostname {NAMES[0]}; exec {shlex.join(command)}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def broken(self, process, run, rounds, breaks):
        """Break something after some rounds; return the seconds until the end, and the output."""
        lines = run / "metrics.jsonl"
        wait_until(lambda: process.poll() is not None or (lines.exists() and len(read_lines(lines)) >= rounds), 120)
        assert process.poll() is None, process.communicate()
        begun = time.monotonic()
        breaks()
        out, err = process.communicate(timeout=120)
        return time.monotonic() - begun, out + err

    def wait_until_nobody_is_left(self):
        """On either node; a node that is cut off notices it as late as the other does, and may begin to wait later."""
        wait_until(lambda: not inside(NAMES[0]) and not inside(NAMES[1]), 30)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def inside(name):
    return [int(pid) for pid in ip("netns", "pids", name).split()]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    if os.geteuid() or shutil.which("ip") is None or shutil.which("mpirun") is None:
        pytest.skip("needs root, ip (apt-get install iproute2) and mpirun")
    made = []
    try:
        for name in NAMES:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("may not make network namespaces")
            made.append(name)
        ip("link", "add", "cable", "netns", NAMES[0], "type", "veth", "peer", "name", "cable", "netns", NAMES[1])
        for number, name in enumerate(NAMES, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")
        nodes = Pair(tmp_path_factory.mktemp("nodes"))
        yield nodes
        shutil.rmtree(nodes.environment["OMPI_MCA_orte_tmpdir_base"])
    finally:
        for name in made:
            for pid in inside(name):
                os.kill(pid, signal.SIGKILL)
            ip("netns", "del", name)


def test_a_killed_node_and_a_lost_connection_keep_results_identical(pair):
    run = pair.runs / "mine"
    nodes = ("mpirun", "--hostfile", "hosts", "-np", "3")
    process = pair.type("run", "recipe.yaml", "--run-dir", run, "--host", "none", mpirun=nodes)
    seconds, said = pair.broken(process, run, 6, lambda: [os.kill(pid, signal.SIGKILL) for pid in inside(NAMES[1])])
    assert said.startswith(f"nodes: {NAMES[0]} (server, 1 worker), {NAMES[1]} (1 worker)\n"), said
    assert seconds < 30, said
    pair.wait_until_nobody_is_left()
    assert (run / "checkpoint" / "latest.safetensors").exists()
    (line,) = re.findall(r"cable: *(.*)", ip("netns", "exec", NAMES[1], "cat", "/proc/net/dev"))
    assert int(line.split()[8]) > 5 * 38_000  # bytes that the second node has sent: an upload of each round
    resume = ("run", "recipe.yaml", "--resume", run, "--host", "none")

    process = pair.type(*resume, mpirun=nodes)
    seconds, said = pair.broken(process, run, 12, lambda: ip("-n", NAMES[1], "link", "set", "cable", "down"))
    assert seconds < 40, said
    assert "lost communication with a remote daemon" in said
    pair.wait_until_nobody_is_left()

    process = pair.type(*resume, "--set", "comm_args.workers=1")
    done = process.communicate(timeout=150)
    assert (run / "summary.json").exists(), done
    alone = pair.folder / "alone"
    call("run", pair.recipe, "--set", "comm_args.backend=sp", "--run-dir", alone, "--host", "none", "--quiet")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (alone / name).read_bytes(), name
