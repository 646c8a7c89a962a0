import json
import os
from pathlib import Path

import pytest
import torch

from fl_labelskew_plugins.runs.environment import environment, peak_memory


def test_peak_memory_is_the_maximum():
    def peak():
        return peak_memory(torch.device("cpu"))["peak_mb"]

    now = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    before = peak()
    assert before >= 0.95 * now > 0
    # The kernel's current number can be wrong by tens of megabytes.
    more = torch.ones(int((before - now + 300) * 1e6), dtype=torch.uint8)
    most = peak()
    del more
    assert before + 200 < most < before + 400
    assert peak() == pytest.approx(most, abs=20)


def test_environment_names_versions_and_hardware():
    found = environment(torch.device("cpu"))
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["threads"] == torch.get_num_threads()
    json.dumps(found)
