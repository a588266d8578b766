"""`python local_model_server.py MODEL.gguf CONTEXT_TOKENS`: serves a model with xllamacpp until stdin ends.

Prints the server's address. A process of its own, so that its threads end with it.
"""

from __future__ import annotations

import sys

import xllamacpp


def main(path: str, context_tokens: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"address {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
