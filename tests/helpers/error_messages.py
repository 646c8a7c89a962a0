"""The error message of an exception, for all tests of mistakes."""

import pytest
from fl_labelskew_registry import LabelSkewError, MistakesError


def mistakes(call):
    """The lines of several mistakes found together."""
    with pytest.raises(MistakesError) as caught:
        call()
    return caught.value.mistakes


def message(call, says=(), kind=LabelSkewError):
    """The line that a mistake ends with; where ``says`` is given, one of these is in it."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert not says or any(words in text for words in says), text
    return text
