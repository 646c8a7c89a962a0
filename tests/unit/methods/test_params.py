import math

import pytest
from fl_labelskew_registry import catalog
from pydantic import ValidationError

METHODS = [e.name for e in catalog.entries("methods") if e.distribution == "fl-labelskew-plugins"]


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_option_is_refused_and_uploads_are_weighted_by_samples_unless_the_paper_differs(name):
    with pytest.raises(ValidationError, match="Extra inputs"):
        catalog.load("methods", name).Params(unknown=1)
    others = {"fedrs": "uniform", "map": "uniform", "fedphp": "uniform", "fedshift": "population"}
    others["feddisco"] = "declared"
    assert catalog.load("methods", name)().aggregation == others.get(name, "samples")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [  # the generated tables of docs/methods have all ranges
        ("fedlc", {"tau": math.nan}, "finite"),
        ("fedmr", {"lite": 1.5}, "valid integer"),
        ("fedrs", {"upload_sigma": 0.1}, "upload_sigma needs upload_clip"),
        ("fedrs", {"upload_delta": 0.1}, "upload_delta needs upload_clip"),
        ("fedrs", {"upload_clip": 1.0, "upload_delta": 0.1}, "upload_delta needs upload_sigma"),
        ("fedrs", {"alpha": "0.5"}, "valid number"),
    ],
)
def test_options_are_checked(name, params, message):
    with pytest.raises(ValidationError, match=message):
        catalog.load("methods", name).Params(**params)


AS_PRINTED = {"scale": "paper", "negatives": "observed"}


@pytest.mark.parametrize(
    ("name", "params", "lines"),
    [
        ("feddecorr", {"scale": "code"}, ["1e-8 is added to the variance", "scale: code omits the diagonal"]),
        ("fedlc", {}, ["denominator: full keeps", "tau: 1; the paper gives no", "with missing: one, a class"]),
        ("fedlc", {"tau": 0.0, "denominator": "others"}, []),
        ("fedlc", {"tau": 0.0, "missing": "mask", "denominator": "others"}, ["missing: mask removes a class without"]),
        ("fedlmd", {"teacher": "uniform"}, ["a sample of the only minority", "teacher: uniform: targets sum to 1"]),
        (
            "fedmr",
            {"prototypes": "running"},
            ["scale: code is", "with negatives: all, missing", "with prototypes: running, they are averages"],
        ),
        ("fedmr", AS_PRINTED, ["with scale: paper, the variance is divided by n - 1"]),
        ("fedmr", AS_PRINTED | {"mu1": 0.0}, []),
        (
            "fedmr",
            {"eps": 1e-5},
            ["scale: code is", "eps: 1e-05 is added to the variance", "with negatives: all, missing"],
        ),
        ("fedntd", {"beta": 0.0, "tau": 3.0}, []),
        ("fedntd", {"tau": 3.0}, ["tau: the distillation is multiplied by tau^2"]),
        ("fedphp", {"hpm_count": "algorithm"}, ["hpm_count: algorithm omits this round"]),
        ("fedproc", {"schedule": "constant"}, ["prototypes and contrast use", "schedule: constant keeps the weight"]),
        ("fedrs", {"scaling": "proportional"}, ["scaling proportional: rare observed classes are scaled"]),
        (
            "fedshift",
            {"denominator": "participants"},
            ["denominator: participants: weights relative to the samples of the round"],
        ),
        ("fedshift", {"count_noise": 1.0}, ["count_noise: the prior comes from noisy class counts"]),
        ("fedvls", {"suppression": 1.0, "form": "paper"}, []),
        ("fedvls", {"suppression": 0.0}, []),
        (
            "fedvls",
            {"calibration": "none"},
            ["with calibration: none, the", "suppression has the weight", "with form: code, logits"],
        ),
        ("flda", {}, ["the gate is linear in the general model's features", "with mixture: logits, the logits"]),
        ("flda", {"general_share": 0.5, "mixture": "probabilities"}, ["general_share: a fixed share replaces"]),
        ("map", {"mu0": 0.0}, []),
        ("map", {"scaling": "proportional"}, ["hpm_count text: mu_k counts this round", "scaling proportional: rare"]),
        ("moon", {}, ["the contrast uses the network's features"]),
        ("moon", {"projection": "mlp"}, ["projection: mlp projects features only for the contrast"]),
    ],
)
def test_deviations_from_the_paper_are_told(name, params, lines):
    kind = catalog.load("methods", name)
    told = kind(kind.Params(**params)).deviations()
    assert [line.startswith(start) for line, start in zip(told, lines, strict=True)] == [True] * len(lines)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("fedlc", {"denominator": "others"}, "no lower bound"),
        ("fedmr", {}, None),
        ("fedmr", AS_PRINTED, "chance"),
        ("fedvls", {}, None),
        ("fedvls", {"form": "paper"}, "diverge"),
        ("fedvls", {"form": "paper", "suppression": 0.0}, None),
    ],
)
def test_settings_that_may_fail_are_warned_of(name, params, words, federation):
    kind = catalog.load("methods", name)
    warnings = kind(kind.Params(**params)).warnings(federation)
    assert len(warnings) == (words is not None)
    assert all(words in line for line in warnings)
