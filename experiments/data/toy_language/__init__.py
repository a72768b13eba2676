"""The toy translation language, English to French: hardly any word can be translated by itself."""
