"""A Slurm of our own: munged, slurmctld, and nodes that all stand on this machine, with every file in one folder.

A node is a slurmd in namespaces of its own, with a host name of its own: killed, it takes all with it that ran on it,
as a machine does that loses its power. A dead node is noticed, and what ran on it is put back into the queue, within
10 s; it starts again 6 s later.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NODE = ("unshare", "--pid", "--uts", "--mount-proc", "--fork", "--kill-child")
CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=3
TCPTimeout=1
MessageTimeout=5
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why there can be no Slurm here, if so."""
    if lack := [name for name in ("munged", "slurmctld", "slurmd") if shutil.which(name) is None]:
        return f"{', '.join(lack)}: not installed (apt-get install munge slurm-wlm)"
    if subprocess.run([*NODE, "true"], capture_output=True, check=False).returncode:
        return "a node needs namespaces of its own, which this user may not make"
    return ""


class Slurm:
    """``node1``, ``node2`` and so on, within a ``with``; ``environment``: variables with which commands find it."""

    def __init__(self, folder, nodes=2, cpus=2):
        self.folder, self.nodes, self.processes = folder, [f"node{n + 1}" for n in range(nodes)], {}
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(nodes + 1)]
            controller, *ports = [door.getsockname()[1] for door in free]
        lines = [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
            for name, port in zip(self.nodes, ports, strict=True)
        ]
        text = CONF.format(folder=folder, controller=controller, user=getpass.getuser())
        (folder / "slurm.conf").write_text("\n".join([text.strip(), *lines, ""]))
        (folder / "state").mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        try:
            self._serve()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in reversed([*self.processes]):
            self.kill(name)

    def boot(self, name):
        """Start a node, also one that was killed."""
        (self.folder / name).mkdir(exist_ok=True)
        self._start(name, *NODE, "sh", "-c", f"hostname {name} && exec slurmd -D -N {name}")

    def kill(self, name):
        """kill -9 of a node and of all its processes; a service is stopped."""
        process = self.processes.pop(name)
        if name in self.nodes:
            inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for pid in inside or [process.pid]:  # unshare ends after the first process of its namespaces, and reaps it
                os.kill(int(pid), signal.SIGKILL)
        else:
            process.terminate()
        process.wait(30)

    def states(self):
        """Node to its state, as Slurm names it."""
        words = self.call("sinfo", "--noheader", "--Node", "--format=%N %t", check=False).stdout.split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def call(self, *command, check=True, timeout=60, **more):
        """One of its commands, or any other with its environment, to the end."""
        words, more = [*map(str, command)], {"env": self.environment, **more}
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **more)

    def until(self, true, timeout=60):
        """Wait until something is so; none of its processes may end meanwhile."""
        end = time.monotonic() + timeout
        while not true():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            logs = [
                file.read_text(errors="replace")[-2000:] for name in ended for file in self.folder.glob(f"{name}.*")
            ]
            assert not ended, "\n".join([f"{ended} ended", *logs])
            assert time.monotonic() < end, f"{self.states()}\n{self.call('squeue', '--array').stdout}"
            time.sleep(0.1)

    def _serve(self):
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        # which would refuse a folder that others cannot reach
        self._start("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self.until((self.folder / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D")
        for name in self.nodes:
            self.boot(name)
        self.until(lambda: self.states() == dict.fromkeys(self.nodes, "idle"))

    def _start(self, name, *command):
        with open(self.folder / f"{name}.out", "ab") as out:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
