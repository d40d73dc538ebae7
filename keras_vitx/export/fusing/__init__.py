"""The steps of `keras_vitx.fuse`, one file per kind of operation that is folded."""
