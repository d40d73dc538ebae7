"""The command `keras-vitx`: a module a verb, each with a `main`."""
