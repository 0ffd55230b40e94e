"""An empty FastAPI route: it reads the same body and answers a fixed `{"items":[]}`, as FastAPI's tutorial writes one.

In: any POST body. Out: the same small answer each time: no parsing, no validation, no response model. What is left is
what uvicorn and FastAPI cost at least for one request. https://fastapi.tiangolo.com/advanced/custom-response/
"""

from fastapi import FastAPI, Request, Response

app = FastAPI()


@app.post("/recall")
async def recall(request: Request) -> Response:
    """Reads the body and answers."""
    await request.body()
    return Response(b'{"items":[]}', media_type="application/json")
