"""The command `keras-vitx`: one module per verb, each with a `main`."""
