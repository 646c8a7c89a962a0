"""The example notebook, run anew in a kernel."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


def test_the_notebook_runs_with_its_saved_output(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kept = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.read(NOTEBOOK, as_version=4)
    for cell in run.cells:
        cell.source = cell.source.replace('threads": 1', 'threads": 1, "train_args.comm_round": 2')
    NotebookClient(run, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(kept.cells, run.cells, strict=True):
        if before.cell_type == "code":
            shown = [[sorted(out.data) for out in cell.outputs if "data" in out] for cell in (before, after)]
            assert shown[0] == shown[1], before.source
