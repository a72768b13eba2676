"""Time, memory and error of attention, beside the functions of other libraries."""
