"""From a model, a loss and batches to a trained model."""
