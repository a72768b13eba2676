"""Messages about unknown names."""

import pytest

from attention.primitives.choice import MANY, one_of

NAMES = [f"field_{number}" for number in range(MANY)]


@pytest.mark.parametrize(
    "known, options, sentence",
    [
        (["mean", "sum"], {}, "x must be one of mean, sum, got 'men'; did you mean 'mean'?"),
        (["sum"], {"registry": "R"}, "x must be one of sum (the registry R), got 'men'"),
        ([*NAMES, "mean"], {}, "x must be one of mean, ..., got 'men'; did you mean 'mean'?"),
        ([*NAMES, "sum"], {}, f"x must be one of {', '.join(NAMES)}, sum, got 'men'"),
    ],
    ids=["nearest name", "registry", "many names", "many names, none near"],
)
def test_unknown_name(known, options, sentence):
    with pytest.raises(ValueError) as raised:
        one_of("x", "men", known, **options)
    assert str(raised.value) == sentence
