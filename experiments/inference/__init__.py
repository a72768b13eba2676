"""Answers of trained models to lines of text: translations, continuations and predictions."""
