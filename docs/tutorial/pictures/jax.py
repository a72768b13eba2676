"""Page 0 has no picture."""

PICTURES = ()
