"""One body posted, and what came of it."""

import time
from dataclasses import dataclass

import aiohttp

from tests.benchmarks.mutation_parts.bodies import Mutation
from tests.told import told

LIMIT_S = 10.0
"""An answer that is not whole by then is a hang."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status` is what the client was told, in a stream too: 0 for none (see `how`)."""

    how: str
    """`answer`; `hang`; `closed` (the connection broke); `refused` (nobody listened)."""
    status: int = 0
    message: str = ""
    seconds: float = 0.0


async def post(
    http: aiohttp.ClientSession, url: str, mutation: Mutation, headers: dict[str, str]
) -> Outcome:
    """POST one body and read the whole answer; never raises for what the server does."""
    begin = time.perf_counter()
    headers = headers | {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        async with http.post(
            url + mutation.endpoint, data=mutation.body, headers=headers, timeout=timeout
        ) as response:
            raw = await response.read()
            status, message = told(response.status, raw)
            return Outcome("answer", status, message, time.perf_counter() - begin)
    except TimeoutError:
        return Outcome("hang", seconds=time.perf_counter() - begin)
    except aiohttp.ClientConnectorError as error:
        return Outcome("refused", message=str(error), seconds=time.perf_counter() - begin)
    except (aiohttp.ClientError, OSError) as error:
        return Outcome("closed", message=repr(error), seconds=time.perf_counter() - begin)
