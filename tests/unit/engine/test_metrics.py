import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from fl_labelskew_plugins.engine.metrics import confusion, measures


def test_confusion_by_hand():
    matrix = confusion(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 1, 1]), 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_measures_equal_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (300,), generator=generator)
    predicted = torch.where(torch.rand(300, generator=generator) < 0.6, labels, (labels + 1) % 5)
    result = measures(confusion(predicted, labels, 7))
    assert result["accuracy"] == pytest.approx(float((predicted == labels).float().mean()))
    assert result["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert result["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", labels=range(5)))
    assert result["recall"][5:] == [None, None]


def test_observed_and_missing():
    matrix = torch.tensor([[3, 1], [2, 0]])
    result = measures(matrix, torch.tensor([True, False]))
    assert result["observed_accuracy"] == 0.75
    assert result["missing_accuracy"] == 0.0
    assert measures(matrix, torch.tensor([True, True]))["missing_accuracy"] is None
