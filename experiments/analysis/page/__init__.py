"""One HTML file with what a model attends to, and the model itself."""
