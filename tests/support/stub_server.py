"""A server of OpenAI's protocol that answers like vLLM's, from a tiny deterministic model, in a
thread. ``trouble`` says what goes wrong first."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

VOCAB = 12
DEPTH = 6


def row(ids, noise=0.0):
    """(VOCAB,) logprobs after ``ids``; ``noise`` makes another model of it."""
    logits = np.random.default_rng(ids[-3:]).normal(0.0, 2.0, VOCAB)
    logits = logits + noise * np.random.default_rng([7, *ids[-3:]]).normal(0.0, 1.0, VOCAB)
    return logits - np.log(np.exp(logits).sum())


class StubServer:
    """What it was asked, and how it answers: ``statuses`` are given first, one a request; then
    ``refused`` texts get a 400; ``owner`` is what /v1/models says."""

    def __init__(self, *, noise=0.0, owner="vllm", statuses=(), refused=(), logprobs=True):
        self.noise, self.owner, self.logprobs = noise, owner, logprobs
        self.statuses, self.refused = list(statuses), refused
        self.requests, self.headers, self.most_at_once, self.at_once = [], [], 0, 0
        self.lock = threading.Lock()
        self.on_request = lambda body: None

    def reply(self, path, body):
        if path.endswith("/models"):
            return 200, {"object": "list", "data": [self._model("tiny")]}
        with self.lock:
            self.requests.append(body)
            if self.statuses:
                return self.statuses.pop(0), {"error": {"message": "no luck, key " + self.key()}}
        self.on_request(body)
        if body.get("prompt_logprobs") is not None:
            return 200, self._scored(body)
        text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if text in self.refused:
            return 400, {"error": {"message": "too long"}}
        return 200, self._answer(text, body)

    def key(self):
        return self.headers[-1].get("authorization", "").removeprefix("Bearer ")

    def _model(self, name):
        return {"id": name, "object": "model", "created": 0, "owned_by": self.owner}

    def _answer(self, text, body):
        prompt = [1, *(ord(mark) % VOCAB for mark in text)]
        ids, content = list(prompt), []
        for _ in range(body["max_tokens"]):
            values = row(ids)
            order = np.argsort(-values, kind="stable")
            content.append(
                self._entry(order[0], values)
                | {"top_logprobs": [self._entry(each, values) for each in order[:DEPTH]]}
            )
            ids.append(int(order[0]))
        choice = {"index": 0, "finish_reason": "length", "token_ids": ids[len(prompt) :]}
        choice |= {"message": {"role": "assistant", "content": text}}
        choice["logprobs"] = {"content": content} if self.logprobs else None
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "choices": [choice],
            "prompt_token_ids": prompt,
        }

    def _scored(self, body):
        ids, lists = body["prompt"], [None]
        for place in range(1, len(ids)):
            values = row(ids[:place], self.noise)
            order = [int(each) for each in np.argsort(-values, kind="stable")]
            listed = [ids[place], *(each for each in order[:DEPTH] if each != ids[place])]
            lists.append(
                {
                    str(each): {"logprob": float(values[each]), "rank": order.index(each) + 1}
                    for each in listed
                }
            )
        choice = {"index": 0, "text": "x", "logprobs": None, "prompt_logprobs": lists}
        return {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}

    @staticmethod
    def _entry(token, values):
        return {"token": f"token_id:{token}", "logprob": float(values[token]), "bytes": None}

    @contextlib.contextmanager
    def running(self):
        """Serves while the block runs; yields the URL."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._send(*stub.reply(self.path, None))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with stub.lock:
                    stub.headers.append({k.lower(): v for k, v in self.headers.items()})
                    stub.at_once += 1
                    stub.most_at_once = max(stub.most_at_once, stub.at_once)
                status, answer = stub.reply(self.path, body)
                with stub.lock:
                    stub.at_once -= 1
                self._send(status, answer)

            def _send(self, status, answer):
                text = json.dumps(answer, indent=1).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("retry-after-ms", "1")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(text)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
