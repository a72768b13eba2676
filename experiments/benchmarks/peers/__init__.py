"""Attention functions and models of other libraries, called as their documentation describes."""
