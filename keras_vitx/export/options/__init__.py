"""The options of an export, and the model that they make."""
