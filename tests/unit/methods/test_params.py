"""What the options of the methods may be."""

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
        ("fd", {"gamma": -1.0}, "greater than or equal to 0"),
        ("fedaws", {"rate": -0.1}, "greater than or equal to 0"),
        ("fedaws", {"margin": 2.5}, "less than or equal to 2"),
        ("feddecorr", {"beta": -0.1}, "greater than or equal to 0"),
        ("feddecorr", {"scale": "other"}, "'code' or 'paper'"),
        ("fedlc", {"tau": -1.0}, "greater than or equal to 0"),
        ("fedlc", {"missing": "zero"}, "'one' or 'mask'"),
        ("fedlc", {"denominator": "x"}, "'full' or 'others'"),
        ("fedlc", {"tau": math.nan}, "finite"),
        ("fedlmd", {"beta": -1.0}, "greater than or equal to 0"),
        ("fedlmd", {"tau": 0.0}, "greater than 0"),
        ("fedlmd", {"teacher": "none"}, "'global' or 'uniform'"),
        ("fedmmd", {"lam": -0.1}, "greater than or equal to 0"),
        ("fedmr", {"mu1": -1.0}, "greater than or equal to 0"),
        ("fedmr", {"eps": 0.0}, "greater than 0"),
        ("fedmr", {"scale": "other"}, "'code' or 'paper'"),
        ("fedmr", {"negatives": "none"}, "'all' or 'observed'"),
        ("fedmr", {"lite": -1}, "greater than or equal to 0"),
        ("fedmr", {"lite": 1.5}, "valid integer"),
        ("fedmr", {"share_prototypes": 1.1}, "less than or equal to 1"),
        ("fedmr", {"prototypes": "before"}, "'after' or 'running'"),
        ("fedmr", {"mu2": math.inf}, "finite"),
        ("fedntd", {"beta": -1.0}, "greater than or equal to 0"),
        ("fedntd", {"tau": 0.0}, "greater than 0"),
        ("fedproc", {"mu": 1.5}, "less than or equal to 1"),
        ("fedproc", {"temperature": 0.0}, "greater than 0"),
        ("fedproc", {"schedule": "cosine"}, "'linear' or 'constant'"),
        ("fedrod", {"gamma": -1.0}, "greater than or equal to 0"),
        ("fedrod", {"private": -1.0}, "greater than or equal to 0"),
        ("fedrod", {"missing": "zero"}, "'one' or 'mask'"),
        ("fedrs", {"upload_sigma": 0.1}, "upload_sigma needs upload_clip"),
        ("fedrs", {"upload_delta": 0.1}, "upload_delta needs upload_clip"),
        ("fedrs", {"upload_clip": 1.0, "upload_delta": 0.1}, "upload_delta needs upload_sigma"),
        ("fedrs", {"upload_clip": 0.0}, "greater than 0"),
        ("fedrs", {"alpha": 1.5}, "less than or equal to 1"),
        ("fedrs", {"alpha": -0.1}, "greater than or equal to 0"),
        ("fedrs", {"alpha": "0.5"}, "valid number"),
        ("fedrs", {"min_count": 0}, "greater than or equal to 1"),
        ("fedrs", {"scaling": "all"}, "'indicator' or 'proportional'"),
        ("fedshift", {"smoothing": 0.0}, "greater than 0"),
        ("fedshift", {"smoothing_fraction": 0.0}, "greater than 0"),
        ("fedshift", {"count_noise": -1.0}, "greater than or equal to 0"),
        ("fedshift", {"count_noise_type": "uniform"}, "'laplace' or 'gaussian'"),
        ("fedshift", {"denominator": "all"}, "'population' or 'participants'"),
        ("fedvls", {"lam": -1.0}, "greater than or equal to 0"),
        ("fedvls", {"suppression": -1.0}, "greater than or equal to 0"),
        ("fedvls", {"form": "printed"}, "'code' or 'paper'"),
        ("fedvls", {"calibration": "mask"}, "'prior' or 'none'"),
        ("flda", {"general_share": 0.0}, "greater than 0"),
        ("flda", {"general_share": 1.1}, "less than or equal to 1"),
        ("flda", {"mixture": "outputs"}, "'logits' or 'probabilities'"),
        ("map", {"alpha": 2.0}, "less than or equal to 1"),
        ("map", {"lam": 1.5}, "less than or equal to 1"),
        ("map", {"transfer": "fitnet"}, "'kd' or 'mmd'"),
        ("map", {"temperature": 0.0}, "greater than 0"),
        ("map", {"hpm_count": "code"}, "'text' or 'algorithm'"),
        ("map", {"mu0": -0.1}, "greater than or equal to 0"),
        ("moon", {"mu": -1.0}, "greater than or equal to 0"),
        ("moon", {"temperature": 0.0}, "greater than 0"),
        ("reweighting", {"smoothing": 0.0}, "greater than 0"),
    ],
)
def test_options_are_checked(name, params, message):
    with pytest.raises(ValidationError, match=message):
        catalog.load("methods", name).Params(**params)
