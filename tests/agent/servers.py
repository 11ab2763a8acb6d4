"""Model servers on loopback that are as strict as the real ones: a request that a provider would refuse gets its 400.

`Chat`, `Anthropic` and `Gemini` validate every request and then play the next of their scripted answers. Both are in the same
words, so that one test runs over all formats: `answer(text(...), call(...))`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

KEY = "sk-test-0123456789abcdef"
USAGE = {"input": 100, "cache_read": 20, "output": 30, "reasoning": 10}


class Refused(Exception):
    """The request is not valid; the message says why."""


def must(held: bool, why: str) -> None:
    if not held:
        raise Refused(why)


@dataclass
class Block:
    """A piece of an answer: text, thinking, redacted, call."""

    kind: str
    text: str = ""
    name: str = ""
    id: str = ""
    arguments: Any = None  # a dict, or text that goes out as it is
    signature: str | None = None


@dataclass
class Answer:
    """What a server says: `status` other than 200 is an error; `cut` drops the connection after so many deltas; `hang` holds the
    stream open after them; `raw` are the stream's JSON events as they are."""

    blocks: list[Block] = field(default_factory=list)
    finish: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: int | None = None
    usage: dict[str, int] | None = field(default_factory=lambda: dict(USAGE))
    raw: list[Any] | None = None
    delay: float = 0.0
    chunk: int = 7


def text(words: str, signature: str | None = None) -> Block:
    return Block("text", words, signature=signature)


def thinking(words: str, signature: str = "c2lnbmF0dXJl+/==") -> Block:
    return Block("thinking", words, signature=signature)


def redacted(data: str) -> Block:
    return Block("redacted", signature=data)


def call(name: str, arguments: Any = None, id: str = "", signature: str | None = None) -> Block:
    return Block("call", name=name, id=id, arguments={} if arguments is None else arguments, signature=signature)


def answer(*blocks: Block, **more: Any) -> Answer:
    return Answer(list(blocks), **more)


class Server:
    """One server. `asked` holds the bodies of the requests, `refusals` why any was refused, `gone` counts clients that left."""

    path = ""
    kind: ClassVar[str] = ""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.refusals: list[str] = []
        self.gone = threading.Event()
        self.reached = threading.Event()
        """A scripted `hang` has begun."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._calls = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                server._serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return self.origin

    def say(self, *answers: Answer) -> None:
        """Answers to give next, in order."""
        self.answers += answers

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    # --- what each format does its own way ---

    def check(self, body: dict[str, Any]) -> None:
        """Raises `Refused` for a request that the provider would not take."""
        raise NotImplementedError

    def events(self, said: Answer, body: dict[str, Any]) -> Iterator[Any]:
        """The stream's events: dicts, or text for one that is not JSON."""
        raise NotImplementedError

    def problem(self, status: int, why: str) -> Any:
        return {"error": {"message": why, "type": "invalid_request_error", "code": None}}

    def frame(self, event: Any) -> bytes:
        return f"data: {event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)}\n\n".encode()

    # --- serving ---

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        raw = request.rfile.read(int(request.headers.get("content-length", "0")))
        try:
            body = self._valid(request, raw)
        except Refused as why:
            self.refusals.append(str(why))
            self._refuse(request, Answer(status=400), str(why))
            return
        with self._lock:
            self.asked.append(body)
            self.times.append(time.monotonic())
            said = self.answers.pop(0) if self.answers else answer(text("done"))
        if said.status != 200:
            self._refuse(request, said, "slow down" if said.status == 429 else "a scripted error")
            return
        try:
            self._stream(request, said, body)
        except (ConnectionError, TimeoutError):
            self.gone.set()
            request.close_connection = True

    def _valid(self, request: BaseHTTPRequestHandler, raw: bytes) -> dict[str, Any]:
        try:
            body = json.loads(raw.decode("utf-8"), parse_constant=lambda name: must(False, f"{name} is not JSON"))
        except (UnicodeDecodeError, ValueError) as error:
            raise Refused(f"not valid JSON in UTF-8: {error}") from None
        _no_lone_surrogates(body)
        must(request.path.startswith(self.path), f"no such path {request.path}")
        self.check(body)
        return dict(body)

    def _refuse(self, request: BaseHTTPRequestHandler, said: Answer, why: str) -> None:
        data = json.dumps(self.problem(said.status, why)).encode()
        request.send_response(said.status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **said.headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    def _stream(self, request: BaseHTTPRequestHandler, said: Answer, body: dict[str, Any]) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for at, event in enumerate(said.raw if said.raw is not None else self.events(said, body)):
            if said.cut is not None and at >= said.cut:
                request.close_connection = True
                return  # without the last chunk: the connection broke
            if said.hang is not None and at >= said.hang:
                self.reached.set()
                self._hang(request)
            data = self.frame(event)
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            request.wfile.flush()
            if said.delay:
                time.sleep(said.delay)
        request.wfile.write(b"0\r\n\r\n")

    def _hang(self, request: BaseHTTPRequestHandler) -> None:
        request.connection.settimeout(0.02)
        while not self.closing.is_set():
            try:
                if not request.connection.recv(1):
                    break
            except TimeoutError:
                continue
        raise ConnectionError

    def _id(self, block: Block, prefix: str) -> str:
        with self._lock:
            self._calls += 1
            return block.id or f"{prefix}{self._calls}"


def _no_lone_surrogates(value: Any) -> None:
    if isinstance(value, str):
        must(not any("\ud800" <= char <= "\udfff" for char in value), "a lone surrogate")
    elif isinstance(value, dict):
        for name, item in value.items():
            _no_lone_surrogates(name)
            _no_lone_surrogates(item)
    elif isinstance(value, list):
        for item in value:
            _no_lone_surrogates(item)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _keys(item)


def pieces(words: str, size: int) -> list[str]:
    return [words[at : at + size] for at in range(0, len(words), size)]


def arguments(block: Block) -> str:
    return block.arguments if isinstance(block.arguments, str) else json.dumps(block.arguments)


class Chat(Server):
    """Chat Completions."""

    path = "/v1/chat/completions"
    kind = "openai"

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def check(self, body: dict[str, Any]) -> None:
        messages = body["messages"]
        must(bool(messages), "no messages")
        open_calls: list[str] = []
        for at, message in enumerate(messages):
            role = message["role"]
            if role == "tool":
                must(message["tool_call_id"] in open_calls, f"messages[{at}]: a result without its call")
                must(isinstance(message["content"], str), "a result must be text")
                open_calls.remove(message["tool_call_id"])
                continue
            must(not open_calls, f"messages[{at}]: tool calls without results: {open_calls}")
            must(role in ("system", "user", "assistant"), f"unknown role {role}")
            calls = message.get("tool_calls")
            must(bool(message.get("content")) or (role == "assistant" and bool(calls)), f"messages[{at}] is empty")
            must(calls is None or bool(calls), "an empty list of tool calls")
            for one in calls or ():
                _object(one["function"]["arguments"])
                must(one["id"] not in open_calls, "two calls with one id")
                open_calls.append(one["id"])
        must(not open_calls, f"tool calls without results: {open_calls}")
        must(messages[-1]["role"] in ("user", "tool"), "nothing to answer")
        must(not {"signature", "thoughtSignature", "thinking", "data"} & set(_keys(messages)), "somebody else's thinking")

    def events(self, said: Answer, body: dict[str, Any]) -> Iterator[Any]:
        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return {"id": "c1", "object": "chat.completion.chunk", "model": body["model"], "choices": [choice], **more}

        yield chunk({"role": "assistant", "content": ""})
        index = 0
        for block in said.blocks:
            if block.kind == "text":
                yield from (chunk({"content": piece}) for piece in pieces(block.text, said.chunk))
            elif block.kind == "thinking":
                yield from (chunk({"reasoning_content": piece}) for piece in pieces(block.text, said.chunk))
            elif block.kind == "call":
                head = {"index": index, "id": self._id(block, "call_"), "type": "function"}
                yield chunk({"tool_calls": [{**head, "function": {"name": block.name, "arguments": ""}}]})
                for piece in pieces(arguments(block), said.chunk):
                    yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                index += 1
        yield chunk({}, said.finish or ("tool_calls" if index else "stop"))
        if said.usage is not None:
            read, thought = said.usage.get("cache_read", 0), said.usage.get("reasoning", 0)
            usage = {
                "prompt_tokens": said.usage["input"] + read,
                "completion_tokens": said.usage["output"] + thought,
                "prompt_tokens_details": {"cached_tokens": read},
                "completion_tokens_details": {"reasoning_tokens": thought},
            }
            yield {"id": "c1", "model": body["model"], "choices": [], "usage": usage}
        yield "[DONE]"


class Anthropic(Server):
    """Anthropic Messages. Thinking must be this server's own: a signature that it never gave is refused."""

    path = "/v1/messages"
    kind = "anthropic"

    def __init__(self) -> None:
        super().__init__()
        self.signed: set[str] = set()

    def problem(self, status: int, why: str) -> Any:
        kind = {429: "rate_limit_error", 529: "overloaded_error", 500: "api_error"}.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": why}}

    def frame(self, event: Any) -> bytes:
        return f"event: {event['type']}\n".encode() + super().frame(event)

    def check(self, body: dict[str, Any]) -> None:
        must(body.get("max_tokens", 0) > 0, "max_tokens is missing")
        waiting: list[str] = []
        last = "assistant"
        for at, message in enumerate(body["messages"]):
            must(message["role"] != last, f"messages[{at}]: roles must alternate")
            last = message["role"]
            content = message["content"]
            must(isinstance(content, list) and bool(content), f"messages[{at}] is empty")
            if last == "user":
                given = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
                must(sorted(given) == sorted(waiting), f"messages[{at}]: results {given} for calls {waiting}")
                first = [block["type"] for block in content[: len(given)]]
                must(first == ["tool_result"] * len(given), f"messages[{at}]: results must come first")
                waiting = []
            for block in content:
                self._block(block, last)
                if block["type"] == "tool_use":
                    must(block["id"] not in waiting, "two calls with one id")
                    waiting.append(block["id"])
        must(last == "user" and not waiting, f"calls without results: {waiting}")
        self._thinking_first(body["messages"])

    def _block(self, block: dict[str, Any], role: str) -> None:
        kind = block["type"]
        if kind == "text":
            must(bool(block["text"].strip()), "text must not be blank")
        elif kind == "thinking":
            must(f"{block['thinking']}|{block['signature']}" in self.signed, "invalid `signature` in `thinking` block")
        elif kind == "redacted_thinking":
            must(block["data"] in self.signed, "invalid data in `redacted_thinking` block")
        elif kind == "tool_use":
            must(isinstance(block["input"], dict), "input must be an object")
            must(block["id"].replace("_", "").replace("-", "").isalnum(), "an id with odd characters")
        must(role == "user" or kind in ("text", "thinking", "redacted_thinking", "tool_use"), f"{kind} from the assistant")

    def _thinking_first(self, messages: list[dict[str, Any]]) -> None:
        """In the last assistant turn what thought came with must come back before its call."""
        assistants = [message for message in messages if message["role"] == "assistant"]
        if not assistants or assistants[-1] is not messages[-2]:
            return
        own = {block["id"] for block in assistants[-1]["content"] if block["type"] == "tool_use"}
        if own & self.thought:
            must(assistants[-1]["content"][0]["type"].endswith("thinking"), "must start with a thinking block")

    @property
    def thought(self) -> set[str]:
        return {mark[1:] for mark in self.signed if mark.startswith("#")}

    def events(self, said: Answer, body: dict[str, Any]) -> Iterator[Any]:
        usage = said.usage or {"input": 0, "output": 0}
        started = {"input_tokens": usage["input"], "cache_read_input_tokens": usage.get("cache_read", 0), "output_tokens": 1}
        yield {"type": "message_start", "message": {"id": "m1", "role": "assistant", "model": body["model"], "usage": started}}
        calls, thoughtful = 0, any(block.kind in ("thinking", "redacted") for block in said.blocks)
        for index, block in enumerate(said.blocks):
            if block.kind == "redacted":
                self.signed.add(block.signature or "")
                yield {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {"type": "redacted_thinking", "data": block.signature},
                }
            elif block.kind == "call":
                calls += 1
                id = self._id(block, "toolu_")
                if thoughtful:
                    self.signed.add(f"#{id}")
                begun = {"type": "tool_use", "id": id, "name": block.name, "input": {}}
                yield {"type": "content_block_start", "index": index, "content_block": begun}
                for piece in pieces(arguments(block), said.chunk):
                    yield _delta(index, "input_json_delta", "partial_json", piece)
            elif block.kind == "thinking":
                self.signed.add(f"{block.text}|{block.signature}")
                yield {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {"type": "thinking", "thinking": "", "signature": ""},
                }
                for piece in pieces(block.text, said.chunk):
                    yield _delta(index, "thinking_delta", "thinking", piece)
                yield _delta(index, "signature_delta", "signature", block.signature or "")
            else:
                yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
                for piece in pieces(block.text, said.chunk):
                    yield _delta(index, "text_delta", "text", piece)
            yield {"type": "content_block_stop", "index": index}
        reason = said.finish or ("tool_use" if calls else "end_turn")
        output = usage["output"] + usage.get("reasoning", 0)
        details = {"thinking_tokens": usage.get("reasoning", 0)}
        ended = {"output_tokens": output, "output_tokens_details": details}
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": ended}
        yield {"type": "message_stop"}


def _delta(index: int, kind: str, name: str, piece: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}


class Gemini(Server):
    """Gemini generateContent. A call that came with a signature must come back with it, byte for byte; the first call of an
    answer must have one or the stand-in that Google documents."""

    path = "/v1beta/models/"
    kind = "gemini"
    stand_in = "skip_thought_signature_validator"

    def __init__(self) -> None:
        super().__init__()
        self.signed: dict[str, str] = {}

    def problem(self, status: int, why: str) -> Any:
        return {"error": {"code": status, "message": why, "status": "INVALID_ARGUMENT" if status == 400 else "UNAVAILABLE"}}

    def check(self, body: dict[str, Any]) -> None:
        waiting: list[str] = []
        last = "model"
        for at, content in enumerate(body["contents"]):
            must(content["role"] != last or content["role"] == "user", f"contents[{at}]: two model turns in a row")
            last = content["role"]
            must(bool(content["parts"]), f"contents[{at}] has no parts")
            answers = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
            must(last == "user" or not answers, "a response from the model")
            must(answers == waiting, f"contents[{at}]: responses {answers} for calls {waiting}")
            calls = [part for part in content["parts"] if "functionCall" in part]
            waiting = [part["functionCall"]["name"] for part in calls]
            for number, part in enumerate(calls):
                self._signed(part, first=number == 0)
        must(last == "user" and not waiting, f"calls without responses: {waiting}")

    def _signed(self, part: dict[str, Any], *, first: bool) -> None:
        must(isinstance(part["functionCall"].get("args"), dict), "args must be an object")
        given, wanted = part.get("thoughtSignature"), self.signed.get(part["functionCall"].get("id", ""))
        if wanted is not None:
            must(given == wanted, "Function call is missing a thought_signature")
        elif first:
            must(given == self.stand_in, "Function call is missing a thought_signature")

    def events(self, said: Answer, body: dict[str, Any]) -> Iterator[Any]:
        def chunk(parts: list[Any], finish: str | None = None) -> dict[str, Any]:
            candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
            if finish:
                candidate["finishReason"] = finish
            return {"candidates": [candidate], "modelVersion": "gemini-3-test"}

        for block in said.blocks:
            if block.kind == "call":
                id = self._id(block, "fc_")
                part: dict[str, Any] = {"functionCall": {"id": id, "name": block.name, "args": block.arguments}}
                if block.signature:
                    part["thoughtSignature"] = self.signed[id] = block.signature
                yield chunk([part])
                continue
            if block.kind == "redacted":
                continue
            marks = {"thought": True} if block.kind == "thinking" else {}
            for piece in pieces(block.text, said.chunk):
                yield chunk([{"text": piece, **marks}])
            if block.signature and block.kind == "text":
                yield chunk([{"text": "", "thoughtSignature": block.signature}])
        usage = said.usage or {"input": 0, "output": 0}
        read = usage.get("cache_read", 0)
        last = chunk([], said.finish or "STOP")
        if said.usage is not None:
            last["usageMetadata"] = {
                "promptTokenCount": usage["input"] + read,
                "cachedContentTokenCount": read,
                "candidatesTokenCount": usage["output"],
                "thoughtsTokenCount": usage.get("reasoning", 0),
            }
        yield last


def _object(given: Any) -> None:
    must(isinstance(given, str), "arguments must be text")
    try:
        must(isinstance(json.loads(given), dict), "arguments must be an object")
    except ValueError:
        raise Refused("arguments are not valid JSON") from None


FORMATS: dict[str, type[Server]] = {"openai": Chat, "anthropic": Anthropic, "gemini": Gemini}
MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-sonnet-4-5", "gemini": "gemini-3-pro-preview"}


@contextmanager
def serving(kind: str) -> Iterator[Server]:
    server = FORMATS[kind]()
    try:
        yield server
    finally:
        server.close()
