"""A server on this machine that speaks Anthropic's Messages and OpenAI's chat completions."""

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Reply:
    """What the server sends."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None


@dataclass
class FakeServer:
    address: str
    replies: list[Reply]
    requests: list[Request] = field(default_factory=list)

    def say(self, *replies: Reply) -> None:
        """Send these in turn; the last one again and again."""
        self.replies[:] = replies


@contextmanager
def serving():
    state = FakeServer("", [Reply()])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.requests.append(Request(self.path, headers, json.loads(body)))
            reply = state.replies.pop(0) if len(state.replies) > 1 else state.replies[0]
            reply.before()
            try:
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)
                self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_):
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            """A client that went away is expected."""

    server = Server(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def anthropic_body(*texts: str, stop_reason: str = "end_turn", **more: Any) -> bytes:
    """Return a message as the Messages API sends it."""
    message = {
        "id": "msg_013Zva2CMHLNnjNjJJKqJ2EF",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": text} for text in texts],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 2095, "output_tokens": 503},
    }
    return json.dumps(message | more).encode()


def openai_body(text: str | None, *, refusal: str | None = None, **more: Any) -> bytes:
    """Return a completion as the chat-completions API sends it."""
    completion = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "gpt-test",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": refusal},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 2095, "completion_tokens": 503, "total_tokens": 2598},
    }
    return json.dumps(completion | more).encode()


def error_body(provider: str, kind: str, message: str) -> bytes:
    """Return a complaint as the provider sends it."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if provider == "anthropic":
        return json.dumps({"type": "error", "error": error, "request_id": "req_011"}).encode()
    return json.dumps({"error": error | {"param": None, "code": kind}}).encode()
