"""Lines from a pipe: all that have come, each once, however they were cut on their way."""

from experiments.predict import lines_as_they_come


class Pipe:
    """A stream that gives its bytes in these pieces."""

    def __init__(self, *pieces, person=False):
        self.pieces = [*pieces, b""]
        self.isatty = lambda: person
        self.buffer = self

    def read1(self, size):
        assert len(self.pieces[0]) <= size
        return self.pieces.pop(0)


def groups(*pieces, **settings):
    return [*lines_as_they_come(Pipe(*pieces, **settings))]


def test_lines_come_in_groups_and_none_in_parts():
    assert groups(b"one\ntw", b"o\n\nthr", b"e", b"e") == [["one"], ["two", ""], ["three"]]
    assert groups(b" one \r\n", b"\n") == [[" one "], [""]]
    assert groups() == groups(b"") == []


def test_a_letter_may_be_cut_and_bytes_that_are_none_are_marked():
    letter = "ß".encode()
    assert groups(b"stra" + letter[:1], letter[1:] + b"e\n") == [["straße"]]
    assert groups(b"\xff\n", b"\xef\xbf\xbd\n") == [["\ufffd"], ["\ufffd"]]


def test_byte_order_mark_at_the_beginning():
    mark = "\ufeff"
    assert groups(f"{mark}one\n{mark}two\n".encode(), mark.encode()) == [
        ["one", f"{mark}two"],
        [mark],
    ]


def test_a_person_is_asked_each_time(capsys):
    assert groups(b"one\n", b"two\n", person=True) == [["one"], ["two"]]
    assert capsys.readouterr().out == "one input per line; end with Ctrl-D\n> > > "
