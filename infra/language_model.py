"""A language model behind any OpenAI-compatible HTTP server: one question, one JSON object back.

Whatever the server does ends, within the question's time limit, in an answer or in a
LanguageModelError of one sentence. A run has a budget of questions and seconds. The API key is read
from the environment, and appears in no message.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import LanguageModelError
from configs.time_limit import GivenUpError, within
from infra.model_answers import parse_object

if TYPE_CHECKING:
    import openai

_CONNECT_TIMEOUT_S = 10.0
_MAX_REASON_CHARS = 200
_NO_SCHEMA_STATUS = (400, 404, 415, 422, 501)
"""How servers say that they do not know `response_format`; asked again without."""

Message = Mapping[str, str]


class LanguageModel:
    """Asks one model; safe to share between threads."""

    def __init__(self, config: DiagnoseConfig) -> None:
        if config.endpoint is None or config.model is None:
            raise LanguageModelError("diagnose.endpoint and diagnose.model name no language model")
        key = os.environ.get(config.api_key_env or "", "")
        if config.api_key_env is not None and not key:
            raise LanguageModelError(
                f"diagnose.api_key_env names {config.api_key_env}, which is not set here"
            )
        # Imported here and below: both are an extra that nothing else needs.
        import httpx2
        import openai

        from infra.limited_responses import limit_size

        self._config = config
        self._key = key
        self._understands_schemas = True
        self._lock = threading.Lock()
        self._questions = 0
        self._spent_s = 0.0
        timeout = httpx2.Timeout(
            config.timeout_s, connect=min(_CONNECT_TIMEOUT_S, config.timeout_s)
        )
        self._client = openai.OpenAI(
            base_url=config.endpoint,
            api_key=self._key or "none",
            timeout=timeout,
            max_retries=config.retries,
            default_headers={"Accept-Encoding": "identity"},
            # A redirect would carry the log to a server that nobody has named.
            http_client=openai.DefaultHttpxClient(
                timeout=timeout, follow_redirects=False, event_hooks={"response": [limit_size]}
            ),
        )

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    @property
    def name(self) -> str:
        """The model, as provenance of what it proposes."""
        return str(self._config.model)

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any],
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """The model's answer, a JSON object. That it fits the schema is for the caller to check."""
        import httpx2
        import openai

        limit_s = self._reserve()
        began = time.monotonic()
        try:
            text = within(limit_s, lambda: self._ask(messages, schema, temperature, seed))
        except GivenUpError:
            whose = (
                "diagnose.timeout_s"
                if limit_s == self._config.timeout_s
                else "what is left of diagnose.budget_s"
            )
            raise LanguageModelError(f"no answer within {limit_s:.0f} s ({whose})") from None
        except openai.OpenAIError as error:
            raise LanguageModelError(self._reason(error)) from None
        except httpx2.HTTPError as error:
            raise LanguageModelError(self._clean(f"the connection broke: {error}")) from None
        except (ValueError, RecursionError) as error:  # out of the client's own reading of the body
            raise LanguageModelError(self._clean(f"the answer cannot be read: {error}")) from None
        finally:
            with self._lock:
                self._spent_s += time.monotonic() - began
        return parse_object(text)

    def _reserve(self) -> float:
        """Count a question; the seconds that it may take."""
        with self._lock:
            left_s = self._config.budget_s - self._spent_s
            if self._questions >= self._config.max_questions or left_s <= 0:
                raise LanguageModelError(
                    f"the budget of this run is used up ({self._questions} questions, "
                    f"{self._spent_s:.0f} s)"
                )
            self._questions += 1
        return min(self._config.timeout_s, left_s)

    def _ask(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        temperature: float,
        seed: int | None,
    ) -> str:
        import openai

        if self._understands_schemas:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            try:
                return self._request(messages, temperature, seed, response_format=form)
            except openai.APIStatusError as error:
                if error.status_code not in _NO_SCHEMA_STATUS:
                    raise
        text = self._request([*messages, _schema_message(schema)], temperature, seed)
        self._understands_schemas = False
        return text

    def _request(
        self, messages: Sequence[Message], temperature: float, seed: int | None, **more: Any
    ) -> str:
        create: Callable[..., Any] = self._client.chat.completions.create
        if seed is not None:
            more["seed"] = seed
        completion = create(
            model=self.name,
            messages=[dict(message) for message in messages],
            temperature=temperature,
            max_tokens=self._config.max_answer_tokens,
            **more,
        )
        return _text_of(completion)

    def _reason(self, error: openai.OpenAIError) -> str:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return "no answer in time"
        if isinstance(error, openai.APIStatusError):
            return self._clean(
                f"the server refused with status {error.status_code}: {error.message}"
            )
        if isinstance(error.__cause__, LanguageModelError):
            return str(error.__cause__)
        if isinstance(error, openai.APIConnectionError):
            return self._clean(f"the connection broke: {error.__cause__ or error}")
        return self._clean(f"the answer cannot be read: {error}")

    def _clean(self, text: str) -> str:
        """One short line without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "<key>")
        printable = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(printable.split())[:_MAX_REASON_CHARS]


def _text_of(completion: Any) -> str:
    """The answer's text. The client builds its objects without checks, so everything may be missing."""
    try:
        choice = completion.choices[0]
        message = choice.message
        refusal = getattr(message, "refusal", None)
        content = message.content
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise LanguageModelError("the server's answer is no chat completion") from error
    if refusal:
        raise LanguageModelError("the model refused to answer")
    if getattr(choice, "finish_reason", None) == "length":
        raise LanguageModelError("the answer was cut off at diagnose.max_answer_tokens")
    if getattr(choice, "finish_reason", None) == "content_filter":
        raise LanguageModelError("the server withheld the answer (content filter)")
    if not isinstance(content, str) or not content.strip():
        raise LanguageModelError("the answer is empty")
    return content


def _schema_message(schema: Mapping[str, Any]) -> Message:
    text = json.dumps(schema, separators=(",", ":"))
    return {
        "role": "user",
        "content": f"Answer with one JSON object that fits this schema, and nothing else: {text}",
    }
