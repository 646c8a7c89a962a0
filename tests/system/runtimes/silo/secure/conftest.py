"""Silos with certificates of one authority."""

import pytest
from masked_rounds import Hospital

from fl_labelskew_plugins.runtimes.silo import certs


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with the certificates of seven silos; not to be changed."""
    folder = tmp_path_factory.mktemp("secure") / "certs"
    certs.new(folder, 7)
    return folder


@pytest.fixture
def hospitals(certificates, tmp_path):
    """So many of them, each with an empty folder."""
    return lambda number: [Hospital(certificates, tmp_path, rank) for rank in range(1, number + 1)]
