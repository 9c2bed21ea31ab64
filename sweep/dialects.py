"""The closed table of the APIs that are spoken: one row an API, from the module of its family. Pure."""

from __future__ import annotations

from sweep.dialect_chat import CHAT
from sweep.dialect_completions import COMPLETIONS
from sweep.dialect_decisions import DECIDE, SYSTEMONE
from sweep.dialect_embeddings import EMBEDDINGS
from sweep.dialect_messages import MESSAGES
from sweep.dialect_ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from sweep.dialect_responses import RESPONSES
from sweep.dialect_types import ANSWER as ANSWER
from sweep.dialect_types import FAILED_FINISH as FAILED_FINISH
from sweep.dialect_types import NOTHING as NOTHING
from sweep.dialect_types import TOKEN as TOKEN
from sweep.dialect_types import Answer as Answer
from sweep.dialect_types import Ask as Ask
from sweep.dialect_types import BadBodyError as BadBodyError
from sweep.dialect_types import Dialect as Dialect

# `sweep.plan.APIS` names them, in this order, for `--help`, which loads no dialect.
DIALECTS = (
    CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, OLLAMA_CHAT, OLLAMA_GENERATE, MESSAGES, DECIDE, SYSTEMONE,
)  # fmt: skip
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
