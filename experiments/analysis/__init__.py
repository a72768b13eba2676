"""Figures, measurements and pages of a run and of its model."""
