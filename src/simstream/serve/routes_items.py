"""Routes of items and of searching them."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from . import admissions, schemas
from .errors import BadRequestError, NotFoundError
from .events import SparseVector
from .routes_shared import ItemId, Key, Wait, named, with_payload, written
from .service import Service, digest_of
from .writer import Part


def add_item_routes(app: FastAPI, service: Service) -> None:
    """Items that come and go."""
    limits = service.settings.limits

    @app.post("/v1/items", status_code=201, response_model=schemas.Written, tags=["items"])
    async def add_items(body: schemas.Items, key: Key = None, wait: Wait = True) -> Any:
        """Add items, all of them or none."""
        if len(body.items) > limits.vectors:
            raise BadRequestError(
                f"items: expected at most {limits.vectors}, got {len(body.items)}"
            )
        names = [item.id for item in body.items]
        if len(set(names)) < len(names):
            raise BadRequestError("items: expected every id once")
        digest = digest_of(body.model_dump(mode="json")) if key else ""
        admit = admissions.add_items([item.as_item(item.id) for item in body.items])
        done = await written(service, [Part(admit, named(key, "items"), digest)], wait)
        return JSONResponse(done.told(), 200 if done.is_repeated else 201)

    @app.get("/v1/items", tags=["items"])
    def list_items(
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        payload: bool = False,
    ) -> Any:
        """Ids of items in the order in which they were added, some at a time."""
        view = service.version.view
        positions = [] if view is None else view.ids
        names = [service.engine.items.names[int(p)] for p in positions[offset : offset + limit]]
        return {
            "total": len(positions),
            "items": [with_payload(service, {"id": name}, payload) for name in names],
        }

    @app.get("/v1/items/{id:path}/image", tags=["items"])
    def get_image(id: ItemId) -> Response:
        """The picture of an item."""
        image = service.item(id)[2].get("image")
        if image is None:
            raise NotFoundError("image: the item has none")
        media_type, content = schemas.decode_picture(image)
        headers = {"content-security-policy": "default-src 'none'; sandbox"}
        return Response(content, media_type=media_type, headers=headers)

    @app.get("/v1/items/{id:path}", tags=["items"])
    def get_item(id: ItemId) -> Any:
        """An item with its vector and what people see of it."""
        position, vector, content = service.item(id)
        if isinstance(vector, SparseVector):
            values: Any = {"indices": vector.indices.tolist(), "values": vector.values.tolist()}
        else:
            values = vector.tolist()
        return {"id": id, "position": position, "vector": values, **content}

    @app.put("/v1/items/{id:path}", response_model=schemas.Written, tags=["items"])
    async def put_item(
        id: ItemId, body: schemas.Content, key: Key = None, wait: Wait = True
    ) -> Any:
        """Add or replace an item. What was learnt with the old one stays."""
        digest = digest_of([id, body.model_dump(mode="json")]) if key else ""
        part = Part(admissions.put_item(body.as_item(id)), named(key, "put"), digest)
        return (await written(service, [part], wait)).told()

    @app.delete("/v1/items/{id:path}", response_model=schemas.Written, tags=["items"])
    async def delete_item(id: ItemId, key: Key = None, wait: Wait = True) -> Any:
        """Take an item away. What was learnt with it stays."""
        part = Part(admissions.delete_item(id), named(key, "delete"), digest_of(id) if key else "")
        return (await written(service, [part], wait)).told()


def add_search_routes(app: FastAPI, service: Service) -> None:
    """Search, learnt and baseline."""
    limits = service.settings.limits

    @app.post("/v1/search", tags=["search"])
    def search(body: schemas.Search) -> Any:
        """The most similar items of an item or a vector, best first."""
        if body.k > limits.k:
            raise BadRequestError(f"k: expected at most {limits.k}, got {body.k}")
        if body.task is not None and not service.has_tasks:
            raise BadRequestError("task: this service learns one similarity for all")
        version = service.version
        query = body.anchor()
        _check_query(service, query)
        look = functools.partial(service.search, query, body.k, body.task, version=version)

        def shown(hits: list[tuple[str, float]]) -> list[dict[str, Any]]:
            return [
                with_payload(service, {"id": name, "score": score}, body.payload)
                for name, score in hits
            ]

        try:
            answer = {"position": version.model.position, "results": shown(look())}
            if body.baseline:
                answer["baseline"] = shown(look(learnt=False))
        except ValueError as error:  # products that float32 cannot hold
            raise BadRequestError(str(error)) from None
        return JSONResponse(answer)


def _check_query(service: Service, query: Any) -> None:
    """Raise if a vector does not fit the items."""
    n_features = service.engine.items.n_features
    if isinstance(query, str) or n_features is None:
        return
    is_sparse = isinstance(query, SparseVector)
    if is_sparse != (service.settings.n_features is not None):
        raise BadRequestError("vector: expected it dense or sparse as the items are")
    if is_sparse:
        if len(query.indices) and query.indices[-1] >= n_features:
            raise BadRequestError(f"vector: expected indices below {n_features}")
    elif len(query) != n_features:
        raise BadRequestError(f"vector: expected {n_features} numbers, got {len(query)}")
