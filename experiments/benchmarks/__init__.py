"""Time, memory and error of attention and models, beside those of other libraries."""
