import math

import pytest
from fl_labelskew_registry import catalog
from pydantic import ValidationError

METHODS = [e.name for e in catalog.entries("methods") if e.distribution == "fl-labelskew-plugins"]


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_option_is_refused(name):
    with pytest.raises(ValidationError, match="Extra inputs"):
        catalog.load("methods", name).Params(unknown=1)


@pytest.mark.parametrize("name", METHODS)
def test_uploads_are_weighted_by_samples_unless_the_paper_says_otherwise(name):
    others = {"fedrs": "uniform", "map": "uniform", "fedphp": "uniform", "fedshift": "population"}
    assert catalog.load("methods", name)().aggregation == others.get(name, "samples")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("fedlc", {"missing": "zero"}, "'one' or 'mask'"),
        ("fedlc", {"tau": math.nan}, "finite"),
        ("fedmr", {"eps": 0.0}, "greater than 0"),
        ("fedmr", {"lite": -1}, "greater than or equal to 0"),
        ("fedmr", {"lite": 1.5}, "valid integer"),
        ("fedmr", {"share_prototypes": 1.1}, "less than or equal to 1"),
        ("fedmr", {"mu2": math.inf}, "finite"),
        ("fedrs", {"upload_sigma": 0.1}, "upload_sigma needs upload_clip"),
        ("fedrs", {"upload_delta": 0.1}, "upload_delta needs upload_clip"),
        ("fedrs", {"upload_clip": 1.0, "upload_delta": 0.1}, "upload_delta needs upload_sigma"),
        ("fedrs", {"alpha": 1.5}, "less than or equal to 1"),
        ("fedrs", {"alpha": -0.1}, "greater than or equal to 0"),
        ("fedrs", {"alpha": "0.5"}, "valid number"),
        ("fedrs", {"min_count": 0}, "greater than or equal to 1"),
    ],
)
def test_options_are_checked(name, params, message):  # all ranges: the generated tables of docs/methods
    with pytest.raises(ValidationError, match=message):
        catalog.load("methods", name).Params(**params)
