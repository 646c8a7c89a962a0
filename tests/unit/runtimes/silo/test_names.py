import pytest

from fl_labelskew_plugins.runtimes.silo import keys


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("silo-1", 1),
        ("silo-10", 10),
        *[(name, 0) for name in ("silo-0", "silo-01", "silo-", "silo-1 ", "silo-1\n", "silo-٣", "silo--1")],
        *[(name, 0) for name in ("server", "", "Silo-1", "silo-1-2", "silo-9999999999")],
    ],
)
def test_only_a_silos_name_has_a_rank(name, rank):
    assert keys.rank_of(name) == rank
