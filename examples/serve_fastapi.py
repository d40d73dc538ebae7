"""Classify uploaded photographs over HTTP: FastAPI around a predictor that threads share.

    pip install fastapi uvicorn python-multipart
    python examples/serve_fastapi.py [FILE]
    curl -F photograph=@cat.jpg "localhost:8000/classify?top=3"

FILE is a .keras file; without it, the server runs CaiT_Mini. The answer is
`{"classes": [{"class": "cat", "probability": 0.889}, ...]}`. FastAPI calls `classify` in a pool of
threads, because it is not a coroutine.
"""

import sys
from typing import Annotated

import keras_vitx as kv

import keras
import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Query, UploadFile

LARGEST = 20_000_000
"""Bytes of an upload."""


def server(predictor):
    """Return the application, with one predictor for all requests."""
    app = FastAPI()

    @app.post("/classify")
    def classify(photograph: UploadFile, top: Annotated[int, Query(ge=1)] = 5):
        if photograph.size > LARGEST:
            raise HTTPException(413, f"At most {LARGEST:,} bytes. Received: {photograph.size:,}.")
        try:
            (best,) = predictor(photograph.file, top)
        except OSError as error:  # Of another format, damaged, or of too many pixels.
            raise HTTPException(422, f"The photograph can't be decoded: {error}") from error
        return {"classes": [{"class": name, "probability": p} for _, name, p in best]}

    return app


if __name__ == "__main__":
    if len(sys.argv) > 1:
        model = keras.saving.load_model(sys.argv[1])
    else:
        model = kv.CaiT_Mini(weights="cifar10")
    predictor = kv.predictor(model, batch_sizes=(1,))
    predictor(np.zeros((64, 64, 3), "uint8"))  # Compiles the model before the first request.
    uvicorn.run(server(predictor), port=8000)
