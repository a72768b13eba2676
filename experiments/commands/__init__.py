"""Modes of the command line that serve every task."""
