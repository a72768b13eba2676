"""Conformance of every implementation of this library, and of other libraries."""
