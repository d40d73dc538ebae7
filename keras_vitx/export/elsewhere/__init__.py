"""The second process, which runs the backend of a format."""
