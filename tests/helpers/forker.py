"""Starts commands as processes of their own, forked from one that has imported everything: an import takes seconds.

Reads a line of JSON for each: ``{"argv": [...], "log": FILE, "errors": FILE, "process": PID, "cwd": FOLDER,
"environment": {...}, "script": FILE, "python": FILE, "largest": BYTES}``. ``argv`` is required, and either ``log`` or
``process``, a process that lends its output. Answers with the pid. Without a script it is ``labelskew``. Reports
``[pid, code]`` of each that has ended on the second output.
"""

import ctypes
import json
import os
import resource
import runpy
import signal
import sys
import threading

PIDFD_GETFD = 438


def outputs(order):
    """Descriptors for stdout and stderr: a file, or those of the process for which this one does the work."""
    if "process" in order:
        theirs = os.pidfd_open(order["process"])
        return [ctypes.CDLL(None).syscall(PIDFD_GETFD, theirs, number, 0) for number in (1, 2)]
    files = order["log"], order.get("errors", order["log"])
    return [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for file in files]


def child(order):
    for number, descriptor in enumerate(outputs(order), 1):
        os.dup2(descriptor, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order.get("cwd", "."))
    os.environ.update(order.get("environment", {}))
    sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = order.get("python", sys.executable)
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = [order.get("script") or "labelskew", *order["argv"]]
    measured = None
    if "coverage" in sys.modules:
        measured = sys.modules["coverage"].Coverage.current()
    if "largest" in order:
        if measured is not None:  # its own file would hit the limit too
            measured.stop()
            measured = None
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest"], resource.RLIM_INFINITY))
    code = 1
    try:
        if order.get("script"):
            runpy.run_path(order["script"], run_name="__main__")
            code = 0
        else:
            fl_labelskew_plugins.cli.main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if measured is not None:
        measured.stop()
        measured.save()
    os._exit(code)


def reap(out):
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            threading.Event().wait(0.02)
            continue
        out.write(json.dumps([pid, os.waitstatus_to_exitcode(status)]) + "\n")
        out.flush()


def main():
    reports = os.fdopen(int(sys.argv[1]), "w")
    started = False
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        if not started:  # threads do not survive a fork, so this one starts after the first fork
            threading.Thread(target=reap, args=(reports,), daemon=True).start()
            started = True
        print(pid, flush=True)


if __name__ == "__main__":  # processes that decode pictures read this file too, and have no use for the rest
    import gc
    import importlib
    import pkgutil
    from pathlib import Path

    import fl_labelskew_plugins.cli.main
    from fl_labelskew_plugins.recipe import parse
    from fl_labelskew_plugins.show import card

    needs = "matplotlib.pyplot", "sklearn.datasets", "dp_accounting.rdp", "randomgen", "torchvision"
    ours = [module.name for module in pkgutil.walk_packages(fl_labelskew_plugins.__path__, "fl_labelskew_plugins.")]
    for module in (*needs, *ours):
        try:
            importlib.import_module(module)
        except ImportError:  # a package that this environment lacks, such as FedML
            continue

    # fill the caches of most runs: entry points, JSON Schemas, the template of model cards and the digits
    card.template(Path(card.__file__).with_name("card.md.j2"))
    recipe = "data_args: {dataset: digits}", "model_args: {model: mlp}", "method_args: {method: fedavg}"
    text = "\n".join([*recipe, "common_args: {training_type: cross_silo}", "comm_args: {backend: GRPC}"])
    parse.parse(text).dataset.load(None, download=False, seed=0)

    assert "grpc" not in sys.modules, "gRPC does not survive a fork"
    assert threading.active_count() == 1, "threads do not survive a fork"

    if "MEASURED" in os.environ:  # from here on: most of an import is the host's, and slow enough
        import coverage

        measured = coverage.Coverage(config_file=os.environ.pop("MEASURED"), data_suffix=True, auto_data=True)
        measured.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
        measured.start()
    gc.freeze()  # else a collection in a child would touch, and so copy, every page of all this
    main()
