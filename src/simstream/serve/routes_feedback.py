"""Routes of feedback, questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from . import admissions, exports, schemas
from .errors import BadRequestError
from .routes_shared import Key, Wait, named, with_payload, written
from .service import Service, digest_of
from .writer import Part


def add_feedback_routes(app: FastAPI, service: Service) -> None:
    """Judgements, questions, answers, undo, and what was answered so far."""
    limits = service.settings.limits

    @app.post(
        "/v1/feedback", status_code=201, response_model=schemas.FeedbackWritten, tags=["feedback"]
    )
    async def give_feedback(body: schemas.FeedbackBody, key: Key = None, wait: Wait = False) -> Any:
        """One judgement, or a list of them: all are kept, or none."""
        judgements = body if isinstance(body, list) else [body]
        if len(judgements) > limits.batch:
            raise BadRequestError(
                f"feedback: expected at most {limits.batch}, got {len(judgements)}"
            )
        if key is not None and any(judgement.key is not None for judgement in judgements):
            raise BadRequestError("key: expected it in the header or with each judgement, not both")
        parts = [
            service.judgement(
                one.as_judgement(),
                named(one.key, "feedback"),
                digest_of(one.model_dump(mode="json")) if one.key else "",
            )
            for one in judgements
        ]
        if key is not None:

            def admit_all(draft: Any, parts: Sequence[Part] = tuple(parts)) -> None:
                for part in parts:
                    part.admit(draft)

            digest = digest_of([one.model_dump(mode="json") for one in judgements])
            parts = [Part(admit_all, named(key, "feedback"), digest)]
        done = await written(service, parts, wait)
        positions = [receipt.first for receipt in done.receipts]
        if key is not None:
            (receipt,) = done.receipts
            positions = list(range(receipt.first, receipt.last + 1))
        answer = {
            "positions": positions,
            "repeated": done.is_repeated,
            "visible": done.is_visible,
        }
        return JSONResponse(answer, 200 if done.is_repeated else 201)

    @app.get("/v1/query", tags=["questions"])
    async def get_question(task: Annotated[schemas.Name | None, Query()] = None) -> Any:
        """The next question to a person; it is kept that it was asked."""
        admit = await run_in_threadpool(service.question, task)
        done = await written(service, [Part(admit)], False)
        return await run_in_threadpool(_question, service, done.receipts[0].first)

    @app.post(
        "/v1/answer", status_code=201, response_model=schemas.AnswerWritten, tags=["questions"]
    )
    async def give_answer(body: schemas.Answer, wait: Wait = True) -> Any:
        """Answer or skip a question. The same answer again changes nothing; another one is refused."""
        admit = admissions.answer(body.question, body.winner)
        part = Part(admit, f"answer:{body.question}", digest_of(body.winner))
        done = await written(service, [part], wait)
        answer = done.told() | {"accuracy": service.version.tally.accuracy()}
        return JSONResponse(answer, 200 if done.is_repeated else 201)

    @app.post(
        "/v1/retract",
        status_code=201,
        response_model=schemas.RetractWritten,
        response_model_exclude_unset=True,
        tags=["questions"],
    )
    async def take_back(body: schemas.At, wait: Wait = True) -> Any:
        """Take back feedback or an answer: the model becomes what it would have been without."""
        done = await written(service, [Part(admissions.retract(body.position))], wait)
        answer = done.told()
        if answer["events"] == 2:  # the question of the answer is open again
            last = done.receipts[0].last
            answer["question"] = await run_in_threadpool(_question, service, last)
        return answer

    @app.get("/v1/responses", tags=["questions"])
    def get_responses(format: Literal["jsonl", "csv"] = "jsonl") -> Response:
        """Every comparison between items that counts, as JSON lines or CSV.

        The header X-Left-Out says how many others there are: their query was a vector that is no item.
        """
        until = service.version.position
        headers = {"X-Left-Out": str(exports.count_left_out(service.log, until))}
        records = exports.responses(service.log, service.engine.items, until)
        if format == "csv":
            rows = exports.as_csv(records, has_tasks=service.has_tasks)
            return StreamingResponse(rows, headers=headers, media_type="text/csv")
        lines = exports.as_jsonl(records)
        return StreamingResponse(lines, headers=headers, media_type="application/jsonl")


def _question(service: Service, position: int) -> dict[str, Any]:
    event = service.log.get(position)
    assert event is not None
    anchor, first, second = (
        with_payload(service, {"id": name}, True) for name in event.body["names"]
    )
    return {
        "question": position,
        "anchor": anchor,
        "candidates": [first, second],
        "task": event.body["task"],
    }
