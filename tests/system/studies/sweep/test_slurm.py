"""The documented script of a sweep as an array job, in a real Slurm; one of its nodes is killed."""

import re
import sys
from pathlib import Path

from fl_labelskew_plugins.machine.files import read_lines
from fl_labelskew_plugins.studies.sweep import plan

CLUSTERS = Path(__file__).parents[4] / "docs" / "clusters.md"
SETTINGS = "set: {train_args.comm_round: 150, tracking_args.checkpoint_every: 5}\n"
TWO = "grid:\n- {fedavg: {method_args.method: fedavg}, fedlc: {method_args: {method: fedlc, tau: 2.0}}}\n"


def test_all_runs_are_done_once_despite_a_lost_node_and_a_time_limit(write, tmp_path, slurm):
    file, out = write(f"base: base.yaml\nout: {tmp_path}/out\n{SETTINGS}{TWO}"), tmp_path / "out"
    command = f"{sys.executable} -m fl_labelskew_plugins.cli.main"
    script = re.search(r"^```sh\n(#!.*?)^```$", CLUSTERS.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]
    script = script.replace("labelskew sweep sweeps/fmnist.yaml", f"{command} sweep {file} --host none")
    (tmp_path / "job.sh").write_text(script.replace("cpus-per-task=1", "cpus-per-task=2"))  # one to a node
    slurm.call("sbatch", "--array=0-1", "job.sh", cwd=tmp_path)

    runs = plan.plan(file, out=out)
    slurm.until(lambda: len(read_lines(runs[0].folder.metrics)) > 10, 120)
    slurm.call("scancel", "--signal=TERM", "1_0")  # Slurm sends it shortly before the time limit
    slurm.until(lambda: len(read_lines(runs[1].folder.metrics)) > 10, 120)
    node = slurm.call("squeue", "--noheader", "--format=%N", "--job=1_1").stdout.strip()
    began = runs[1].folder.environment["run"]
    slurm.kill(node)
    slurm.until(lambda: not slurm.call("squeue", "--noheader").stdout, 120)
    assert runs[1].folder.environment["run"] == began  # resumed, not started again
    for number, run in enumerate(runs):
        assert [line["round"] for line in read_lines(run.folder.metrics)] == [*range(150)]
        shown = slurm.call("scontrol", "show", "job", f"1_{number}").stdout
        assert " Restarts=1 " in shown
        assert f" BatchHost={node} " not in shown
        (log,) = [file.read_text() for file in tmp_path.glob(f"slurm-*_{number}.out")]
        assert log.count("interrupted: 0 of 1 runs finished; to resume: ") == (number == 0)
        assert log.count(f"task {number}  {run.name}  accuracy ") == 1
