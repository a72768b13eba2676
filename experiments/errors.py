"""Mistakes that a person can mend, told in one sentence."""


class UsageError(Exception):
    """What was given, what is allowed. The door prints the sentence, without a traceback."""
