import json
import os
from pathlib import Path

import pytest
import torch

from fl_labelskew_plugins.runs.environment import environment, peak_memory


def test_peak_memory_is_the_maximum():
    def held():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    before = peak_memory(torch.device("cpu"))["peak_mb"]
    assert before >= 0.99 * held() > 0
    more = torch.ones(int((before - held() + 50) * 1e6), dtype=torch.uint8)
    most = held()
    del more
    assert peak_memory(torch.device("cpu")) == {"peak_mb": pytest.approx(most, rel=0.02)}
    assert most > before + 20


def test_environment_names_versions_and_hardware():
    found = environment(torch.device("cpu"))
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["threads"] == torch.get_num_threads()
    json.dumps(found)
