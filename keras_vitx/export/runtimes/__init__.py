"""Scripts that open exported files without Keras and keras_vitx; see `run.py`.

They are run by path in processes of their own, never imported.
"""
