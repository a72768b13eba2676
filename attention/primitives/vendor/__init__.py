"""Attention of other libraries, behind the same contract."""
